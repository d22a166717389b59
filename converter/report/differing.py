"""What `eagle3 diff` found, as text and as JSON (schemas/diff.schema.json)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from converter.drafter.points import describe_points
from converter.drafter.spec import NORM_FLAGS
from converter.look.diff import FEW, Difference, FieldPair, KeyPair, MapPair, TensorPair
from converter.look.subject import Subject
from converter.look.values import Measures
from converter.report.document import plain_value, tool_json
from converter.report.fields import STORED, field_words
from converter.report.text import Printer
from converter.report.words import at_commit, count, first_of

SCHEMA = "eagle3-convert/diff/1"
_SHOWN = 8  # tensors and keys that are shown without -v
_LONGEST = 60  # characters of a config value


# --- JSON -----------------------------------------------------------------------------------------------------


def as_json(it: Difference) -> dict[str, Any]:
    """The published form, with everything that is the same as well."""
    return {
        "schema": SCHEMA,
        "tool": tool_json(),
        "a": _side_json(it.a),
        "b": _side_json(it.b),
        "same": it.same,
        "wiring": {
            "same": it.wiring_same,
            "fields": [_field_json(pair) for pair in (*it.wiring, it.embedding)],
            "order": list(it.order),
            "map": {
                "same": it.map.same,
                "size_a": it.map.size_a,
                "size_b": it.map.size_b,
                "stored_a": it.map.stored_a,
                "stored_b": it.map.stored_b,
                "differing": it.map.differing,
                "same_ids": it.map.same_ids,
                "first": [{"draft": i, "a": a, "b": b} for i, a, b in it.map.first],
            },
        },
        "spec": [_field_json(pair) for pair in it.spec],
        "tensors": [_tensor_json(pair) for pair in it.tensors],
        "config": [{"key": k.key, "a": k.a, "b": k.b, "meaning": k.meaning} for k in it.config],
    }


def _side_json(subject: Subject) -> dict[str, Any]:
    return {
        "given": subject.source.given,
        "commit": subject.source.commit,
        "dialect": subject.dialect.name if subject.dialect is not None else "",
        "release": subject.dialect.release if subject.dialect is not None else "",
        "read_as": subject.reader.requirement if subject.reader is not None else "",
    }


def _field_json(pair: FieldPair) -> dict[str, Any]:
    return {"field": pair.name, "a": plain_value(pair.a), "b": plain_value(pair.b), "same": pair.same,
            "words": pair.words}  # fmt: skip


def _tensor_json(pair: TensorPair) -> dict[str, Any]:
    compared = pair.compared
    m = compared.measures if compared is not None else None
    return {
        "name": pair.name,
        "a": pair.a,
        "b": pair.b,
        "same": pair.same,
        "relation": compared.relation if compared is not None else "only in a" if pair.a else "only in b",
        "order": list(compared.order) if compared is not None else [],
        "expected_order": list(pair.expected),
        "measures": None
        if m is None
        else {
            "elements": m.elements,
            "differing": m.differing,
            "not_finite": m.not_finite,
            "max_abs": m.max_abs,
            "relative": m.relative,
            "cosine": m.cosine,
        },
        "meaning": pair.meaning,
    }


# --- text -----------------------------------------------------------------------------------------------------


class DiffPrinter(Printer):
    """The verdict, then wiring, spec, tensors and config; `verbose` shows all of each."""

    def differing(self, it: Difference) -> None:
        """The end of `eagle3 diff`."""
        self._line(_verdict(it), "bold" if it.same else "bold red")
        for label, side in (("a", it.a), ("b", it.b)):
            self._fact(f"{label}  {side.source.given}{at_commit(side.source.commit)}: {_side_words(side)}")
        rows = [*self._wiring(it), *self._spec(it), *self._tensors(it), *self._config(it)]
        self._grid(rows)

    def _wiring(self, it: Difference) -> Iterator[tuple[str, str]]:
        for pair in it.wiring:
            if pair.name in NORM_FLAGS and pair.same and not self.verbose:
                continue
            name = {"capture_points": "points"}.get(pair.name, pair.name)
            yield from _pair_rows(name, pair)
        flags = [pair.name for pair in it.wiring if pair.name in NORM_FLAGS and pair.same]
        on = [name for name in flags if getattr(it.a.spec, name)]
        if flags and not self.verbose:
            yield (
                "norms",
                f"the same: {', '.join(on) if on else 'none'} on"
                + ("" if len(flags) == len(NORM_FLAGS) else f", of {', '.join(flags)}"),
            )
        yield "map", _map_words(it.map)
        for draft, a, b in it.map.first:
            yield "", f"draft id {draft:,} -> target id {_id(a)} in a, {_id(b)} in b"
        if it.map.differing > len(it.map.first) and it.map.first:
            yield "", f"and {it.map.differing - FEW:,} more"
        yield from _pair_rows("embedding", it.embedding)

    def _spec(self, it: Difference) -> Iterator[tuple[str, str]]:
        told = [pair for pair in it.spec if self.verbose or not pair.same]
        for pair in told:
            yield from _pair_rows(pair.name, pair)
        same = sum(pair.same is True for pair in it.spec)
        if not self.verbose:
            yield "spec", f"{same} {'other ' if told else ''}fields are the same"

    def _tensors(self, it: Difference) -> Iterator[tuple[str, str]]:
        differing = [p for p in it.tensors if not p.same]
        moved = [p for p in it.tensors if p.same and not p.meaning and p.compared and p.compared.relation != "equal"]
        nothing = [p for p in it.tensors if p.meaning]
        equal = [p for p in it.tensors if p.same and not p.meaning and p not in moved]
        renamed = sum(p.a != p.b for p in equal)
        names = f", {renamed} under another name" if renamed else ""
        yield "tensors", f"{len(equal)} are equal, byte for byte{names}"
        for pair in (*differing, *moved):
            yield "tensors", _tensor_words(pair)
        shown = nothing if self.verbose else []
        for pair in shown:
            yield "tensors", f"{_names(pair)}: means nothing ({pair.meaning})"
        if nothing and not shown:
            yield (
                "",
                f"{_names(nothing[0])}: {nothing[0].meaning}"
                if len(nothing) == 1
                else (f"{len(nothing)} say nothing of the drafter: {first_of([p.name for p in nothing], _SHOWN)}"),
            )
        if self.verbose:
            for pair in equal:
                yield "tensors", f"{_names(pair)}: equal"

    def _config(self, it: Difference) -> Iterator[tuple[str, str]]:
        matter = [k for k in it.config if k.meaning in ("unknown", "carried")]
        for key in matter:
            why = "the rules do not know it" if key.meaning == "unknown" else "it goes over to engines as it is"
            yield "config", f"{_key_words(key)}   ({why})"
        rest = [k for k in it.config if k not in matter]
        if self.verbose:
            for key in rest:
                why = "read into fields above" if key.meaning == "read" else "means nothing"
                yield "config", f"{_key_words(key)}   ({why})"
            return
        only_a, only_b = sum(k.b is None for k in rest), sum(k.a is None for k in rest)
        counts = (f"{only_a} only in a", f"{only_b} only in b", f"{len(rest) - only_a - only_b} with other values")
        if rest:
            yield "config", f"keys that change nothing beyond the fields above: {', '.join(counts)} (-v)"
        elif not matter:
            yield "config", "every key is the same"


def _verdict(it: Difference) -> str:
    if it.same:
        how = ", its blocks of fc in another order, as its capture points are" if it.order else ""
        return f"The same drafter{how}."
    parts = [p.name for p in (*it.wiring, it.embedding, *it.spec) if p.same is False]
    parts += [] if it.map.same else ["the vocabulary map"]
    tensors = [p for p in it.tensors if not p.same]
    parts += [p.name for p in tensors[:3]] + ([f"{len(tensors) - 3} more tensors"] if len(tensors) > 3 else [])
    keys = [k for k in it.config if k.meaning in ("unknown", "carried")]
    parts += [count(len(keys), "config key")] if keys else []
    return f"They differ: {', '.join(parts)}."


def _side_words(subject: Subject) -> str:
    if subject.dialect is None:
        engines = ", ".join(map(str, subject.sealed_for))
        return f"an output of this tool for {engines}, as {subject.reader} reads it"
    release = f" {subject.dialect.release}" if subject.dialect.release else ""
    return f"{subject.dialect.title}{release} drafter" + (", written by this tool" if subject.seal is not None else "")


def _pair_rows(name: str, pair: FieldPair) -> Iterator[tuple[str, str]]:
    a, b = (_words(pair.name, value) for value in (pair.a, pair.b))
    if pair.same and a == b:
        yield name, f"the same: {a}"
        return
    yield name, f"a  {a}"
    yield "", f"b  {b}" + (f"   ({pair.words})" if pair.words else "")


def _words(name: str, value: Any) -> str:
    if name == "capture_points":
        return value if isinstance(value, str) else describe_points(value)
    return field_words(value)


def _map_words(pair: MapPair) -> str:
    sizes = [f"{n:,}" if n is not None else "none that can be read" for n in (pair.size_a, pair.size_b)]
    if pair.size_a is None or pair.size_b is None:
        return f"a  {sizes[0]}; b  {sizes[1]}"
    if pair.same:
        return f"the same {sizes[0]} target ids{_stored_words(pair)}"
    sized = f"{sizes[0]} in a, {sizes[1]} in b; " if pair.size_a != pair.size_b else ""
    kind = ", the same target ids in another order" if pair.same_ids else ""
    return f"{sized}{pair.differing:,} of {max(pair.size_a, pair.size_b):,} entries differ{kind}"


def _stored_words(pair: MapPair) -> str:
    """How the two are stored, where that is not the same."""
    if pair.stored_a == pair.stored_b:
        return ""
    return "".join(f", in {side} {STORED[form]}" for side, form in (("a", pair.stored_a), ("b", pair.stored_b)))


def _id(value: int | None) -> str:
    return "none" if value is None else f"{value:,}"


def _names(pair: TensorPair) -> str:
    if pair.a and pair.b:
        return pair.a if pair.a == pair.b else f"{pair.a} / {pair.b}"
    return f"{pair.a or pair.b} (only in {'a' if pair.a else 'b'})"


def _tensor_words(pair: TensorPair) -> str:
    compared = pair.compared
    if compared is None:
        return f"{_names(pair)}"
    blocks = ", ".join(str(i + 1) for i in compared.order)
    in_order = f" with a's blocks in the order {blocks}" if compared.order else ""
    expected = ", ".join(str(i + 1) for i in pair.expected)
    what = {
        "equal": "equal, byte for byte",
        "permuted": f"equal, byte for byte,{in_order}",
        "equal values": f"the same numbers in other bytes{in_order}",
        "equal when rounded": f"the same numbers once the wider is rounded to the narrower{in_order}",
        "shape": "of different shapes",
        "not compared": "stored in ways that are not compared here",
        "differs": f"differ{in_order}",
    }[compared.relation]
    if pair.expected and compared.order == pair.expected:
        what += ", as the capture points are"
    elif compared.order != pair.expected and compared.relation != "shape":
        wanted = f"in the order {expected}" if expected else "in the order of a"
        what += f", though the capture points ask for them {wanted}"
    stored = ""
    if compared.relation in ("shape", "not compared", "equal values", "equal when rounded"):
        stored = f": {_stored(pair)}"
    return f"{_names(pair)}: {what}{stored}" + _measures(compared.measures)


def _stored(pair: TensorPair) -> str:
    return "; ".join(f"{label} {form}" for label, form in (("a", pair.form_a), ("b", pair.form_b)) if form)


def _measures(m: Measures | None) -> str:
    if m is None:
        return ""
    parts = [f" in {m.differing:,} of {m.elements:,} values"]
    if m.max_abs is not None:
        parts.append(f"at most {m.max_abs:.3g}")
    if m.relative is not None:
        parts.append(f"relative {m.relative:.3g}")
    if m.cosine is not None:
        parts.append(f"cosine {m.cosine:.6f}")
    if m.not_finite:
        parts.append(f"{m.not_finite:,} not finite")
    return ", ".join(parts)


def _key_words(key: KeyPair) -> str:
    a, b = (_short(value) for value in (key.a, key.b))
    if key.b is None:
        return f"{key.key} = {a}, only in a"
    if key.a is None:
        return f"{key.key} = {b}, only in b"
    return f"{key.key}: a {a}; b {b}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
