"""The drafter against the target it will serve, as far as the target's files tell beside its weights."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from converter.drafter.drafter import Provenance
from converter.drafter.spec import DrafterSpec
from converter.drafter.target import Target
from converter.findings import CAPTURE, Finding, error, note, warning


def check_target(spec: DrafterSpec, provenance: Provenance, target: Target) -> Iterator[Finding]:
    """C210 hidden size, C211 vocabulary, C212 another class, C213 another rope than the target's, C241 another name,
    C243 a rotated target.
    """
    if target.hidden_size is not None and target.hidden_size != spec.target_hidden_size:
        yield error(
            "C210",
            "the target's hidden states are not as wide as the drafter's fc takes them",
            where=target.where,
            found=f"target hidden size {target.hidden_size}",
            expected=str(spec.target_hidden_size),
            why="this is not the target that the drafter was trained for",
            fix=("give that one: --target FOLDER, or org/name on the Hub",),
        )
    if target.vocab_size is not None and target.vocab_size != spec.vocab_size:
        yield error(
            "C211",
            "drafter and target have different vocabularies",
            where=target.where,
            found=f"target {target.vocab_size:,} tokens",
            expected=f"{spec.vocab_size:,}, the vocab_size of the drafter's config",
            why="draft ids would be mapped to other tokens, or past the end",
            fix=("give the target that it was trained for; a merge may have cut or padded this one's table",),
        )
    trained_for = provenance.target_architecture
    if target.architecture and trained_for and target.architecture != trained_for:
        yield warning(
            "C212",
            f"the drafter was trained for a {trained_for}, the target is a {target.architecture}",
            where=target.where,
            why="a drafter fits the states of the model that it was trained on; another class is often another model",
            fix=(f"give the target that it was trained for, or measure on a sample: {CAPTURE}",),
        )
    if _another_model(provenance.target_name, _repository(target)):
        yield warning(
            "C241",
            f"the drafter was trained for {provenance.target_name}, the target is {_repository(target)}",
            where=target.where,
            why="another fine-tune of the same model has other states and answers; acceptance falls by as much",
            fix=(f"give the target that it was trained for, or measure on a sample: {CAPTURE}",),
        )
    if target.rotated:
        yield warning(
            "C243",
            "the target was rotated for quantisation, its hidden states with it",
            where=f"quantization_config.transform_config in {target.where}",
            why="a drafter that was trained on the original's states is fed with others: next to nothing is accepted",
            fix=(f"train on the rotated target's own states, or measure: {CAPTURE}",),
        )
    if target.rope is not None and target.rope != spec.rope:
        yield note(
            "C213",
            "drafter and target rotate differently",
            where=spec.origins["rope"].where,
            found=f"drafter {spec.rope}",
            expected=f"target {target.rope}",
            why="that is fine if it was trained so; scaling that a converter lost makes acceptance fall with length",
        )


_REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
# Where huggingface_hub keeps what it fetched.
_SNAPSHOT = re.compile(r"models--([\w.-]+?)--([\w.-]+)/snapshots/")
# What is put behind a name when the weights are stored otherwise.
_STORED = frozenset({
    "fp8", "fp4", "nvfp4", "mxfp4", "mxfp8", "int4", "int8", "w4a16", "w8a8", "w8a16", "w4a8", "awq", "gptq", "bnb",
    "4bit", "8bit", "bf16", "fp16", "quantized", "dynamic", "static", "block", "hf", "g128", "autoround",
})  # fmt: skip


def _repository(target: Target) -> str:
    """The target's name on the Hub, where it was fetched from there; "" where it is a folder of the user's."""
    if target.where.partition("@")[0] == target.name and _REPOSITORY.fullmatch(target.name):
        return target.name
    cached = _SNAPSHOT.search(target.where)
    return "/".join(cached.groups()) if cached else ""


def _another_model(trained_for: str, target: str) -> bool:
    """True of two repositories of which neither is the other's weights stored otherwise, whoever published them."""
    if not (_REPOSITORY.fullmatch(trained_for) and _REPOSITORY.fullmatch(target)):
        return False
    short, long = sorted((name.rpartition("/")[2].lower() for name in (trained_for, target)), key=len)
    rest = re.split(r"[-_.]", long.removeprefix(short))
    return not long.startswith(short) or any(word and word not in _STORED for word in rest)


ADAPTER = "adapter_config.json"


def check_target_folder(target: Target) -> Iterator[Finding]:
    """C242 where an adapter lies beside the target's weights."""
    if target.folder is None or not (target.folder / ADAPTER).is_file():
        return
    yield warning(
        "C242",
        f"an adapter (LoRA) lies beside the target: {ADAPTER}",
        where=str(Path(target.name) / ADAPTER),
        why="with the adapter the target has other states and answers than without, and a drafter fits the one that it "
        "was trained for",
        fix=("merge it and give the merged model, or take the adapter out of the folder if it is not served",),
    )
