"""The way of a drafter through the house: open, recognise, read, check, plan, write, prove, put in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converter import proving, seal
from converter.checkpoint.jsonfile import reading
from converter.checks.as_it_is import as_it_is
from converter.checks.carried import check_carried
from converter.checks.plugin import with_plugins
from converter.checks.points import check_meaning, check_points, depth_unknown
from converter.checks.precision import check_precision, needs_cast
from converter.checks.rows import check_embedding
from converter.checks.stated import check_stated
from converter.checks.stray import check_stray_maps
from converter.checks.target import check_target, check_target_folder
from converter.checks.tensors import check_tensors
from converter.checks.tokens import check_tokens
from converter.checks.values import check_values
from converter.checks.vocabulary import read_vocabulary, with_head_rows
from converter.drafter.drafter import Drafter, Embedding
from converter.drafter.points import describe_points
from converter.drafter.quantised import quantised_weights
from converter.drafter.spec import DrafterSpec
from converter.drafter.target import Target
from converter.errors import OutputError, UsageError
from converter.findings import Finding, stops
from converter.hub.ids import pinned
from converter.plan import make_plan
from converter.rules import loading
from converter.rules.dialect import Dialect, DialectReading, read, stated_points
from converter.rules.forms import (
    as_written,
    check_writable,
    engine_dialect,
    names_engine,
    own_reader,
    reading_engine,
    trainer_form,
    written_for,
)
from converter.rules.fused import ASSUMED
from converter.rules.recognition import Recognition, recognise, unrecognised
from converter.rules.releases import resolve
from converter.run import Report, Request, nobody
from converter.sealed import (
    allowed_once,
    for_another,
    known_target,
    launch_unknown,
    no_reader,
    not_as_sealed,
    own_output,
)
from converter.source import carried_files, open_source
from converter.target import named_target
from converter.target_weights import TargetWeights, read_target_weights

if TYPE_CHECKING:
    from converter.output import Progress


def convert(request: Request, progress: Progress, told: Callable[[str], None] = nobody) -> Report:
    """Convert `request.source` to `request.out`; OUT is absent, as it was, or new and whole.

    Raises UsageError, InputError and OutputError; a refused drafter is a report with error findings.
    """
    # To look at a drafter needs none of these.
    from converter.checkpoint.staging import normal, recover
    from converter.output import check_out
    from converter.signing import open_signer
    from converter.writing import what_is_read, write

    assert request.out is not None
    request.wish.check()
    if request.to and request.engines:
        raise UsageError("--to writes a trainer's form and --engine an engine's: give one of them")
    if request.to:
        check_writable(request.to)
    signer = open_signer(request.sign) if request.sign else None
    with reading(Path(request.source)):
        report = _read(request, told)
        read = what_is_read(report)
    if not request.dry_run:
        recover(normal(request.out))
        check_out(request.out, *read, force=request.force)
    with reading(Path(request.source)):
        _make_plan(report)
    if request.dry_run or report.plan is None or report.refused:
        return report
    try:
        write(report, report.plan, progress, signer)
    except OSError as problem:
        raise OutputError(
            f"cannot write {request.out}: {problem.strerror or problem}. It is as it was before; nothing was lost"
        ) from problem
    return report


def _make_plan(report: Report) -> None:
    """Look at the values and plan; what is not to be written is proved here, as far as it can be."""
    request = report.request
    _values(report)
    if report.drafter is None or report.refused:
        return
    assert report.source is not None
    planning = make_plan(
        report.drafter, report.engines, report.target, report.source, request.dtype, request.max_shard_size
    )
    report.plan = planning.plan
    report.add(planning.findings)
    if report.plan is not None:  # writing finds values that are no numbers, but what a cast makes such is known before
        narrowed = needs_cast(report.drafter.checkpoint, report.drafter.tensors, report.plan.spec.dtype)
        _scan(report, list(report.drafter.tensors.values()) if request.dry_run else narrowed, report.plan.spec.dtype)
    if report.refused or report.plan is None:
        # What serving it all the same would cost.
        proving.prove(report, [], proving.files_unwritten(report, report.engines))
    elif request.dry_run:
        proving.prove(report, proving.files_unwritten(report, report.engines), [])
        report.outcome = "refused" if report.refused else "planned"


def validate(request: Request, told: Callable[[str], None] = nobody) -> Report:
    """Check a drafter and say, for each engine, whether it serves it as it lies there, or once it is converted; prove
    it as it lies and as it would be written. An output of eagle3-convert for engines is read as the first of them does.
    """
    with reading(Path(request.source)):
        return _validated(request, told)


def _validated(request: Request, told: Callable[[str], None]) -> Report:
    request.wish.check()
    report = _read(request, told, outputs=True)
    if report.drafter is None:
        return report
    assert report.source is not None
    _values(report)
    if request.scan:
        _scan(report, list(report.drafter.tensors.values()), report.drafter.spec.dtype)
    if report.refused:
        return report
    if request.wish.find_wiring:
        proving.search_wiring(report)
    report.verdicts = _verdicts(report, report.drafter)
    able = [e for e in report.engines if not stops(report.verdicts[e.requirement])]
    assert report.opened is not None
    report.as_it_is = {e.requirement: as_it_is(e, report.opened, report.drafter, report.target) for e in able}
    unable = [e for e in report.engines if e not in able]
    proving.prove(
        report,
        proving.files_unwritten(report, able),
        proving.files_unwritten(report, unable),
        proving.files_lying(report, able),
    )
    if not report.points_known:
        report.add([proving.points_unknown(report.search)])
    _name_wiring(report)
    report.outcome = "refused" if report.refused or all(map(stops, report.verdicts.values())) else "validated"
    return report


def look(request: Request) -> Report:
    """Open, recognise, read and check, and no more; `drafter` is None where the findings say why there is none."""
    with reading(Path(request.source)):
        return _read(request, nobody)


def _verdicts(report: Report, drafter: Drafter) -> dict[str, list[Finding]]:
    """What stands in each engine's way."""
    assert report.source is not None
    found = {}
    for engine in report.engines:
        planning = make_plan(drafter, [engine], report.target, report.source)
        found[engine.requirement] = report.judged(planning.findings)
    return found


