"""What `eagle3 inspect` found, as one screen of text and as JSON (schemas/inspect.schema.json)."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from converter.drafter.points import describe_points
from converter.drafter.spec import NORM_FLAGS, DrafterSpec, Rope
from converter.drafter.spec import shown_value as shown
from converter.findings import Finding
from converter.look.engines import Seen
from converter.look.inspect import LOWEST, Inspection, MapFacts
from converter.look.parts import Group
from converter.look.subject import Subject
from converter.report.document import plain_value, spec_json, tool_json
from converter.report.text import Printer
from converter.report.words import at_commit, clean, first_of, size
from converter.rules.forms import names_engine

SCHEMA = "eagle3-convert/inspect/1"
_HEAPS = 12  # of unknown tensors that are shown without -v
_HOW = {
    "stated": "stated", "default": "by default", "derived": "derived", "given": "given", "fixed": "fixed",
}  # fmt: skip
STORED = {
    "offsets": "stored as offsets", "ids": "stored as ids", "t2d": "no d2t, made from t2d",
    "head": "recovered from the head's rows", "": "no map, as the target has it",
}  # fmt: skip
_EMBEDDING = {
    "target's": "the target's rows, as they are",
    "trained": "trained on from the target's rows",
    "unrelated": "nothing to do with the target's rows",
    "unknown": "whether it is the target's is not known (--target FOLDER)",
    "absent": "",
}
_SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


# --- JSON -----------------------------------------------------------------------------------------------------


def as_json(it: Inspection) -> dict[str, Any]:
    subject = it.subject
    checkpoint, dialect, target = subject.source.checkpoint, subject.dialect, subject.target
    known = subject.drafter is not None and not isinstance(subject.points, str)
    spec = spec_json(subject.spec) if subject.spec is not None else None
    if spec is not None and not known:
        spec["capture_points"]["value"] = []
    return {
        "schema": SCHEMA,
        "tool": tool_json(),
        "input": {
            "given": subject.source.given,
            "commit": subject.source.commit,
            "files": [f.name for f in subject.source.weights],
            "tensors": checkpoint.count,
            "bytes": checkpoint.nbytes,
        },
        "dialect": None
        if dialect is None
        else {"name": dialect.name, "title": dialect.title, "release": dialect.release, "marks": list(subject.marks)},
        "seal": _seal_json(it),
        "target": {
            "name": target.name,
            "architecture": target.architecture,
            "layers": target.layers,
            "where": target.where,
            "commit": target.commit,
        },
        "spec": spec,
        "unsaid": dict(subject.unsaid),
        "points": {
            "trained": list(subject.points) if known else None,
            "words": subject.points_words,
            "perhaps": _perhaps(subject.findings),
        },
        "tensors": [
            {
                "group": g.name,
                "names": list(g.names),
                "dtypes": list(g.dtypes),
                "elements": g.elements,
                "bytes": g.nbytes,
            }
            for g in it.groups
        ],
        "map": None
        if it.map is None
        else {
            "stored": it.map.source,
            "agrees_with_t2d": it.map.agrees,
            "identity": it.map.identity,
            "lowest": it.map.lowest,
            "special": [
                {"key": key, "id": i, "drafted": held} for key, ids in it.map.special.items() for i, held in ids.items()
            ],
        },
        "owners": None
        if it.owners is None
        else {
            "embedding": it.owners.embedding,
            "embedding_is": it.owners.embedding_is,
            "embedding_trained": it.owners.embedding_trained,
            "head": it.owners.head,
            "head_frozen": it.owners.head_frozen,
        },
        "quantised": sorted(subject.drafter.quantised) if subject.drafter is not None else [],
        "engines": [_seen_json(seen, it) for seen in it.engines],
        "cost": None
        if it.cost is None
        else {
            "parameters": it.cost.parameters,
            "embedding_parameters": it.cost.embedding_parameters,
            "step_flops": it.cost.step_flops,
            "step_bytes": it.cost.step_bytes,
            "first_flops": it.cost.first_flops,
            "first_bytes": it.cost.first_bytes,
            "context_flops": it.cost.context_flops,
            "context_bytes": it.cost.context_bytes,
            "head_share": it.cost.head_share,
        },
        "findings": {
            "errors": it.count("error"),
            "warnings": it.count("warning"),
            "codes": sorted({f.code for f in subject.findings}),
        },
        "refusal": refusal.as_json() if (refusal := _refusal(it)) is not None else None,
    }


def _seal_json(it: Inspection) -> dict[str, Any] | None:
    document = it.subject.seal
    if document is None:
        return None
    source, tool, proof = (document.get(key) for key in ("source", "tool", "proof"))
    rows = document.get("engines")
    named = [row.get("engine") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return {
        "made_from": _text(source, "given"),
        "made_by": _text(tool, "version"),
        "sealed_at": _text(document, "sealed_at"),
        "engines": [str(name) for name in named],
        "proof": _text(proof, "level"),
        "read_as": _read_as(it.subject),
    }


def _read_as(subject: Subject) -> str:
    """The release by whose rules an output was read; "" where none could."""
    if subject.drafter is None:
        return ""
    if subject.dialect is not None:
        return "==".join(filter(None, (subject.dialect.name, subject.dialect.release)))
    return subject.sealed_for[0].requirement


def _text(node: Any, key: str) -> str:
    value = node.get(key) if isinstance(node, dict) else None
    return value if isinstance(value, str) else ""


def _seen_json(seen: Seen, it: Inspection) -> dict[str, Any]:
    sides = {"trained": it.subject.spec, "engine": seen.spec}
    return {
        "engine": seen.engine.requirement,
        "proved_rules": seen.engine.proved,
        "newer_than_known": seen.engine.newer_than_known,
        "unreadable": seen.unreadable,
        "stops": seen.stops,
        "points": list(seen.points) if seen.points is not None else None,
        "as_trained": _as_trained(seen, it),
        "unknown": seen.unknown,
        "flags": list(seen.flags),
        "differs": [
            {"field": name, **{who: plain_value(getattr(spec, name)) for who, spec in sides.items()}}
            for name in seen.differs
        ],
        "loaded": list(seen.loaded),
        "missing": list(seen.missing),
        "ignored": list(seen.ignored),
        "embedding": seen.embedding,
        "head": seen.head,
    }


def _as_trained(seen: Seen, it: Inspection) -> bool | None:
    """Whether the points are the trainer's, in the order of fc's blocks; None where one side is not known."""
    trained = it.subject.points
    return None if seen.points is None or isinstance(trained, str) else seen.points == trained


def _perhaps(findings: Iterable[Finding]) -> str:
    """Another meaning that the ids may have; "" where they have one."""
    return next((f.expected.removeprefix("perhaps ") for f in findings if f.code == "A109"), "")


def _refusal(it: Inspection) -> Finding | None:
    """Why the folder is not read as a drafter; None where it is."""
    errors = [f for f in it.subject.findings if f.severity == "error"]
    return errors[0] if errors and it.subject.spec is None else None


# --- text -----------------------------------------------------------------------------------------------------


class InspectPrinter(Printer):
    """One screen; `verbose` shows every field, name and group."""

    def inspected(self, it: Inspection) -> None:
        self._headline(it)
        rows = [*self._wiring(it), *self._spec(it), *self._tensors(it), *self._engines(it), *self._cost(it)]
        self._grid(rows)
        self._last_line(it)

    def _headline(self, it: Inspection) -> None:
        subject, seal = it.subject, _seal_json(it)
        checkpoint = subject.source.checkpoint
        files = ", ".join(f.name for f in subject.source.weights[:3])
        files += f" and {len(subject.source.weights) - 3} more" if len(subject.source.weights) > 3 else ""
        if seal is not None:
            made_for = _made_for(seal["engines"], _text(subject.seal, "to"))
            self._fact(f"An output of eagle3-convert {seal['made_by']}, {made_for}", "bold")
            origin = seal["made_from"] or "nothing that its seal names"
            self._fact(f"made from {origin}; proof: {seal['proof'] or 'none'}")
            reader = seal["read_as"].replace("==", " ")
            if reader or subject.is_output:
                self._fact(f"read here as {reader} reads it" if reader else "no engine of its seal reads its config")
        elif subject.dialect is not None:
            release = f" {subject.dialect.release}" if subject.dialect.release else ""
            told = ", ".join(subject.marks) or "--dialect, not by its marks"
            self._fact(f"{subject.dialect.title}{release} drafter", "bold")
            self._fact(f"told by {told}")
        refusal = _refusal(it)
        if refusal is not None or (subject.dialect is None and seal is None):
            message = refusal.message if refusal is not None else "nothing here is known"
            self._fact(f"{'Not read' if subject.dialect else 'No drafter that is read here'}: {message}", "bold red")
            if refusal is not None and refusal.why:
                self._fact(refusal.why)
        origin = subject.source.given + at_commit(subject.source.commit)
        self._fact(f"{files}: {checkpoint.count} tensors, {size(checkpoint.nbytes)}, in {origin}")
        target = subject.target
        if target.architecture:
            depth = f", {target.layers} layers" if target.layers else ", depth unknown (--target)"
            self._fact(f"target {target.name + ': ' if target.name else ''}{target.architecture}{depth}")
        elif subject.drafter is not None:
            self._fact("target unknown (--target)")

    def _fact(self, text: str, style: str = "") -> None:
        """One line, also where a stranger's name holds a line break."""
        self._line(" ".join(text.split("\n")), style)

    def _wiring(self, it: Inspection) -> Iterator[tuple[str, str]]:
        spec = it.subject.spec
        if spec is None:
            yield from self._found(it)
            return
        origin = spec.origins["capture_points"]
        how = "" if isinstance(it.subject.points, str) else f"   ({_HOW[origin.how]}: {origin.where or 'no key'})"
        yield "points", it.subject.points_words + how
        if perhaps := _perhaps(it.subject.findings):
            yield "", f"or perhaps {perhaps} (A109)"
        on = [name for name in NORM_FLAGS if getattr(spec, name)]
        off = [name for name in NORM_FLAGS if name not in on]
        yield "norms", "; ".join(f"{', '.join(names)}: {word}" for names, word in ((on, "on"), (off, "off")) if names)
        yield "rope", _rope_words(spec.rope)
        yield "vocabulary", _map_words(spec, it.map)
        owners = it.owners
        assert owners is not None
        likeness = _EMBEDDING.get(owners.embedding_is, "")
        perhaps_trained = "; training may have changed it" if owners.embedding_trained else ""
        own = f"own {spec.vocab_size:,} x {spec.hidden_size:,}{': ' if likeness else ''}{likeness}{perhaps_trained}"
        yield "embedding", own if owners.embedding == "own" else "none of its own: engines take the target's"
        yield (
            "head",
            {
                "own": f"own {spec.draft_vocab_size:,} x {spec.hidden_size:,}{_frozen(owners.head_frozen)}",
                "the embedding": "the embedding (tied)",
                "none": "none, though its config ties nothing: engines would have nothing to compute with",
            }[owners.head],
        )

    def _found(self, it: Inspection) -> Iterator[tuple[str, str]]:
        """What there is where no spec could be read."""
        refusal, config = _refusal(it), it.subject.source.config
        if refusal is not None and refusal.where:
            yield "where", refusal.where
        if refusal is not None and refusal.found:
            yield "found", refusal.found
        yield "config", first_of(sorted(config), _HEAPS, self.verbose) or "empty"

    def _spec(self, it: Inspection) -> Iterator[tuple[str, str]]:
        spec = it.subject.spec
        if spec is None:
            return
        if self.verbose:
            for name, origin in spec.origins.items():
                value = it.subject.unsaid.get(name) or value_words(getattr(spec, name))
                if name != "capture_points":
                    yield "spec", f"{name} = {value}   ({_HOW[origin.how]}: {origin.where or 'no key'})"
            return
        told = {"capture_points", "rope", "draft_vocab_size", "vocab_size", *NORM_FLAGS}
        by_origin: dict[str, list[str]] = {}
        for name, origin in spec.origins.items():
            if name not in told and name not in it.subject.unsaid:
                by_origin.setdefault(origin.how, []).append(f"{name} {shown(getattr(spec, name))}")
        for how in _HOW:
            if how in by_origin:
                yield _HOW[how], ", ".join(by_origin[how])
        for name, words in it.subject.unsaid.items():
            yield "unsaid", f"{name}: {words}"

    def _tensors(self, it: Inspection) -> Iterator[tuple[str, str]]:
        known = bool(it.subject.tensors)
        groups = it.groups if known or self.verbose else it.groups[:_HEAPS]
        width = max((len(clean(g.name)) for g in groups), default=0)
        for group in groups:
            yield "tensors", _group_words(group, width)
            if self.verbose and known:
                yield "", ", ".join(group.names)
        if len(groups) < len(it.groups):
            rest = it.groups[len(groups) :]
            count = sum(len(g.names) for g in rest)
            yield "", f"and {count} more of {len(rest)} kinds, {size(sum(g.nbytes for g in rest))} (-v)"
        drafter = it.subject.drafter
        if drafter is not None and drafter.quantised:
            names = sorted(drafter.quantised)
            yield "quantised", f"{len(names)} weights: {first_of(names, 3, self.verbose)}"

    def _engines(self, it: Inspection) -> Iterator[tuple[str, str]]:
        """What each release makes of the folder as it is, before any conversion."""
        for seen in it.engines:
            for i, words in enumerate(_seen_words(seen, it, self.verbose)):
                plugin = f" with the plugin {seen.engine.plugin}" if seen.engine.plugin else ""
                yield "as it is", f"{seen.engine}{plugin}: {words}" if i == 0 else f"  {words}"

    def _cost(self, it: Inspection) -> Iterator[tuple[str, str]]:
        cost = it.cost
        if cost is None:
            return
        own = f", {cost.embedding_parameters:,} of them its embedding's" if cost.embedding_parameters else ""
        yield "cost", f"{cost.parameters:,} parameters{own}"
        yield (
            "",
            (
                f"a draft token: {_scaled(cost.step_flops)}FLOP, {size(cost.step_bytes)} read "
                f"({cost.head_share:.0%} of it the head); and for each token of context "
                f"{_scaled(cost.context_flops)}FLOP, {size(cost.context_bytes)}"
            ),
        )
        yield (
            "",
            (
                f"a target state taken in: {_scaled(cost.first_flops)}FLOP more, and fc read once: "
                f"{size(cost.first_bytes)} (docs/metrics.md)"
            ),
        )

    def _last_line(self, it: Inspection) -> None:
        asked = {"--target": it.asked.target, "--target-arch": it.asked.target_arch}
        options = [word for option, value in asked.items() if value for word in (option, str(value))]
        given = shlex.join([it.subject.source.given, *options])
        if it.subject.is_output:
            self._line(f"which engines serve it, and whether it is as it was sealed: eagle3 validate {given}")
            return
        errors, warnings = it.count("error"), it.count("warning")
        words = f"{errors} error{'' if errors == 1 else 's'}, {warnings} warning{'' if warnings == 1 else 's'}"
        style = "bold red" if errors else "yellow" if warnings else ""
        dialect = it.subject.dialect
        told = f" --dialect {dialect.name}" if dialect is not None and not it.subject.marks else ""
        release = f"=={dialect.release}" if told and dialect is not None and names_engine(dialect.name) else ""
        self._line(f"{words}: eagle3 validate {given}{told}{release}", style)


