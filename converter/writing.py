"""The last arrows of convert(): a staging folder that is written, read back, proved, sealed, and put in OUT's place."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from converter import proving, seal
from converter.checkpoint.jsonfile import reading
from converter.checkpoint.reader import INDEX, open_checkpoint
from converter.checkpoint.staging import Staging
from converter.checkpoint.writer import WrittenFile, copy_file
from converter.checks.engine import compare
from converter.checks.suits import suits
from converter.errors import InputError, OutputError, UsageError
from converter.fingerprint import fingerprint_at_hand
from converter.output import Progress, check_out, not_finite, write_weights
from converter.plan import Plan
from converter.rules import loading
from converter.rules.written import nested
from converter.run import Report
from converter.signing import Signer
from converter.source import open_source
from converter.target import name_on_hub


def what_is_read(report: Report) -> tuple[str, list[Path]]:
    """IN as the user named it, or its folder in the Hub's cache; and the files of it that are read."""
    source = report.source
    assert source is not None
    with reading(source.folder):
        files = [*source.weights, *(p for p in source.folder.iterdir() if p.is_file())]
    return str(source.folder) if source.commit else report.request.source, files


def write(report: Report, plan: Plan, progress: Progress, signer: Signer | None) -> None:
    """Carry the plan out, beside OUT until all is in order, and seal and sign it. `report` learns what was found, and
    the outcome "converted" where OUT is in place.

    Raises OSError and OutputError where OUT cannot be written, InputError where IN cannot be read or was changed.
    """
    request, source = report.request, report.source
    assert request.out is not None and source is not None and report.drafter is not None
    started = time.monotonic()
    with Staging(request.out) as staging:
        input_digests: dict[str, str] = {}
        report.written = write_weights(report.drafter, plan, staging.folder, request.digest, progress, input_digests)
        report.add(not_finite(report.written))
        config = staging.folder / "config.json"
        seal.write_json(config, nested(plan.config))
        for name in plan.carried:
            copy_file(source.folder / name, staging.folder / name)
        report.written += [
            WrittenFile(p.name, p.stat().st_size, seal.sha256_of(p))
            for p in [config, *(staging.folder / n for n in (INDEX, *plan.carried))]
            if p.exists()
        ]
        with reading(source.folder):
            config_sha256 = seal.sha256_of(source.folder / "config.json")
        source.assert_unchanged()
        with _reading_back(staging), reading(staging.folder):
            _read_back(report, plan, staging.folder)
        if report.refused:
            return
        with reading(Path(request.wish.sample or source.folder)):
            proof = proving.proof_json(report, request.digest)
            fingerprint = fingerprint_at_hand(report.target_weights)
        report.sealed = seal.make_seal(
            command=request.command,
            serving={
                "target": name_on_hub(report.target),
                "target_positions": report.target.max_position_embeddings,
                "draft_steps": proving.draft_steps(report.drafter.provenance),
            },
            given=request.source,
            commit=source.commit,
            config_sha256=config_sha256,
            plan=plan,
            written=report.written,
            input_digests=input_digests,
            proof=proof,
            findings=report.findings,
            target={k: getattr(report.target, k) for k in ("name", "architecture", "layers", "commit")}
            | {"fingerprint": fingerprint},
        )
        seal.write_json(staging.folder / seal.NAME, report.sealed)
        if signer is not None:
            with _reading_back(staging):
                signer.sign(staging.folder, seal.must_be_signed(report.sealed), named=staging.out.name)
        if request.force:
            _check_out_again(report)
        staging.commit(replace=request.force)
    report.seconds = time.monotonic() - started
    report.outcome = "converted"


@contextmanager
def _reading_back(staging: Staging) -> Iterator[None]:
    """What cannot be read there was written badly: no fault of the input."""
    try:
        yield
    except InputError as problem:
        if str(staging.folder) not in problem.finding.where:
            raise
        raise OutputError(f"cannot read what was written, and {staging.out} is as it was: {problem}") from problem


def _check_out_again(report: Report) -> None:
    """OUT may have become somebody else's since it was looked at."""
    assert report.request.out is not None
    try:
        check_out(report.request.out, *what_is_read(report), force=True)
    except UsageError as problem:
        raise OutputError(f"{problem}. It was changed meanwhile, and nothing was written there") from problem


def _read_back(report: Report, plan: Plan, folder: Path) -> None:
    """Hold what was written against what was meant, by each engine's rules, and run the sample."""
    checkpoint = open_checkpoint(folder)
    config = open_source(str(folder)).config
    known = {(f.code, f.message) for f in report.findings}
    for engine in plan.engines:
        again = compare(engine, plan.spec, config, list(checkpoint.tensors), report.target, plan.launch)
        report.add([f for f in again if (f.code, f.message) not in known])
    assert report.drafter is not None
    report.suits = [
        suits(name, plan.spec, config, list(checkpoint.tensors), report.target, report.drafter.embedding)
        for name in loading.names("engines")
    ]
    if not report.refused:
        proving.prove(report, proving.files_written(report, plan, folder), [])
