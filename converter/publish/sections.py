"""The sections of a card, each a function of the facts. Their definitions are those of docs/metrics.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from converter import seal
from converter.publish.facts import DRAFTER, TARGET, Facts, source_name
from converter.report.explain import catalogue
from converter.report.markup import code, launches, plain, table
from converter.report.reading import between, engine_name, level_words, percent
from converter.report.words import count, size
from converter.rules.engine import STANDINGS
from converter.transforms import SPLIT_ROWS

_LABELS = {
    "target": "the target's own choice",
    "computed": "the target's own choice, computed by its norm and head",
    "text": "the text's own next token",
}


def about(facts: Facts) -> Iterator[str]:
    target, spec = facts.document["target"], facts.spec
    name = code(facts.target_name) if facts.target_name else "a target that its seal does not name"
    known = [plain(target["architecture"])] if target["architecture"] else []
    known += [count(target["layers"], "layer")] if target.get("layers") else []
    yield from ("## What it is", "")
    kind = f" ({', '.join(known)})" if known else ""
    words = [f"An EAGLE-3 draft model for {name}{kind}."]
    words.append("It is no model by itself: an engine runs it beside that target, which keeps of its drafts what it "
                 "would have said itself.")  # fmt: skip
    if spec is not None:
        fed = f"the target's states at {facts.points} (layer k is the output of the k-th layer)"
        words.append(f"It has {count(spec.num_hidden_layers, 'layer')} of width {spec.hidden_size:,} and is fed "
                     f"{fed if facts.points else count(spec.num_points, 'state') + ' of the target'}.")  # fmt: skip
        tokens = f"{spec.draft_vocab_size:,} of the target's {spec.vocab_size:,} tokens"
        words.append(f"It drafts {tokens}, by the map in its files." if spec.reduced_vocabulary else
                     f"It drafts all of the target's {spec.vocab_size:,} tokens.")  # fmt: skip
    weights = [f for f in facts.document["files"] if f["name"].endswith(".safetensors")]
    dtype = f", {plain(spec.dtype)}" if spec is not None else ""
    tensors = count(len(facts.document["tensors"]), "tensor")
    words.append(f"{tensors}, {size(sum(f['size'] for f in weights))}{dtype}.")
    yield " ".join(words)


def launch(facts: Facts) -> Iterator[str]:
    yield from ("## Launch", "")
    if facts.document.get("to"):
        yield f"It is in the form of {plain(engine_name(facts.document['to']))}; it was not written for an engine."
        return
    yield from launches(facts.launch)
    for engine in facts.unknown:
        name = plain(engine_name(engine))
        yield from (f"The command for {name} is not known here: it was written by rules of its maker's own.", "")
    for engine in facts.document["engines"]:
        if engine.get("plugin"):
            name, package = plain(engine_name(engine["engine"])), code(engine["plugin"])
            yield from (f"{name} needs the package {package} installed where it runs.", "")
    stands = {
        TARGET: "the target's folder or its id on the Hub" if not facts.base_model else "",
        DRAFTER: "this repository" if not facts.repo else "",
    }
    words = [f"{code(word)} stands for {what}." for word, what in stands.items() if what]
    if any(line["before"] for line in facts.launch):
        words.append("Commands that read a folder want the repository downloaded first (`hf download`).")
    if words:
        yield " ".join(words)


def scores(facts: Facts) -> Iterator[str]:
    proof = facts.proof
    yield from ("## Scores", "")
    yield f"Proof level **{plain(proof['level'])}**: {plain(level_words(proof))}."
    yield ""
    largest = proof["largest_logit_difference"]
    if largest is not None:
        held = " and ".join(plain(engine_name(e["engine"])) for e in proof.get("engines") or [])
        against = held or "the engine"
        yield f"Largest difference of a logit, trainer's forward pass against that of {against}: {largest:.2g}."
        yield ""
    measured, sample = proof["scores"], proof["sample"]
    if measured is None or sample is None:
        yield "Nothing was measured: there was no sample of the target's states."
        return
    yield from _measured(facts, measured, sample)


def _measured(facts: Facts, measured: Mapping[str, Any], sample: Mapping[str, Any]) -> Iterator[str]:
    positions = f"{measured['rows'][0]:,} positions" if measured["rows"] else "no positions"
    how = ", ".join(plain(words) for words in (facts.proof["device"], facts.proof["embedding"]) if words)
    yield (f"Measured on {code(facts.sample_name)}, {positions} in {count(sample['sequences'], 'sequence')}"
           f"{f' ({how} embedding)' if how else ''}; on other texts the numbers are others.")  # fmt: skip
    yield ""
    ends = measured.get("interval") or [None] * len(measured["accuracy"])
    steps = zip(measured["right"], measured["rows"], measured["accuracy"], ends, strict=False)
    yield from table(
        ["draft step", "right", "accuracy", "95% interval"],
        [[str(k), f"{right:,} of {rows:,}", percent(share), between(interval)]
         for k, (right, rows, share, interval) in enumerate(steps)],
    )  # fmt: skip
    label = _LABELS[sample.get("labels") or "target"]
    yield (f"*Accuracy* of step k: the share of positions at which the drafter named {label} at step k and at all "
           "steps before it.")  # fmt: skip
    yield ""
    acceptance = measured.get("acceptance") or []
    if acceptance:
        rows = [[str(a["chain"]), f"{a['length']:.2f}", between(a["interval"], ".2f"),
                 "exact" if a["exact"] else "estimated"] for a in acceptance]  # fmt: skip
        yield from table(["drafted at a time", "acceptance length", "95% interval", ""], rows)
        yield ("*Acceptance length*: 1 + accepted draft tokens / verification steps, for greedy decoding with a chain "
               "and no tree; 1 means that every draft is rejected.")  # fmt: skip
        if all(a["exact"] for a in acceptance):
            yield "*Exact*: the server's walk was replayed on text that the target wrote greedily."
        else:
            yield ("*Estimated*: from how often each step was right on this text, which the target did not write "
                   "greedily; it tends to be too high.")  # fmt: skip
        yield ""
    yield ("*Intervals* allow for the positions of a text being alike: whole sequences, or stretches of 32 positions, "
           "are one observation.")  # fmt: skip


def provenance(facts: Facts) -> Iterator[str]:
    document = facts.document
    yield from ("## Provenance", "")
    yield from table(["", ""], [[what, words] for what, words in _record(facts) if words])
    if document["allowed"]:
        yield from ("Errors were let through; it is not in all the drafter that was trained:", "")
        yield from (f"- **{found}** {_title(found)}" for found in document["allowed"])
        yield ""
    warned = dict.fromkeys(
        f["code"] for f in document["findings"] if f["severity"] == "warning" and not f["allowed"]
    )  # fmt: skip
    if warned:
        yield from ("It was made with these warnings:", "")
        yield from (f"- {found} {_title(found)}" for found in warned)
        yield ""
    yield (f"{code(seal.NAME)} records it all, with the SHA-256 of every file; `eagle3 explain CODE` tells what a code "
           "means.")  # fmt: skip


def _record(facts: Facts) -> Iterator[tuple[str, str]]:
    document, sample = facts.document, facts.proof["sample"]
    commit = seal.text_at(document, "source.commit")
    given = source_name(document)
    config = document["source"]["config_sha256"]
    at = f", commit {code(commit)}" if commit else f" (its config.json: SHA-256 {code(config)})"
    yield "made from", f"{code(given) if given else 'a folder'}{at}"
    tool = f"{document['tool']['name']} {document['tool']['version']}"
    yield "made by", f"{plain(tool)}, {code(document['sealed_at'])}"
    yield "rules", f"{count(len(document['rules']), 'file')}, each with its SHA-256 in the seal"
    engines = ", ".join(map(_engine, document["engines"]))
    yield "written for", engines or plain(engine_name(document.get("to") or ""))
    target = seal.text_at(document, "target.commit")
    yield "target", f"{code(facts.base_model)}, commit {code(target)}" if facts.base_model and target else ""
    same = sum(all(o["name"] == SPLIT_ROWS for o in t["operations"]) for t in document["tensors"])
    yield "tensors", f"{len(document['tensors'])}, and of {same} of them every byte is the input's"
    if sample is not None:
        digest = sample.get("tokens_sha256")
        yield "sample", f"{code(facts.sample_name)}{f', tokens SHA-256 {code(digest)}' if digest else ''}"


def _engine(engine: Mapping[str, Any]) -> str:
    standing = engine.get("standing")
    return plain(engine_name(engine["engine"])) + (f" ({STANDINGS[standing]})" if standing else "")


def _title(found: str) -> str:
    """What a code means; messages are left out, for they name files of the machine."""
    return plain(catalogue()[found]["title"]) if found in catalogue() else ""


# In the order of the card.
SECTIONS: Mapping[str, Callable[[Facts], Iterator[str]]] = {
    "about": about,
    "launch": launch,
    "scores": scores,
    "provenance": provenance,
}