def _name_wiring(report: Report) -> None:
    """Where the sample says that the drafter was trained otherwise than it states, or where it states nothing: how to
    declare that, and which engines can serve it so.
    """
    proof, drafter = report.proof, report.drafter
    unsure = [f for f in report.findings if f.code in ("A301", "A104") and not f.allowed]
    if proof is None or proof.judgement is None or drafter is None or not unsure:
        return
    judgement, stated = proof.judgement, report.declared if proof.searched else proof.judgement.of
    better = [r.wiring for r in judgement.those("better")]
    best = judgement.of if proof.searched else better[0] if better else None
    undecided = proof.searched and judgement.those("undecided")
    if best is None or undecided or not best.has_options(stated):
        return
    report.named = tuple(best.options(stated))
    report.trained = best.words(stated) if stated is not None else describe_points(best.points)
    report.verdicts = _verdicts(report, replace(drafter, spec=best.spec(drafter.spec)))


# --- reading ------------------------------------------------------------------------------------------------


def _read(request: Request, told: Callable[[str], None], outputs: bool = False) -> Report:
    """`outputs`: outputs for engines are read as well, where nothing says as what."""
    report = Report(request, told=told)
    if not request.to:
        wanted = request.engines or (("sglang",) if request.out is not None else tuple(loading.names("engines")))
        report.engines = [release for requirement in wanted for release in resolve(requirement)]
    report.opened = report.source = source = open_source(request.source)
    report.add(source.notes)
    sealed = seal.read_seal(source.folder)
    served = names_engine(request.dialect)
    dialect_asked = request.dialect
    target = known_target(request.target, request.target_arch, sealed)
    report.add(target.notes)
    engines = seal.texts_at(sealed, "engines", "engine") if sealed is not None else []
    if sealed is not None:
        if served and "=" not in dialect_asked:  # the release that it was written for
            dialect_asked = next((e for e in engines if e.partition("==")[0] == dialect_asked), dialect_asked)
        if not seal.text_at(sealed, "to") and not served:
            if request.dialect or not outputs:
                report.add([own_output(source, sealed, engines)])
                return report
            report.add(not_as_sealed(source, sealed))
            dialect_asked = own_reader(engines, source.config, target, "launch" in sealed)
            report.read_as = dialect_asked
            if not dialect_asked:
                report.add([no_reader(source, engines, target)])
                return report
            served, target = True, replace(target, name=target.name or seal.target_of(sealed).name)
        if served and dialect_asked not in engines:
            report.add([for_another(source, dialect_asked, engines)])
        report.add(allowed_once(source, sealed))
    recognition = Recognition(None, None)
    if not served:
        recognition = recognise(source.config, source.checkpoint.tensors, request.dialect)
        if recognition.refusal is not None:
            report.add([recognition.refusal])
            return report
        if recognition.dialect is None:
            report.add([unrecognised(source.config, source.checkpoint.tensors, source.folder / "config.json")])
            return report
    dialect = recognition.dialect
    launch: Mapping[str, Any] = {}
    if dialect is None:
        engine, flat = reading_engine(dialect_asked, source.config)
        report.source = source = replace(source, config=flat)
        dialect = engine_dialect(engine, target, written_for(engines, source.config) if report.read_as else None)
        launch = seal.launch_of(sealed) if sealed is not None and dialect_asked in engines else {}
    report.dialect = dialect
    if sealed is not None and seal.still_is(sealed, source.folder, "config.json"):
        report.dialect = dialect = as_written(dialect, seal.text_at(sealed, "to"))
    reading = read(dialect, source.config, source.checkpoint, target, request.aux, request.given, launch)
    if request.wish.find_wiring:
        reading = _for_search(report, reading, target, launch)
    if not target.architecture:
        named = named_target("", reading.provenance)
        target = replace(named, layers=target.layers)
    report.target = target if target.name else replace(target, name=reading.provenance.target_name)
    if request.to:
        form = trainer_form(request.to, reading.provenance, report.target)
        report.engines = [form]
        report.add(form.unfilled())
    # How fused rows lie is for a sample to show, where there is one.
    report.open = [f for f in reading.findings if f.code == ASSUMED and request.wish.sample is not None]
    report.add([f for f in reading.findings if f not in report.open])
    report.add(check_stated(dialect, reading, source.config, source.checkpoint))
    if reading.spec is None:
        return report
    if report.read_as and sealed is not None and "launch" not in sealed:
        report.add(launch_unknown(dialect, reading.spec))
    report.source = replace(source, checkpoint=reading.checkpoint)
    _check(report, dialect, reading)
    return report


