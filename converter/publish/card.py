"""The model card of a sealed drafter: README.md for its repository on the Hub, made from the seal.

The user's own text and metadata are kept; what is ours stands between markers and is renewed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from converter import gate, seal
from converter.checkpoint.jsonfile import read_bounded, read_config, reading
from converter.checkpoint.paths import real
from converter.checks.carried import leads_out
from converter.errors import InputError, UsageError
from converter.findings import Finding, error
from converter.hub.ids import also_an_id
from converter.hub.snapshot import CARD
from converter.publish.facts import Facts, facts_of
from converter.publish.marked import line_of, renewed
from converter.publish.metadata import INDEX, SAMPLE, check_card, with_metadata
from converter.publish.sections import SECTIONS
from converter.report.markup import plain

# What public EAGLE-3 drafters state, though transformers runs none (JinnP/SGLang-EAGLE3-Qwen3-Coder-30B-A3B-Instruct,
# thoughtworks/Qwen3-Coder-Next-Eagle3), and what the Hub takes a repository with a config.json for.
LIBRARY = "transformers"
# The Hub knows finetune, adapter, merge and quantized (its documentation, "Specifying a base model"), and takes what
# says nothing for a finetune. A drafter is none of the target's weights: it is added to them and runs only beside them.
RELATION = "adapter"
TASK = "text-generation"
TAGS = ("eagle3", "speculative-decoding", "draft-model")
_BOM = "\ufeff"


def card_text(document: Mapping[str, Any], existing: str | None, repo: str, config: Mapping[str, Any]) -> str:
    """README.md of the drafter whose seal, a sound one, is `document`. Applied to its own result it changes nothing.

    existing   the README.md that is there; its lines may end in any way
    repo       org/name, "" where it is not known
    config     the drafter's config.json, which says what a seal does not: layers, widths, capture points

    Raises InputError: H437 markers that are damaged and H438 metadata that cannot be read.
    """
    facts = facts_of(document, config, repo)
    sections = {name: "\n".join(write(facts)) for name, write in SECTIONS.items()}
    card = over(existing or f"# {plain(facts.title)}\n", _metadata(facts), sections)
    check_card(card)
    return card


def over(existing: str, ours: Mapping[str, Any], sections: Mapping[str, str]) -> str:
    """A text with our metadata and sections put in or renewed, and everything else as it is. Raises InputError H437 and
    H438.
    """
    text = existing.removeprefix(_BOM)
    # The Hub sees no block in a file whose lines end in \r alone.
    line_break = "\r\n" if text.count("\r\n") * 2 > text.count("\n") else "\n"
    head, body = with_metadata(text, ours, line_break)
    below = renewed(body, sections, line_break, before=line_of(head, len(head)) - 1)
    return existing[: len(existing) - len(text)] + head + below


def card_of_folder(folder: Path, repo: str) -> tuple[str, list[Finding]]:
    """The card of the drafter in `folder`, over the README.md there; "" and why where it has none: it is not sealed
    (H413), or was changed since (C233).

    Raises UsageError: `repo` is no id; InputError F100 and as `seal.sound_seal`, `read_config`, `existing_card` and
    `card_text` do.
    """
    named = also_an_id(repo) if repo else None
    if repo and (named is None or named.revision):
        raise UsageError(f"--repo {repo}: expected ORG/NAME, as the Hub names repositories")
    if not folder.is_dir():
        raise InputError(error("F100", f"there is no folder {folder}", where=str(folder), fix=("check the path",)))
    document = seal.sound_seal_of(folder)
    with reading(folder):
        found = gate.may_leave(document, seal.listing(folder), str(folder), require="none")
    if document is None or found:
        return "", found
    return card_text(document, existing_card(folder), repo, read_config(folder / "config.json")), []


def existing_card(folder: Path) -> str | None:
    """The README.md in a folder, its line ends as they are; None where there is none. Raises InputError F100, F110, and
    H444 where it is a link out of the folder.
    """
    file = folder / CARD
    if leads_out(file):
        raise InputError(link_out(file))
    try:
        return read_bounded(file).decode() if file.exists() else None
    except UnicodeDecodeError as problem:
        raise InputError(
            error(
                "F110",
                f"cannot make sense of {CARD}: it is not UTF-8",
                where=str(file),
                found=f"byte {problem.start:,}",
                fix=("save it as UTF-8, which is what the Hub reads",),
            )
        ) from problem


def link_out(file: Path) -> Finding:
    """H444 for a file that would be published."""
    return error(
        "H444",
        f"{file.name} is a link that leads out of the folder",
        where=str(file),
        found=str(real(file)),
        why="whoever made the folder would choose which file of this machine is published",
        fix=("if it is meant: put a copy of the file in its place",),
    )


def _metadata(facts: Facts) -> dict[str, Any]:
    """Our keys, as huggingface_hub writes them; a license is the user's to state."""
    from huggingface_hub import EvalResult, ModelCardData

    results = [EvalResult(**result) for result in _results(facts)]
    data: Any = ModelCardData(
        base_model=facts.base_model or None,
        base_model_relation=RELATION if facts.base_model else None,
        library_name=LIBRARY,
        pipeline_tag=TASK,
        tags=[*TAGS, *facts.engine_names],
        model_name=facts.title if results else None,
        eval_results=results or None,
    )
    keys = data.to_dict()
    order = ("base_model", "base_model_relation", "library_name", "pipeline_tag", "tags", INDEX)
    return {key: keys[key] for key in order if key in keys}


def _results(facts: Facts) -> list[dict[str, Any]]:
    """What was measured of what an engine computes; nothing without a sample."""
    sample, scores = facts.proof["sample"], facts.proof["scores"]
    if sample is None or scores is None or seal.text_at(facts.document, "proof.level") == "none":
        return []
    dataset = {
        "task_type": TASK,
        "task_name": "speculative decoding",
        "dataset_type": SAMPLE,
        "dataset_name": facts.sample_name,
        "dataset_args": {
            **({"tokens_sha256": sample["tokens_sha256"]} if sample.get("tokens_sha256") else {}),
            "sequences": sample["sequences"],
            "positions": next(iter(scores["rows"]), 0),
        },
    }
    found: list[dict[str, Any]] = []
    for share in scores["accuracy"][:1]:  # of later steps the table tells
        found.append(
            {
                **dataset,
                "metric_type": "accuracy",
                "metric_name": "accuracy of draft step 0",
                "metric_value": round(share, 4),
                "metric_args": _interval((scores.get("interval") or [None])[0]) or None,
            }
        )
    best = facts.acceptance
    if best is not None:
        how = "replayed on greedy text" if best["exact"] else "estimated"
        found.append(
            {
                **dataset,
                "metric_type": "acceptance_length",
                "metric_name": f"acceptance length, chains of {best['chain']}, {how}",
                "metric_value": round(best["length"], 4),
                "metric_args": {"chain": best["chain"], "exact": best["exact"], **_interval(best["interval"])},
            }
        )
    return found


def _interval(ends: list[float] | None) -> dict[str, list[float]]:
    return {} if ends is None else {"interval_95": [round(end, 4) for end in ends]}
