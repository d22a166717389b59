"""What `eagle3 inspect` found, as JSON (schemas/inspect.schema.json)."""

from __future__ import annotations

from typing import Any

from converter import seal
from converter.checks.as_it_is import Seen
from converter.look.inspect import Inspection
from converter.look.subject import Subject
from converter.report.document import plain_value, spec_json, tool_json

SCHEMA = "eagle3-convert/inspect/1"


def as_json(it: Inspection) -> dict[str, Any]:
    """The published form, the same whatever -v shows."""
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
        "seal": seal_json(subject),
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
            "perhaps": it.perhaps,
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
        "refusal": it.refusal.as_json() if it.refusal is not None else None,
    }


def seal_json(subject: Subject) -> dict[str, Any] | None:
    """What is said of the seal, which nobody has checked; None where there is none."""
    document = subject.seal
    if document is None:
        return None
    return {
        "made_from": seal.text_at(document, "source.given"),
        "made_by": seal.text_at(document, "tool.version"),
        "sealed_at": seal.text_at(document, "sealed_at"),
        "engines": seal.texts_at(document, "engines", "engine"),
        "proof": seal.text_at(document, "proof.level"),
        "read_as": subject.read_as,
    }


def _seen_json(seen: Seen, it: Inspection) -> dict[str, Any]:
    sides = {"trained": it.subject.spec, "engine": seen.spec}
    return {
        "engine": seen.engine.requirement,
        "proved_rules": seen.engine.proved,
        "newer_than_known": seen.engine.newer_than_known,
        "unreadable": seen.unreadable,
        "stops": seen.stops,
        "points": list(seen.points) if seen.points is not None else None,
        "as_trained": it.as_trained(seen),
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
