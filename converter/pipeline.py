"""The way of a drafter through the house: open, recognise, read, check, plan, write, prove, put in place."""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converter import seal
from converter.checkpoint.reader import INDEX, Checkpoint, open_checkpoint
from converter.checkpoint.staging import Staging, normal, recover
from converter.checkpoint.writer import WrittenFile
from converter.checks.engine import CODES, compare
from converter.checks.points import check_points
from converter.checks.rows import check_embedding, check_head, recover_map, recovered
from converter.checks.suits import Suits, suits
from converter.checks.target import check_target
from converter.checks.tensors import check_tensors
from converter.drafter.drafter import Drafter, Embedding, Provenance
from converter.drafter.points import describe_points
from converter.drafter.quantised import quantised_weights
from converter.drafter.spec import DrafterSpec, differences
from converter.drafter.target import Target
from converter.drafter.vocab import VocabularyMap, decide
from converter.errors import InputError, OutputError, UsageError
from converter.findings import Finding, error, judge, note, stops
from converter.output import Progress, check_out, not_finite, write_weights
from converter.plan import Plan, make_plan
from converter.rules import loading
from converter.rules.dialect import Dialect, DialectReading, read, recognise
from converter.rules.engine import EngineRelease, nested, resolve
from converter.rules.fields import lookup
from converter.rules.ids import points_of
from converter.source import Source, open_source
from converter.target import named_target, read_target
from converter.target_weights import RowTable, TargetWeights, read_target_weights

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from converter.forward.prove import EngineSide, Proof
    from converter.forward.sample import Sample

INSTALL_TORCH = "--sample needs torch, which is not installed:  pip install 'eagle3-convert[torch]'"


@dataclass(frozen=True)
class Request:
    """What the user asked for; the options of the same names in `eagle3 convert --help`.

    engines   none: the newest SGLang where there is an OUT, the newest of every engine where there is none
    """

    source: str
    out: Path | None = None
    engines: tuple[str, ...] = ()
    target: Path | None = None
    target_arch: str = ""
    aux: tuple[int, ...] | None = None
    sample: Path | None = None
    device: str = "auto"
    min_accuracy: float | None = None
    dtype: str = ""
    allow: tuple[str, ...] = ()
    strict: bool = False
    force: bool = False
    dry_run: bool = False
    digest: bool = True
    command: tuple[str, ...] = ()


@dataclass
class Report:
    """Everything that is known at the end, in whatever state the run ended.

    outcome   converted, refused, planned (--dry-run) or validated
    """

    request: Request
    outcome: str = "refused"
    source: Source | None = None
    dialect: Dialect | None = None
    target: Target = field(default_factory=Target)
    engines: list[EngineRelease] = field(default_factory=list)
    drafter: Drafter | None = None
    plan: Plan | None = None
    findings: list[Finding] = field(default_factory=list)
    verdicts: dict[str, list[Finding]] = field(default_factory=dict)
    proof: Proof | None = None
    sample: Sample | None = None
    written: list[WrittenFile] = field(default_factory=list)
    suits: list[Suits] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def refused(self) -> bool:
        return stops(self.findings)

    @property
    def bytes_written(self) -> int:
        return sum(f.size for f in self.written)


def convert(request: Request, progress: Progress) -> Report:
    """Convert `request.source` to `request.out`; OUT is absent, as it was, or new and whole.

    Raises UsageError, InputError and OutputError; a refused drafter is a report with error findings.
    """
    assert request.out is not None
    _check_sample_option(request)
    report = _read(request)
    if not request.dry_run:
        recover(normal(request.out))
        check_out(request.out, request.source, request.force)
    if report.drafter is None or report.refused:
        return report
    assert report.source is not None
    planning = make_plan(report.drafter, report.engines, report.target, report.source, request.dtype)
    report.plan = planning.plan
    _add(report, planning.findings)
    if report.refused or report.plan is None:
        return report
    if request.dry_run:
        if request.sample is not None:  # nothing is staged: only the trainer's forward can be run
            _prove(report, None, [])
        report.outcome = "refused" if report.refused else "planned"
        return report
    try:
        _write(report, report.plan, progress)
    except OSError as problem:
        if problem.filename and Path(os.fsdecode(problem.filename)) in report.source.checkpoint.files:
            raise InputError(error("F100", f"cannot read {problem.filename}: {problem.strerror}")) from problem
        raise OutputError(
            f"cannot write {request.out}: {problem.strerror or problem}. It is as it was before; nothing was lost"
        ) from problem
    return report


