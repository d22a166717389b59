"""What `eagle3 seal verify` found, as text and as JSON (schemas/verify.schema.json)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from converter import gate, seal
from converter.report.document import tool_json
from converter.report.reading import engine_name
from converter.report.text import Printer
from converter.report.words import at_commit, count, first_of
from converter.verifying import Tensors, Verified

SCHEMA = "eagle3-convert/verify/1"
_SHOWN = 6  # names without -v
_SUMMARY = ("tool", "sealed_at", "source", "engines", "to", "target", "proof", "allowed")


# --- JSON -----------------------------------------------------------------------------------------------------


def as_json(it: Verified) -> dict[str, Any]:
    """The published form, with every file."""
    return {
        "schema": SCHEMA,
        "tool": tool_json(),
        "given": it.given,
        "commit": it.commit,
        "headline": headline(it),
        "in_order": it.in_order,
        "seal": None if it.sealed is None else {key: it.sealed[key] for key in _SUMMARY if key in it.sealed},
        "files": [
            {"name": f.name, "state": f.state, "size": f.size, "sealed_size": f.sealed, "tensors": _tensors_json(it, f)}
            for f in it.files
        ],
        "tensors_gone": list(it.gone),
        "rules_changed": list(it.rules),
        "signature": {
            "there": it.signed,
            "of": "" if it.trusted is None else it.trusted.words,
            "holds": it.signature_holds,
        },
        "findings": [f.as_json() for f in it.findings],
    }


def _tensors_json(it: Verified, file: seal.Compared) -> dict[str, Any] | None:
    tensors = it.tensors.get(file.name)
    if tensors is None:
        return None
    return {
        "changed": list(tensors.changed),
        "added": list(tensors.added),
        "unchanged": tensors.unchanged,
        "unknown": tensors.unknown,
        "unreadable": tensors.unreadable,
    }


def headline(it: Verified) -> str:
    """The verdict."""
    if it.sealed is None:
        return "Not sealed."
    if it.changed:
        return "Changed since it was sealed."
    unchanged = "unchanged, as far as sizes tell" if any(f.state == "same size" for f in it.files) else "unchanged"
    if it.signature_holds is None:
        return f"Sealed and {unchanged}."
    if it.signature_holds:
        return f"Sealed, signed and {unchanged}."
    return f"Sealed and {unchanged}, but {'the signature does not hold' if it.signed else 'not signed'}."


# --- text -----------------------------------------------------------------------------------------------------


class VerifiedPrinter(Printer):
    """The verdict, then what the seal says and what changed; `verbose` shows every file and name."""

    def verified(self, it: Verified) -> None:
        """The end of `eagle3 seal verify`."""
        self._line(headline(it), "bold" if it.in_order else "bold red")
        if not self.quiet:
            self._grid([*_facts(it), *self._changes(it)])
        self.findings(it.findings)

    def _changes(self, it: Verified) -> Iterator[tuple[str, str]]:
        for file in it.files:
            if file.differs:
                tensors = it.tensors.get(file.name)
                words = f"{file.name}: {self._tensors(tensors, file)}" if tensors is not None else str(file)
                yield "changed", words
            elif self.verbose:
                yield "as sealed", file.name + (" (size only)" if file.state == "same size" else "")
        if it.gone:
            yield "changed", f"no longer there: {self._some(it.gone)}"

    def _tensors(self, it: Tensors, file: seal.Compared) -> str:
        if it.unreadable:
            return f"cannot be read any more: {it.unreadable}"
        parts = []
        if it.changed:
            parts.append(f"{self._some(it.changed)} changed")
        if it.added:
            parts.append(f"{self._some(it.added)} came new")
        if not parts and not it.unknown and file.state != "added":
            parts.append("its header changed, and no tensor's bytes")
        if it.unknown:
            parts.append(f"{count(it.unknown, 'tensor')} sealed without a digest")
        kept = "as they were sealed" if file.state == "added" else "unchanged"
        parts.append(f"{count(it.unchanged, 'tensor')} {kept}")
        return f"{'not in the seal; ' if file.state == 'added' else ''}{'; '.join(parts)}"

    def _some(self, names: Sequence[str]) -> str:
        return first_of(names, _SHOWN, self.verbose)


def _facts(it: Verified) -> Iterator[tuple[str, str]]:
    yield "folder", it.where
    document = it.sealed
    if document is None:
        return
    source, target = document["source"], document["target"]
    yield "made from", source["given"] + at_commit(source.get("commit", ""))
    engines = ", ".join(map(engine_name, seal.texts_at(document, "engines", "engine")))
    yield "for", engines or f"the form of {document.get('to') or 'nothing that it names'}"
    layers = f", {target['layers']} layers" if target.get("layers") else ""
    yield "target", (target["architecture"] or target["name"] or "unknown") + layers
    yield "sealed", f"{document['sealed_at']} by eagle3-convert {document['tool']['version']}"
    yield "proof", _proof(document)
    if document["allowed"]:
        yield "allowed", ", ".join(document["allowed"])
    same = len(it.files) - len(it.changed)
    yield "files", f"{same} of {len(it.files)} as they were sealed"
    yield "signature", _signature(it)


def _proof(document: Mapping[str, Any]) -> str:
    level, scores, proof = gate.level_of(document), document["proof"]["scores"], document["proof"]
    if not scores or not scores.get("accuracy"):
        return level + (": static checks only" if level == "none" else "")
    first, *later = scores["accuracy"]
    interval = (scores.get("interval") or [None])[0]
    between = f" [{interval[0]:.1%} to {interval[1]:.1%}]" if interval else ""
    then = "".join(f", then {share:.1%}" for share in later)
    rows = f"{scores['rows'][0]:,} positions, " if scores.get("rows") else ""
    return f"{level}: accuracy {first:.1%}{between}{then} ({rows}on {proof['device']})"


def _signature(it: Verified) -> str:
    if it.trusted is None:
        return "there, not looked at (--signed KEY)" if it.signed else "none"
    if not it.signed:
        return f"none; expected one of {it.trusted.words}"
    return f"of {it.trusted.words}" if it.signature_holds else "not in order, see below"
