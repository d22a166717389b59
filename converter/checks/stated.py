"""What a config states, held against what was read of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from converter.checkpoint.reader import Checkpoint
from converter.drafter.points import NAME_THEM
from converter.findings import Finding, error, note, quoted, some_of, warning
from converter.rules import loading
from converter.rules.dialect import Dialect, DialectReading
from converter.rules.fields import keys_read, leaves, lookup
from converter.rules.recognition import whose_tensors


def check_stated(
    dialect: Dialect, reading: DialectReading, config: Mapping[str, Any], checkpoint: Checkpoint
) -> Iterator[Finding]:
    """A111 layer ids where none belong, C204 unknown keys, C226 another number of states, C244 a head that is tied and
    there.

    config, checkpoint   that were read, fused tensors whole
    """
    unread = _unread_ids(dialect, reading, config, checkpoint)
    said = {f.where for f in unread}
    yield from unread
    yield from (f for f in _unknown_keys(dialect, config) if f.where not in said)
    yield from _miscounted(reading, config)
    yield from _tied(reading, config)


def _miscounted(reading: DialectReading, config: Mapping[str, Any]) -> list[Finding]:
    """C226 where the config states another number of captured states than it names."""
    spec = reading.spec
    if spec is None or spec.origins["capture_points"].how != "stated":
        return []
    where = spec.origins["capture_points"].where
    return [
        warning(
            "C226",
            f"{key} and {where} do not say the same; the ids are used",
            where=key,
            found=f"{lookup(config, key)!r:.40} captured states",
            expected=f"{spec.num_points}, as many as {where} has",
            why="engines build fc for the number under this key, and feed it the states of the ids",
            fix=(f"set {key} to {spec.num_points}, or leave it out",),
        )
        for key in _counts(config)
        if lookup(config, key) not in (None, spec.num_points)
    ]


def _counts(config: Mapping[str, Any]) -> list[str]:
    """Keys of the config that say how many states are captured."""
    named = loading.load("", "common")["state_counts"]
    return [key for key in leaves(config) if key.rpartition(".")[2] in named]


def _unread_ids(
    dialect: Dialect, reading: DialectReading, config: Mapping[str, Any], checkpoint: Checkpoint
) -> list[Finding]:
    """A111 where the config names layers under a key in which this trainer writes none, so they are passed over."""
    spec = reading.spec
    if spec is None or spec.origins["capture_points"].how != "default" or not dialect.rules["recognise"]:
        return []  # an engine that is read as a dialect has no marks, and its default is what was asked for
    known = keys_read(dialect.rules["fields"])
    ends = tuple(loading.load("", "common")["layer_ids"])
    passed = [key for key in leaves(config) if key.endswith(ends) and key not in known and lookup(config, key)]
    if not passed:
        return []
    ids = lookup(config, passed[0])
    return [
        error(
            "A111",
            f"{passed[0]} names layers, and {dialect.title} drafters have none there",
            where=passed[0],
            found=quoted(ids),
            expected=f"no ids: {dialect.title} takes the capture points {dialect.rules['ids'].get('default', '')}",
            why="somebody else wrote them, and they mean other layers by who it was; unread, wrong states are fed",
            fix=(
                NAME_THEM,
                *(
                    f"or have it read as a drafter of {title}: --dialect {name}"
                    for name, title in whose_tensors(checkpoint.tensors).items()
                    if passed[0] in keys_read(loading.load("dialects", name)["fields"])
                ),
            ),
        )
    ]


def _tied(reading: DialectReading, config: Mapping[str, Any]) -> list[Finding]:
    """C244 where the config ties the head to the embedding and the checkpoint has a head of its own."""
    spec, tensors = reading.spec, reading.tensors
    if spec is None or spec.tie_word_embeddings or config.get("tie_word_embeddings") is not True:
        return []
    if "lm_head.weight" not in tensors:
        return []
    return [
        note(
            "C244",
            "tie_word_embeddings is true though the drafter has a head of its own; false is written",
            where="tie_word_embeddings",
            found=f"{tensors['lm_head.weight']} with a row for each of {spec.draft_vocab_size:,} draft tokens",
            expected="false",
            why="served as it lies there, an engine that reads the key takes the embedding for the head",
        )
    ]


_MOST_UNKNOWN = 100  # keys that have a finding of their own


def _unknown_keys(dialect: Dialect, config: Mapping[str, Any]) -> list[Finding]:
    rules = dialect.rules
    known = {mark["key"] for mark in rules["recognise"] if "key" in mark}
    known |= {*rules.get("ignore", {}), *rules.get("provenance", {}).values(), *rules.get("carry", ())}
    known |= {rules["release"]["key"]} if "release" in rules else set()
    known |= keys_read(rules["fields"])
    known |= set(_counts(config))
    why = "if it changes what the drafter computes, the engine will not know"
    # Neither it nor what it lies in.
    unknown = [leaf for leaf in leaves(config) if known.isdisjoint(accumulate(leaf.split("."), "{}.{}".format))]
    findings = [
        warning(
            "C204",
            f"config key {leaf} is not known to the {dialect.title} rules; it is not carried over",
            where=leaf,
            found=quoted(lookup(config, leaf)),
            why=why,
        )
        for leaf in unknown[:_MOST_UNKNOWN]
    ]
    if len(unknown) > _MOST_UNKNOWN:
        more = len(unknown) - _MOST_UNKNOWN
        findings.append(
            warning(
                "C204",
                f"{more:,} more config keys are not known to the {dialect.title} rules; they are not carried over",
                where="config.json",
                found=some_of(unknown[_MOST_UNKNOWN:]),
                why=why,
            )
        )
    return findings