def validate(request: Request) -> Report:
    """Check a drafter and say, for each engine, whether it can be converted; `sample` is run through the reference."""
    _check_sample_option(request)
    report = _read(request)
    if report.drafter is None:
        return report
    assert report.source is not None
    if report.refused:
        return report
    for engine in report.engines:
        planning = make_plan(report.drafter, [engine], report.target, report.source)
        report.verdicts[engine.requirement] = judge(planning.findings, request.allow, request.strict)
    if request.sample is not None:
        _prove(report, None, [])
    report.outcome = "refused" if report.refused or all(map(stops, report.verdicts.values())) else "validated"
    return report


# --- reading ------------------------------------------------------------------------------------------------


def _check_sample_option(request: Request) -> None:
    if request.sample is not None and importlib.util.find_spec("torch") is None:
        raise UsageError(INSTALL_TORCH)
    if request.min_accuracy is not None and request.sample is None:
        raise UsageError("--min-accuracy needs --sample: there is nothing to measure it on")


def _read(request: Request) -> Report:
    report = Report(request)
    wanted = request.engines or (("sglang",) if request.out is not None else tuple(loading.names("engines")))
    report.engines = [release for requirement in wanted for release in resolve(requirement)]
    report.source = source = open_source(request.source)
    recognition = recognise(source.config, source.checkpoint.tensors)
    if recognition.refusal is not None:
        _add(report, [recognition.refusal])
        return report
    if recognition.dialect is None:
        _add(report, [_unrecognised(source)])
        return report
    report.dialect = dialect = recognition.dialect
    target = read_target(request.target) if request.target is not None else Target()
    if request.target_arch:
        target = replace(target, architecture=request.target_arch)
    reading = read(dialect, source.config, source.checkpoint, target, request.aux)
    if not target.architecture:
        named = named_target("", reading.provenance)
        target = replace(named, layers=target.layers)
    report.target = target if target.name else replace(target, name=reading.provenance.target_name)
    _add(report, reading.findings)
    if reading.spec is None:
        return report
    _check(report, dialect, reading)
    return report


def _unrecognised(source: Source) -> Finding:
    document = seal.read_seal(source.folder)
    if document is not None:
        made_from = document.get("source", {}).get("given", "the trainer's own checkpoint")
        return error(
            "F112",
            "this folder is an output of eagle3-convert, for an engine; a trainer's checkpoint is expected",
            where=str(source.folder / seal.NAME),
            why="nothing is said of whether it is in order",
            fix=(f"give what it was made from: {made_from}",),
        )
    keys = ", ".join(sorted(source.config)[:6])
    return error(
        "F112",
        "the config is of no dialect that is known here",
        where=str(source.folder / "config.json"),
        found=f"keys {keys}, ..." if keys else "an empty config",
        expected=f"a drafter of {' or '.join(loading.load('dialects', n)['title'] for n in loading.names('dialects'))}",
    )


def _check(report: Report, dialect: Dialect, reading: DialectReading) -> None:
    assert report.source is not None and reading.spec is not None
    spec, checkpoint = reading.spec, report.source.checkpoint
    dropped = dict(reading.dropped)
    unknown = [f for f in reading.findings if f.code == "T101"]
    dropped |= {f.where: "not a tensor of this dialect; left out with --allow T101" for f in unknown}
    weights = _target_weights(report, spec)
    vocab, findings = _read_vocabulary(dialect, reading, checkpoint)
    if weights is not None and weights.head is not None:
        vocab, findings = _with_head_rows(dialect, reading, checkpoint, weights.head, vocab, findings)
    embedding: Embedding = "unknown" if "embed_tokens.weight" in reading.tensors else "absent"
    if embedding == "unknown" and weights is not None and weights.embedding is not None:
        own = reading.tensors["embed_tokens.weight"]
        if checkpoint.tensors[own].info.shape == (spec.vocab_size, weights.embedding.shape[1]):
            embedding, faults = check_embedding(checkpoint, own, weights.embedding)
            findings += faults
    fc = reading.tensors.get("fc.weight")
    stated = points_of(dialect.rules["ids"]["rule"], reading.stated_ids, None) if reading.stated_ids else None
    if stated is None:
        stated = _stated_points(dialect, report.source)
    quantised = quantised_weights(checkpoint, reading.tensors)
    findings += check_tensors(spec, checkpoint, reading.tensors, quantised, bool(reading.carried))
    findings += check_points(spec, checkpoint.tensors[fc].info.shape if fc else None, report.target, stated)
    findings += check_target(spec, reading.provenance, report.target)
    if report.target.layers is None:
        findings.append(_depth_unknown(spec))
    _add(report, findings)
    report.drafter = Drafter(
        checkpoint,
        spec,
        reading.provenance,
        reading.tensors,
        dropped,
        vocab,
        embedding,
        frozenset(quantised),
        reading.carried if quantised else {},
    )