def _made_for(engines: Sequence[str], to: str) -> str:
    if to:
        return f"in the form of {to.replace('==', ' ')}"
    return f"for {', '.join(name.replace('==', ' ') for name in engines) or 'no engine that it names'}"


def _frozen(frozen: bool | None) -> str:
    return {True: ", frozen by its trainer: rows of the target's head", False: ", trained", None: ""}[frozen]


def _rope_words(rope: Rope) -> str:
    more = "".join(f", {name} {shown(value)}" for name, value in rope.parameters)
    return f"{rope.kind}, theta {rope.theta:,.10g}{more}"


def _map_words(spec: DrafterSpec, facts: MapFacts | None) -> str:
    if not spec.reduced_vocabulary and (facts is None or not facts.source):
        return f"{spec.draft_vocab_size:,}, the target's own, no map"
    sizes = f"{spec.draft_vocab_size:,} of {spec.vocab_size:,}"
    if facts is None:
        return f"{sizes}, and no map that can be read"
    agrees = {True: ", agrees with t2d", False: ", DISAGREES with t2d", None: ", no t2d"}[facts.agrees]
    identity = ", draft id i is target id i" if facts.identity else ""
    held = f"; {facts.lowest} of the target's first {min(LOWEST, spec.vocab_size)} ids"
    special = "".join(
        f"; {key.removesuffix('_token_id')} {i} {'in' if there else 'NOT in'} it"
        for key, ids in facts.special.items()
        for i, there in ids.items()
    )
    return f"{sizes}, {STORED[facts.source]}{agrees if facts.source != 't2d' else ''}{identity}{held}{special}"


