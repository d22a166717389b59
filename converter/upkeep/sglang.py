"""Where SGLang's package says what the mapping states, and the words of its code."""

from __future__ import annotations

import ast
import re

from converter.upkeep.reading import Names, Reader
from converter.upkeep.source import CannotTell, Class, Source
from converter.upkeep.targets import UNTOLD, Fact, Setter
from converter.upkeep.words import Words

WORDS = Words(
    facts={
        "start_layer": 0, "end_layer": "LAYERS", "is_first_rank": True, "is_last_rank": True, "world_size": 1,
        "num_hidden_layers": "LAYERS", "config": "CONFIG", "text_config": "CONFIG",
        "can_run_tbo": False, "is_idle": False, "enable_a2a_moe": False, "dflash_capture": False,
        "use_hf_deepstack_order": False, "nsa_use_prefill_cp": False,
    },
    passed_on=frozenset({"snapshot", "complete_output"}),
    captures=frozenset({"capture", "capture_output", "captured_last_layer_outputs"}),
    lists=frozenset({"AuxHiddenStateList", "AuxHiddenStatePacker"}),
    marks=frozenset({"layers_to_capture", "_is_layer_to_capture"}),
)  # fmt: skip

_MODELS = "sglang/srt/models/"
_DRAFT = re.compile(r"Eagle3")
# Draft heads of other methods; they inherit their target's setter and are never told any points.
_OTHER_DRAFTS = re.compile(r"(NextN|MTP|Eagle|DFlash|DSpark|Assistant\w*)$|Eagle3|Assistant")


def _names(source: Source) -> Names:
    targets: dict[str, Class] = {}
    drafts: dict[str, Class] = {}
    unread: dict[str, Fact] = {}
    for path in source.mentioning(_MODELS, "EntryClass"):
        try:
            module = source.module(path)
        except CannotTell as problem:
            unread[source.short(path)] = Fact(UNTOLD, problem.place, problem.why)
            continue
        entry = module.assigned("EntryClass") if module is not None else None
        if module is None or entry is None:
            continue
        for node in entry.elts if isinstance(entry, ast.List | ast.Tuple) else [entry]:
            cls = module.class_of(node)
            if cls is None:
                unread[ast.unparse(node)] = Fact(UNTOLD, module.place(node), "the class is not found")
            elif _DRAFT.search(cls.name):
                drafts[cls.name] = cls
            elif not _OTHER_DRAFTS.search(cls.name):
                targets[cls.name] = cls
    if not targets:
        raise CannotTell("no file with an EntryClass", _MODELS)
    return Names(targets, drafts, unread)


READER = Reader(
    engine="sglang",
    prefix="sglang/srt/",
    models=_MODELS,
    names=_names,
    setter=Setter("set_eagle3_layers_to_capture", (), WORDS),
    supports=lambda cls: True,
    ids_in=("sglang/srt/model_executor/",),  # speculative/ reads them for the width of buffers
    ids_apart=r"dflash|dspark",
    elsewhere=(
        "sglang/srt/configs/model_config.py",
        "sglang/srt/utils/hf_transformers",
        "sglang/srt/hf_transformers_utils.py",
    ),
)