def _depth_unknown(spec: DrafterSpec) -> Finding:
    return note(
        "A108",
        f"whether the target has {describe_points(spec.capture_points)} is not known, nor which layer is its last",
        why="engines leave a state out, or stop, where a point is the target's last layer or lies beyond it",
        fix=("to have it checked: --target FOLDER, its config.json, or org/name on the Hub",),
    )


def _target_weights(report: Report, spec: DrafterSpec) -> TargetWeights | None:
    target = report.request.target
    if target is None or report.target.hidden_size != spec.target_hidden_size:
        return None
    return read_target_weights(target, spec.vocab_size, spec.target_hidden_size)


def _with_head_rows(
    dialect: Dialect,
    reading: DialectReading,
    checkpoint: Checkpoint,
    table: RowTable,
    vocab: VocabularyMap | None,
    findings: list[Finding],
) -> tuple[VocabularyMap | None, list[Finding]]:
    """Verify the map on the target's head rows where the trainer freezes the head, or recover it where it was lost."""
    spec = reading.spec
    assert spec is not None
    head = reading.tensors.get("lm_head.weight")
    if head is None or checkpoint.tensors[head].info.shape != (spec.draft_vocab_size, table.shape[1]):
        return vocab, findings
    lost = next((f for f in findings if f.severity == "error"), None)
    if lost is not None:
        found = recover_map(spec, checkpoint, reading.tensors, table)
        return (vocab, findings) if found is None else (found, [recovered(found, lost, table)])
    return vocab, [*findings, *check_head(checkpoint, head, vocab, table, dialect.rules.get("head") == "frozen")]


def _stated_points(dialect: Dialect, source: Source) -> tuple[int, ...] | None:
    """The points that the config states, also where --aux replaces them."""
    for key in dialect.rules["fields"]["capture_points"]["keys"]:
        ids = lookup(source.config, key)
        if isinstance(ids, list) and all(isinstance(i, int) for i in ids):
            return points_of(dialect.rules["ids"]["rule"], ids, None)
    return None


def _read_vocabulary(
    dialect: Dialect, reading: DialectReading, checkpoint: Checkpoint
) -> tuple[VocabularyMap | None, list[Finding]]:
    import numpy as np

    assert reading.spec is not None
    arrays: dict[str, NDArray[Any] | None] = {}
    for canonical in ("d2t", "t2d"):
        name = reading.tensors.get(canonical)
        arrays[canonical] = None if name is None else checkpoint.read(name)
        if name is not None:
            info = checkpoint.tensors[name].info
            integer = info.dtype[0] in "IU" or (canonical == "t2d" and info.dtype == "BOOL")
            if not integer or len(info.shape) != 1:
                return None, [_no_map(name, info.dtype, info.shape)]
    marks = arrays["t2d"]
    return decide(
        arrays["d2t"],
        None if marks is None else marks.astype(np.bool_),
        reading.spec.vocab_size,
        reading.spec.draft_vocab_size,
        dialect.map_form,
    )


def _no_map(name: str, dtype: str, shape: tuple[int, ...]) -> Finding:
    return error(
        "V209",
        f"{name} is no vocabulary map",
        where=name,
        found=f"{dtype} {list(shape)}",
        expected="one row of integers" + (" or booleans" if name.endswith("t2d") else ""),
    )


def _add(report: Report, findings: Iterable[Finding]) -> None:
    report.findings = judge([*report.findings, *findings], report.request.allow, report.request.strict)


# --- writing ------------------------------------------------------------------------------------------------


