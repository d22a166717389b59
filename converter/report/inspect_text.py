"""What `eagle3 inspect` found, as one screen of text."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from converter import seal
from converter.checks.as_it_is import Seen
from converter.drafter.points import describe_points
from converter.drafter.spec import NORM_FLAGS, DrafterSpec
from converter.look.inspect import LOWEST, Inspection, MapFacts
from converter.look.parts import Group
from converter.report.fields import STORED, field_words
from converter.report.inspected import seal_json
from converter.report.reading import engine_name
from converter.report.text import Printer
from converter.report.words import at_commit, clean, count, first_of, size
from converter.rules.forms import names_engine

_HEAPS = 12  # of unknown tensors that are shown without -v
_HOW = {
    "stated": "stated", "default": "by default", "derived": "derived", "given": "given", "fixed": "fixed",
}  # fmt: skip
_EMBEDDING = {
    "target's": "the target's rows, as they are",
    "trained": "trained on from the target's rows",
    "unrelated": "nothing to do with the target's rows",
    "unknown": "whether it is the target's is not known (--target FOLDER)",
    "absent": "",
}
_SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


class InspectPrinter(Printer):
    """One screen; `verbose` shows every field, name and group."""

    def inspected(self, it: Inspection) -> None:
        """What it is, its wiring, its parts and their cost, and what each engine would make of it."""
        self._headline(it)
        rows = [*self._wiring(it), *self._spec(it), *self._tensors(it), *self._engines(it), *self._cost(it)]
        self._grid(rows)
        self._last_line(it)

    def _headline(self, it: Inspection) -> None:
        subject, sealed = it.subject, seal_json(it.subject)
        checkpoint = subject.source.checkpoint
        files = ", ".join(f.name for f in subject.source.weights[:3])
        files += f" and {len(subject.source.weights) - 3} more" if len(subject.source.weights) > 3 else ""
        if sealed is not None:
            made_for = _made_for(sealed["engines"], seal.text_at(subject.seal or {}, "to"))
            self._fact(f"An output of eagle3-convert {sealed['made_by']}, {made_for}", "bold")
            origin = sealed["made_from"] or "nothing that its seal names"
            self._fact(f"made from {origin}; proof: {sealed['proof'] or 'none'}")
            reader = engine_name(sealed["read_as"])
            if reader or subject.is_output:
                self._fact(f"read here as {reader} reads it" if reader else "no engine of its seal reads its config")
        elif subject.dialect is not None:
            release = f" {subject.dialect.release}" if subject.dialect.release else ""
            told = ", ".join(subject.marks) or "--dialect, not by its marks"
            self._fact(f"{subject.dialect.title}{release} drafter", "bold")
            self._fact(f"told by {told}")
        refusal = it.refusal
        if refusal is not None or (subject.dialect is None and sealed is None):
            message = refusal.message if refusal is not None else "nothing here is known"
            self._fact(f"{'Not read' if subject.dialect else 'No drafter that is read here'}: {message}", "bold red")
            if refusal is not None and refusal.why:
                self._fact(refusal.why)
        origin = subject.source.given + at_commit(subject.source.commit)
        self._fact(f"{files}: {count(checkpoint.count, 'tensor')}, {size(checkpoint.nbytes)}, in {origin}")
        target = subject.target
        if target.architecture:
            depth = f", {target.layers} layers" if target.layers else ", depth unknown (--target)"
            self._fact(f"target {target.name + ': ' if target.name else ''}{target.architecture}{depth}")
        elif subject.drafter is not None:
            self._fact("target unknown (--target)")

    def _wiring(self, it: Inspection) -> Iterator[tuple[str, str]]:
        spec = it.subject.spec
        if spec is None:
            yield from self._found(it)
            return
        origin = spec.origins["capture_points"]
        how = "" if isinstance(it.subject.points, str) else f"   ({_HOW[origin.how]}: {origin.where or 'no key'})"
        yield "points", it.subject.points_words + how
        if it.perhaps:
            yield "", f"or perhaps {it.perhaps} (A109)"
        on = [name for name in NORM_FLAGS if getattr(spec, name)]
        off = [name for name in NORM_FLAGS if name not in on]
        yield "norms", "; ".join(f"{', '.join(names)}: {word}" for names, word in ((on, "on"), (off, "off")) if names)
        yield "rope", field_words(spec.rope)
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
        refusal, config = it.refusal, it.subject.source.config
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
                value = it.subject.unsaid.get(name) or field_words(getattr(spec, name))
                if name != "capture_points":
                    yield "spec", f"{name} = {value}   ({_HOW[origin.how]}: {origin.where or 'no key'})"
            return
        told = {"capture_points", "rope", "draft_vocab_size", "vocab_size", *NORM_FLAGS}
        by_origin: dict[str, list[str]] = {}
        for name, origin in spec.origins.items():
            if name not in told and name not in it.subject.unsaid:
                by_origin.setdefault(origin.how, []).append(f"{name} {field_words(getattr(spec, name))}")
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
            more = sum(len(g.names) for g in rest)
            yield "", f"and {more} more of {count(len(rest), 'kind')}, {size(sum(g.nbytes for g in rest))} (-v)"
        drafter = it.subject.drafter
        if drafter is not None and drafter.quantised:
            names = sorted(drafter.quantised)
            yield "quantised", f"{count(len(names), 'weight')}: {first_of(names, 3, self.verbose)}"

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
        step = f"{_scaled(cost.step_flops)}FLOP, {size(cost.step_bytes)} read ({cost.head_share:.0%} of it the head)"
        context = f"{_scaled(cost.context_flops)}FLOP, {size(cost.context_bytes)}"
        yield "", f"a draft token: {step}; and for each token of context {context}"
        first, fc = f"{_scaled(cost.first_flops)}FLOP", size(cost.first_bytes)
        yield "", f"a target state taken in: {first} more, and fc read once: {fc} (docs/metrics.md)"

    def _last_line(self, it: Inspection) -> None:
        asked = {"--target": it.asked.target, "--target-arch": it.asked.target_arch}
        options = [word for option, value in asked.items() if value for word in (option, str(value))]
        given = shlex.join([it.subject.source.given, *options])
        if it.subject.is_output:
            self._line(f"which engines serve it, and whether it is as it was sealed: eagle3 validate {given}")
            return
        errors, warnings = it.count("error"), it.count("warning")
        words = f"{count(errors, 'error')}, {count(warnings, 'warning')}"
        style = "bold red" if errors else "yellow" if warnings else ""
        dialect, told = it.subject.dialect, ""
        if dialect is not None and not it.subject.marks:
            release = f"=={dialect.release}" if names_engine(dialect.name) else ""
            told = f" --dialect {dialect.name}{release}"
        self._line(f"{words}: eagle3 validate {given}{told}", style)


def _made_for(engines: Sequence[str], to: str) -> str:
    if to:
        return f"in the form of {engine_name(to)}"
    return f"for {', '.join(map(engine_name, engines)) or 'no engine that it names'}"


def _frozen(frozen: bool | None) -> str:
    return {True: ", frozen by its trainer: rows of the target's head", False: ", trained", None: ""}[frozen]


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
    tensors = count(len(group.names), "tensor")
    return f"{clean(group.name):<{width}}  {tensors:<11} {'+'.join(group.dtypes):<9} {size(group.nbytes)}"


def _seen_words(seen: Seen, it: Inspection, verbose: bool) -> Iterator[str]:
    if seen.unreadable:
        yield seen.unreadable
        return
    yield _points_words(seen, it) + (f", only with {' '.join(seen.flags)}" if seen.flags else "")
    if seen.stops:
        yield f"but runs nothing: {seen.stops}"
    trained = it.subject.spec
    for name in seen.differs:
        theirs, meant = (field_words(getattr(spec, name)) for spec in (seen.spec, trained))
        yield f"reads {name} as {theirs}; {_meant(it)} {meant}"
    if seen.ignored:
        yield f"passes over {count(len(seen.ignored), 'tensor')}: {first_of(seen.ignored, 3, verbose)}"
    if seen.missing:
        yield f"leaves {count(len(seen.missing), 'parameter')} unloaded: {first_of(seen.missing, 3, verbose)}"
    every = it.subject.source.checkpoint.count
    yield f"loads {len(seen.loaded)} of {every} tensors; embedding: {seen.embedding}; head: {seen.head}"


def _points_words(seen: Seen, it: Inspection) -> str:
    if seen.points is None:
        return f"points unknown: {seen.unknown}"
    words = f"captures {describe_points(seen.points)}"
    same = it.as_trained(seen)
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


def _scaled(number: int) -> str:
    """`1.24 G`: three digits and the prefix of a unit."""
    for scale, prefix in _SCALES:
        if number >= 0.9995 * scale:  # which three digits round up to it
            return f"{number / scale:.3g} {prefix}"
    return f"{number} "
