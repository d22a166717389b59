"""The report as JSON (schemas/report.schema.json). Fields are added, never renamed."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from converter import seal
from converter.drafter.points import describe_points
from converter.drafter.spec import FIELDS, DrafterSpec
from converter.pipeline import Report, proof_json
from converter.version import __version__

SCHEMA = "eagle3-convert/report/1"
DEFAULT_STEPS = 3  # where the trainer recommends none; SGLang's own default for most targets


def as_json(report: Report) -> dict[str, Any]:
    drafter, source = report.drafter, report.source
    out = report.request.out
    converted = report.outcome == "converted"
    return {
        "schema": SCHEMA,
        "tool": {"name": "eagle3-convert", "version": __version__},
        "command": list(report.request.command),
        "outcome": report.outcome,
        "input": {
            "given": report.request.source,
            "dialect": report.dialect.name if report.dialect else "",
            "release": report.dialect.release if report.dialect else "",
            "tensors": source.checkpoint.count if source else 0,
            "bytes": source.checkpoint.nbytes if source else 0,
        },
        "target": {
            "name": report.target.name,
            "architecture": report.target.architecture,
            "layers": report.target.layers,
            "where": report.target.where,
        },
        "engines": [
            {
                "engine": e.requirement,
                "proved_rules": e.proved,
                "newer_than_known": e.newer_than_known,
                "findings": [f.as_json() for f in report.verdicts.get(e.requirement, ())],
            }
            for e in report.engines
        ],
        "spec": spec_json(drafter.spec) if drafter else None,
        "wiring": describe_points(drafter.spec.capture_points) if drafter else "",
        "plan": report.plan.as_json() if report.plan else None,
        "findings": [f.as_json() for f in report.findings],
        "proof": proof_json(report),
        "output": {
            "folder": str(out),
            "bytes": report.bytes_written,
            "seconds": round(report.seconds, 3),
            "seal": str(out / seal.NAME),
        }
        if converted and out is not None
        else None,
        "suits": [s.as_json() for s in report.suits] if converted else [],
        "launch": launch_lines(report) if converted else [],
    }


def spec_json(spec: DrafterSpec) -> dict[str, Any]:
    """Every field of a spec with its value and where it came from."""
    fields: dict[str, Any] = {}
    for name in FIELDS:
        value = getattr(spec, name)
        if name == "rope":
            value = value.as_parameters()
        if name == "latent" and value is not None:
            value = asdict(value)
        origin = spec.origins[name]
        fields[name] = {
            "value": list(value) if isinstance(value, tuple) else value,
            "how": origin.how,
            "where": origin.where,
        }
    return fields


def launch_lines(report: Report) -> list[dict[str, Any]]:
    """One command per engine of the report: environment and words."""
    plan, drafter, out = report.plan, report.drafter, report.request.out
    if plan is None or drafter is None:
        return []
    steps = drafter.provenance.speculative_tokens or DEFAULT_STEPS
    lines = []
    for engine in plan.engines:
        target, folder = report.target, Path(out or "OUT").absolute()
        if Path(target.name).is_dir():
            target = replace(target, name=str(Path(target.name).absolute()))
        environment, command = engine.launch_command(target, str(folder), steps, plan.spec)
        lines.append({"engine": engine.requirement, "environment": environment, "command": command})
    return lines