def _write(report: Report, plan: Plan, progress: Progress) -> None:
    request, source = report.request, report.source
    assert request.out is not None and source is not None and report.drafter is not None
    started = time.monotonic()
    with Staging(request.out) as staging:
        input_digests: dict[str, str] = {}
        report.written = write_weights(report.drafter, plan, staging.folder, request.digest, progress, input_digests)
        _add(report, not_finite(report.written))
        config = staging.folder / "config.json"
        seal.write_json(config, nested(plan.config))
        for name in plan.carried:
            shutil.copyfile(source.folder / name, staging.folder / name)
        report.written += [
            WrittenFile(p.name, p.stat().st_size, seal.sha256_of(p))
            for p in [config, *(staging.folder / n for n in (INDEX, *plan.carried))]
            if p.exists()
        ]
        source.checkpoint.assert_unchanged()
        _read_back(report, plan, staging.folder)
        if report.refused:
            return
        document = seal.make_seal(
            command=request.command,
            given=request.source,
            config_file=source.folder / "config.json",
            plan=plan,
            written=report.written,
            input_digests=input_digests,
            proof=proof_json(report),
            findings=report.findings,
            target={"name": report.target.name, "architecture": report.target.architecture},
        )
        seal.write_json(staging.folder / seal.NAME, document)
        staging.commit(replace=request.force)
    report.seconds = time.monotonic() - started
    report.outcome = "converted"


def _read_back(report: Report, plan: Plan, folder: Path) -> None:
    """Hold what was written against what was meant, by each engine's rules, and run the sample."""
    checkpoint = open_checkpoint(folder)
    config = open_source(str(folder)).config
    known = {(f.code, f.message) for f in report.findings}
    for engine in plan.engines:
        again = compare(engine, plan.spec, config, list(checkpoint.tensors), report.target, plan.launch)
        _add(report, [f for f in again if (f.code, f.message) not in known])
    assert report.drafter is not None
    report.suits = [
        suits(name, plan.spec, config, list(checkpoint.tensors), report.target, report.drafter.embedding)
        for name in loading.names("engines")
    ]
    if report.refused or report.request.sample is None:
        return
    _prove(report, plan, [_engine_side(e, plan, checkpoint, config, report.target) for e in plan.engines])


def _engine_side(
    engine: EngineRelease, plan: Plan, checkpoint: Checkpoint, config: Mapping[str, Any], target: Target
) -> EngineSide:
    from converter.forward.prove import EngineSide

    view = engine.view(config, list(checkpoint.tensors), target, plan.launch)
    assert view.spec is not None
    return EngineSide(str(engine), view.spec, checkpoint, view.received, engine.replaces_embedding(view.spec))


def _prove(report: Report, plan: Plan | None, sides: Sequence[EngineSide]) -> None:
    """Run the sample for every engine (for the trainer alone where there is none); the worst proof is the proof."""
    from converter.forward.prove import choose_device, prove
    from converter.forward.sample import read_sample

    request, drafter = report.request, report.drafter
    assert request.sample is not None and drafter is not None
    device = choose_device(request.device)
    report.sample = read_sample(request.sample, drafter.spec)
    each: Sequence[EngineSide | None] = sides or [None]
    proofs = [prove(drafter, side, report.sample, device, request.min_accuracy) for side in each]
    report.proof = max(proofs, key=lambda p: (p.level == "none", p.difference or 0.0))
    for side, proof in zip(each, proofs, strict=True):
        cause = _cause(report, plan, side)
        _add(report, [replace(f, caused_by=cause) if f.code == "N102" else f for f in proof.findings])


def _cause(report: Report, plan: Plan | None, side: EngineSide | None) -> str:
    """The allowed finding that a disagreement with this engine follows from, "" where none explains it."""
    if plan is None or side is None:
        return ""
    codes = {CODES.get(field, "") for field in differences(plan.spec, side.spec)} | {"K131"}
    return next((f.code for f in report.findings if f.allowed and f.code in codes), "")


def proof_json(report: Report) -> dict[str, Any]:
    """The `proof` object of report and seal."""
    if report.proof is None:
        return {"level": "none", "sample": None, "scores": None, "largest_logit_difference": None,
                "embedding": "", "device": ""}  # fmt: skip
    from converter.forward.prove import as_json

    return as_json(report.proof, report.sample)


__all__ = ["Progress", "Provenance", "Report", "Request", "convert", "proof_json", "validate"]