def _for_search(report: Report, reading: DialectReading, target: Target, launch: Mapping[str, Any]) -> DialectReading:
    """Read again with what a search does not need to be told: the norms before fc follow from the tensors, and where
    the points are not known, any stand in for them.
    """
    request, source, dialect = report.request, report.source, report.dialect
    assert source is not None and dialect is not None
    given = {
        "norm_before_fc": "input_norm.weight" in reading.tensors,
        "fc_norm": "fc_norm.0.weight" in reading.tensors,
        **request.given,
    }
    points = request.aux or (reading.spec.capture_points if reading.spec is not None else ())
    fc = source.checkpoint.tensors.get(reading.tensors.get("fc.weight", ""))
    if fc is not None and len(fc.info.shape) == 2 and fc.info.shape[0]:
        width = reading.spec.target_hidden_size if reading.spec else target.hidden_size or fc.info.shape[0]
        count = fc.info.shape[1] // width
        report.points_known = len(set(points)) == len(points) == count
        points = points if report.points_known else tuple(range(count))
    return read(dialect, source.config, source.checkpoint, target, points or None, given, launch)


def _check(report: Report, dialect: Dialect, reading: DialectReading) -> None:
    assert report.source is not None and reading.spec is not None
    spec, checkpoint = reading.spec, report.source.checkpoint
    report.engines = [engine.serving(spec) for engine in report.engines]
    dropped = dict(reading.dropped)
    unknown = [f for f in reading.findings if f.code == "T101"]
    dropped |= {f.where: "not a tensor of this dialect; left out with --allow T101" for f in unknown}
    weights = report.target_weights = _target_weights(report, spec)
    vocab, findings = read_vocabulary(dialect, reading, checkpoint)
    if weights is not None and weights.head is not None:
        vocab, findings = with_head_rows(dialect, reading, checkpoint, weights.head, vocab, findings)
    embedding: Embedding = "unknown" if "embed_tokens.weight" in reading.tensors else "absent"
    if embedding == "unknown" and weights is not None and weights.embedding is not None:
        own = reading.tensors["embed_tokens.weight"]
        if checkpoint.tensors[own].info.shape == (spec.vocab_size, weights.embedding.shape[1]):
            frozen = dialect.rules.get("embedding") == "frozen"
            embedding, faults = check_embedding(checkpoint, own, weights.embedding, frozen)
            findings += faults
    fc = reading.tensors.get("fc.weight")
    stated = stated_points(dialect, report.source.config, report.target)
    quantised = quantised_weights(checkpoint, reading.tensors)
    findings += check_tensors(spec, checkpoint, reading.tensors, quantised, reading.carried)
    findings += check_points(spec, checkpoint.tensors[fc].info.shape if fc else None, report.target, stated)
    other_meaning = list(check_meaning(dialect, reading, spec, report.target))
    if report.request.wish.sample is None:
        findings += [*other_meaning, *((reading.unlike[1],) if reading.unlike is not None else ())]
    else:  # which may decide
        report.other_meaning, report.unlike = other_meaning, reading.unlike
    findings += check_target(spec, reading.provenance, report.target)
    findings += check_target_folder(report.target)
    findings += check_tokens(spec, vocab, report.target, report.source.folder)
    if vocab is not None:
        findings += check_stray_maps(report.source.folder, vocab, spec)
    findings += check_carried(report.source.folder, report.source.config, carried_files(report.source.folder))
    if report.target.layers is None:
        findings.append(depth_unknown(spec))
    report.add(findings)
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
    if report.request.allow_plugin:
        report.engines, findings = with_plugins(report.engines, report.drafter, report.target)
        report.add(findings)


def _values(report: Report) -> None:
    """What some of the weights tell."""
    drafter = report.drafter
    if drafter is not None:
        known = frozenset({"embed_tokens.weight"} if drafter.embedding == "unrelated" else ())
        plain = {c: name for c, name in drafter.tensors.items() if not drafter.keeps_values(c)}
        report.add(check_values(drafter.spec, drafter.checkpoint, plain, known))


def _scan(report: Report, names: Sequence[str], served: str) -> None:
    """What all weights of these names tell, for weights that are served in a dtype."""
    drafter = report.drafter
    assert drafter is not None
    if names:
        report.told("reading every weight")
        as_they_are = frozenset(name for c, name in drafter.tensors.items() if drafter.keeps_values(c))
        report.add(check_precision(drafter.checkpoint, names, served, as_they_are))


def _target_weights(report: Report, spec: DrafterSpec) -> TargetWeights | None:
    target = report.request.target
    if target is None or report.target.hidden_size != spec.target_hidden_size:
        return None
    return read_target_weights(pinned(target, report.target.commit), spec.vocab_size, spec.target_hidden_size)
