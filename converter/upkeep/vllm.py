"""Where vLLM's package says what the mapping states, and the words of its code."""

from __future__ import annotations

import ast
import re

from converter.upkeep.reading import Names, Reader
from converter.upkeep.source import CannotTell, Class, Module, Source, flat
from converter.upkeep.targets import UNTOLD, Fact, Setter
from converter.upkeep.words import Words

WORDS = Words(
    facts={
        "start_layer": 0, "end_layer": "LAYERS", "is_first_rank": True, "is_last_rank": True, "world_size": 1,
        "num_hidden_layers": "LAYERS", "config": "CONFIG", "text_config": "CONFIG", "hf_config": "CONFIG",
        "model_parallel_is_initialized": False, "use_sequence_parallel": False, "fast_prefill_enabled": False,
        "is_sequence_parallel_active": False,
    },
    passed_on=frozenset({"layernorm_embedding", "embedding_dropout"}),
    captures=frozenset(),
    lists=frozenset(),
    marks=frozenset({"aux_hidden_state_layers"}),
    hands_on=frozenset({"set_aux_hidden_state_layers", "_set_aux_hidden_state_layers"}),
    stands_for={"get_language_model": ("language_model", "model")},
)  # fmt: skip

_MODELS = "vllm/model_executor/models/"
# Tables of the registry: those of models that generate text, and one of whose classes some do (LlamaModel).
_TARGETS = (
    "_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS", "_TRANSFORMERS_SUPPORTED_MODELS", "_TRANSFORMERS_BACKEND_MODELS",
    "_EMBEDDING_MODELS",
)  # fmt: skip
_DRAFTS = "_SPECULATIVE_DECODING_MODELS"
_NOT_GENERATING = re.compile(r"MTP$|Embedding|Embed|SequenceClassification|TokenClassification|Reward|JointSchema")
_SPECULATION = "vllm/config/speculative.py"


def _names(source: Source) -> Names:
    registry = source.module(f"{_MODELS}registry.py")
    if registry is None:
        raise CannotTell("no registry of models", f"{_MODELS}registry.py")
    targets: dict[str, Class] = {}
    drafts: dict[str, Class] = {}
    unread: dict[str, Fact] = {}
    for table in (*_TARGETS, _DRAFTS):
        for architecture, module, name, place in _entries(registry, table):
            is_draft = table == _DRAFTS
            if is_draft and not re.search("eagle3", architecture + module + name, re.IGNORECASE):
                continue
            if not is_draft and _NOT_GENERATING.search(architecture):
                continue
            cls = _class(source, module, name)
            if cls is None:
                unread[architecture] = Fact(UNTOLD, place, f"{name} of {module} is not found")
            elif is_draft:
                drafts[architecture] = cls
            else:
                targets.setdefault(architecture, cls)
    return Names(targets, drafts, unread, _families(source))


def _entries(registry: Module, table: str) -> list[tuple[str, str, str, str]]:
    """architecture, module, class and place of a table of the registry."""
    found = []
    node = registry.assigned(table)
    for key, value in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
        if isinstance(key, ast.Constant) and isinstance(value, ast.Tuple) and len(value.elts) == 2:
            module, name = (e.value if isinstance(e, ast.Constant) else "" for e in value.elts)
            found.append((str(key.value), str(module), str(name), registry.place(key)))
    return found


def _class(source: Source, module: str, name: str) -> Class | None:
    try:
        found = source.by_dotted(module if module.startswith("vllm.") else f"vllm.model_executor.models.{module}")
    except CannotTell:
        return None
    return found.class_named(name) or _imported_late(found, name) if found is not None else None


def _imported_late(module: Module, name: str) -> Class | None:
    """A class that a package imports inside its `__getattr__`, by name or in a module; that of CUDA."""
    function = module.function("__getattr__")
    for node in flat(function.body) if function is not None else ():
        for alias in node.names if isinstance(node, ast.ImportFrom) else ():
            assert isinstance(node, ast.ImportFrom)
            if (alias.asname or alias.name) == name:
                return module.source.imported(module.path, node, alias.name)
            inside = module.source.submodule(module.path, node, alias.name)
            found = inside.class_named(name) if inside is not None else None
            if found is not None:
                return found
    return None


def _families(source: Source) -> tuple[str, ...]:
    """Parts of model types that `eagle3` takes as targets (until 0.21.0)."""
    module = source.module(_SPECULATION)
    for node in ast.walk(module.tree) if module is not None else ():
        if (
            isinstance(node, ast.Assign)
            and re.search(r"(eagle3_target|hidden_states)_supported", ast.unparse(node.targets[0]))
            and isinstance(node.value, ast.List)
        ):
            return tuple(str(e.value) for e in node.value.elts if isinstance(e, ast.Constant))
    return ()


READER = Reader(
    engine="vllm",
    prefix="vllm/",
    models=_MODELS,
    names=_names,
    setter=Setter(
        "set_aux_hidden_state_layers",
        ("get_eagle3_default_aux_hidden_state_layers", "get_eagle3_aux_hidden_state_layers"),
        WORDS,
    ),
    supports=lambda cls: cls.inherits("SupportsEagle3"),
    ids_in=("vllm/v1/",),
    ids_apart=r"dflash|extract_hidden_states",
    elsewhere=(
        "vllm/config/",
        "vllm/transformers_utils/config.py",
        "vllm/transformers_utils/model_arch_config_convertor.py",
        "vllm/v1/spec_decode/",  # the mask token of parallel drafting
    ),
)
