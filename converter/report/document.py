"""The report as JSON (schemas/report.schema.json). Fields are added, never renamed."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from converter import seal
from converter.drafter.points import describe_points
from converter.drafter.spec import FIELDS, DrafterSpec, Latent, Rope
from converter.drafter.target import Target
from converter.errors import Eagle3Error
from converter.proving import draft_steps, proof_json
from converter.report.verdict import headline, of_engine, vocabulary
from converter.rules.engine import EngineRelease
from converter.rules.forms import TrainerForm
from converter.rules.launch import launch_command, launch_preparation
from converter.run import Report
from converter.source import SIGNATURE
from converter.version import __version__

SCHEMA = "eagle3-convert/report/1"
_SEALED = ("sealed_at", "source", "files", "rules", "allowed")  # the rest of a seal is in the report itself


def as_json(report: Report) -> dict[str, Any]:
    """The document of a run of `convert` or `validate`, in whatever state it ended."""
    drafter, source = report.drafter, report.source
    out = report.request.out
    converted = report.outcome == "converted"
    return {
        "schema": SCHEMA,
        "tool": tool_json(),
        "command": list(report.request.command),
        "task": "validate" if out is None else "convert",
        "outcome": report.outcome,
        "headline": headline(report),
        "input": {
            "given": report.request.source,
            "commit": source.commit if source else "",
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
            "commit": report.target.commit,
        },
        "engines": [
            {
                "engine": e.requirement,
                "proved_rules": e.proved,
                "standing": e.standing,
                "newer_than_known": e.newer_than_known,
                "plugin": e.plugin,
                "verdict": of_engine(report, e).as_json(),
                "findings": [f.as_json() for f in report.verdicts.get(e.requirement, ())],
            }
            for e in report.engines
            if not isinstance(e, TrainerForm)
        ],
        "spec": spec_json(drafter.spec) if drafter else None,
        "wiring": describe_points(drafter.spec.capture_points) if drafter else "",
        "vocabulary": vocabulary(report) if drafter else "",
        "embedding": drafter.embedding if drafter else "",
        "plan": report.plan.as_json() if report.plan else None,
        "findings": [f.as_json() for f in report.findings],
        "baseline": report.held.as_json() if report.held is not None else None,
        "proof": report.sealed["proof"] if report.sealed else proof_json(report),
        "output": {
            "folder": str(out),
            "bytes": report.bytes_written,
            "seconds": round(report.seconds, 3),
            "seal": str(out / seal.NAME),
            "signature": str(out / SIGNATURE) if report.request.sign else "",
        }
        if converted and out is not None
        else None,
        "sealed": {key: report.sealed[key] for key in _SEALED} if converted else None,
        "suits": [s.as_json() for s in report.suits] if converted else [],
        "launch": launch_lines(report) if converted or report.outcome == "validated" else [],
    }


def tool_json() -> dict[str, str]:
    """What wrote a document."""
    return {"name": "eagle3-convert", "version": __version__}


def error_json(problem: Eagle3Error) -> dict[str, Any]:
    """What stands for a document where a command ended before there was one (schemas/error.schema.json)."""
    finding = problem.finding
    return {
        "schema": "eagle3-convert/error/1",
        "message": str(problem),
        "exit_code": problem.exit_code,
        "findings": [finding.as_json()] if finding is not None else [],
    }


def spec_json(spec: DrafterSpec) -> dict[str, Any]:
    """Every field of a spec with its value and where it came from."""
    fields: dict[str, Any] = {}
    for name in FIELDS:
        origin = spec.origins[name]
        fields[name] = {"value": plain_value(getattr(spec, name)), "how": origin.how, "where": origin.where}
    return fields


def plain_value(value: Any) -> Any:
    """A value of a spec field as JSON has it."""
    if isinstance(value, Rope):
        return value.as_parameters()
    if isinstance(value, Latent):
        return asdict(value)
    return list(value) if isinstance(value, tuple) else value


def launch_lines(report: Report) -> list[dict[str, Any]]:
    """One command per engine of the report that serves the output, or of `validate` the folder as it lies there:
    environment and words, and what has to be there first."""
    plan, drafter = report.plan, report.drafter
    if drafter is None or (plan is None and report.request.out is not None):
        return []
    steps = draft_steps(drafter.provenance)
    if plan is not None:
        engines, spec = plan.engines if plan.form is None else (), plan.spec
    else:
        engines = tuple(e for e in report.engines if of_engine(report, e).word == "works")
        spec = drafter.spec.ascending()
    folder = report.opened.folder if plan is None and report.opened else Path(report.request.out or "OUT")
    target, out = report.target.named_absolutely(), str(folder.absolute())
    return [launch_line(engine, target, out, steps, spec) for engine in engines]


def launch_line(engine: EngineRelease, target: Target, out: str, steps: int, spec: DrafterSpec) -> dict[str, Any]:
    """How one engine serves the drafter at `out`: a row of `launch` in a report."""
    environment, command = launch_command(engine, target, out, steps, spec)
    files, before = launch_preparation(engine, target, out, steps, spec)
    line = {"engine": engine.requirement, "environment": environment, "command": command}
    return line | {"files": files, "before": before}