def _group_words(group: Group, width: int) -> str:
    count = f"{len(group.names)} tensor{'' if len(group.names) == 1 else 's'}"
    return f"{clean(group.name):<{width}}  {count:<11} {'+'.join(group.dtypes):<9} {size(group.nbytes)}"


def _seen_words(seen: Seen, it: Inspection, verbose: bool) -> Iterator[str]:
    if seen.unreadable:
        yield seen.unreadable
        return
    yield _points_words(seen, it) + (f", only with {' '.join(seen.flags)}" if seen.flags else "")
    if seen.stops:
        yield f"but runs nothing: {seen.stops}"
    trained = it.subject.spec
    for name in seen.differs:
        theirs, meant = (value_words(getattr(spec, name)) for spec in (seen.spec, trained))
        yield f"reads {name} as {theirs}; {_meant(it)} {meant}"
    if seen.ignored:
        yield f"passes over {len(seen.ignored)} tensors: {first_of(seen.ignored, 3, verbose)}"
    if seen.missing:
        yield f"leaves {len(seen.missing)} parameters unloaded: {first_of(seen.missing, 3, verbose)}"
    every = it.subject.source.checkpoint.count
    yield f"loads {len(seen.loaded)} of {every} tensors; embedding: {seen.embedding}; head: {seen.head}"


def _points_words(seen: Seen, it: Inspection) -> str:
    if seen.points is None:
        return f"points unknown: {seen.unknown}"
    words = f"captures {describe_points(seen.points)}"
    same = _as_trained(seen, it)
    if same is None:
        return words
    if same:
        return f"{words}, as {_meant(it)}"
    trained = it.subject.points
    if sorted(trained) == sorted(seen.points):
        return f"{words}, NOT in the order of fc's blocks: {it.subject.points_words}"
    return f"{words}, NOT as {_meant(it)}: {it.subject.points_words}"


def _meant(it: Inspection) -> str:
    return "converted" if it.subject.is_output else "trained"


def value_words(value: Any) -> str:
    """A value of a spec field for people."""
    return _rope_words(value) if isinstance(value, Rope) else shown(value)


def _scaled(count: int) -> str:
    """`1.24 G`: three digits and the prefix of a unit."""
    for scale, prefix in _SCALES:
        if count >= scale:
            return f"{count / scale:.3g} {prefix}"
    return f"{count} "
