"""The way of a drafter through the house: open, recognise, read, check, plan, write, prove, put in place."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converter import seal
from converter.checkpoint.reader import INDEX, Checkpoint, open_checkpoint
from converter.checkpoint.staging import Staging, normal, recover
from converter.checkpoint.writer import WrittenFile
from converter.checks.as_it_is import AsItIs, as_it_is
from converter.checks.engine import CODES, compare
from converter.checks.plugin import with_plugins
from converter.checks.points import check_meaning, check_points
from converter.checks.precision import check_precision, needs_cast
from converter.checks.rows import check_embedding, check_head, recover_map, recovered
from converter.checks.stray import check_stray_maps
from converter.checks.suits import Suits, suits
from converter.checks.target import check_target, check_target_folder
from converter.checks.tensors import check_tensors
from converter.checks.tokens import check_tokens
from converter.checks.values import check_values
from converter.drafter.drafter import Drafter, Embedding, Provenance
from converter.drafter.points import as_option, describe_points
from converter.drafter.quantised import quantised_weights
from converter.drafter.spec import DrafterSpec
from converter.drafter.target import Target
from converter.drafter.vocab import VocabularyMap, decide
from converter.errors import InputError, OutputError, UsageError
from converter.findings import Finding, error, judge, note, stops, warning
from converter.hub.ids import pinned
from converter.output import Progress, check_out, not_finite, write_weights
from converter.plan import Plan, make_plan
from converter.proving import Wish, lying, question_of, read_proof_sample, unwritten, written
from converter.rules import loading
from converter.rules.behaviours import POINTS
from converter.rules.dialect import (
    Dialect,
    DialectReading,
    Recognition,
    id_meaning,
    read,
    recognise,
    whose_tensors,
)
from converter.rules.engine import EngineRelease, nested, resolve
from converter.rules.fields import lookup
from converter.rules.forms import (
    TrainerForm,
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
from converter.rules.ids import points_of
from converter.source import Source, open_source
from converter.target import named_target, read_target
from converter.target_weights import RowTable, TargetWeights, read_target_weights

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from converter.baseline import Held
    from converter.forward.prove import Proof
    from converter.forward.sample import Sample
    from converter.forward.search import Judgement
    from converter.forward.sides import EngineFiles
    from converter.forward.wiring import Wiring


@dataclass(frozen=True)
class Request:
    """What the user asked for; the options of the same names in `eagle3 convert --help`.

    dialect   the dialect that IN is read as, or the engine, whatever it looks like; "" leaves it to the files' marks
    to        the dialect whose form is written; "" writes engines'
    engines   none: the newest SGLang where there is an OUT, the newest of every engine where there is none
    given     spec fields set by the user (--set), which outrank the config
    scan           validate reads every weight once, to find values that are no numbers
    allow_plugin   releases whose own draft class cannot compute the drafter may serve it with a plugin's
    """

    source: str
    out: Path | None = None
    engines: tuple[str, ...] = ()
    target: Path | None = None
    target_arch: str = ""
    dialect: str = ""
    to: str = ""
    aux: tuple[int, ...] | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    wish: Wish = field(default_factory=Wish)
    allow_plugin: bool = False
    dtype: str = ""
    allow: tuple[str, ...] = ()
    strict: bool = False
    force: bool = False
    dry_run: bool = False
    digest: bool = True
    scan: bool = True
    command: tuple[str, ...] = ()


def _nobody(what: str) -> None:
    """Hears what is going on where nobody looks."""


@dataclass
class Report:
    """Everything that is known at the end, in whatever state the run ended.

    outcome   converted, refused, planned (--dry-run) or validated
    told           hears what a long proof is at
    points_known   False where a search of the wiring goes on without capture points
    other_meaning  that the ids may mean other points, said unless the sample decides
    unlike         what the trainer computed and no engine does, said unless a sample measures it
    open           what else the sample decides
    search         what it found; `declared` is the wiring that the input states
    sealed         the seal beside the output; empty where none was written
    opened         the input as it lies there: `source` without what reading it changed
    read_as        the engine (--dialect) that an output for engines is read as; "" of any other input
    as_it_is       whether each engine serves the input as it lies there
    named          options of eagle3-convert that declare the wiring which the sample says was trained, and the input
                   does not; `trained`: that wiring in words; `otherwise`: what stands in each engine's way with it
    held           its findings, held against a baseline
    """

    request: Request
    outcome: str = "refused"
    source: Source | None = None
    dialect: Dialect | None = None
    target: Target = field(default_factory=Target)
    target_weights: TargetWeights | None = None
    engines: list[EngineRelease] = field(default_factory=list)
    drafter: Drafter | None = None
    plan: Plan | None = None
    findings: list[Finding] = field(default_factory=list)
    verdicts: dict[str, list[Finding]] = field(default_factory=dict)
    proof: Proof | None = None
    sample: Sample | None = None
    points_known: bool = True
    other_meaning: list[Finding] = field(default_factory=list)
    unlike: tuple[str, Finding] | None = None
    open: list[Finding] = field(default_factory=list)
    search: Judgement | None = None
    declared: Wiring | None = None
    sealed: dict[str, Any] = field(default_factory=dict)
    written: list[WrittenFile] = field(default_factory=list)
    suits: list[Suits] = field(default_factory=list)
    opened: Source | None = None
    read_as: str = ""
    as_it_is: dict[str, AsItIs] = field(default_factory=dict)
    named: tuple[str, ...] = ()
    trained: str = ""
    otherwise: dict[str, list[Finding]] = field(default_factory=dict)
    seconds: float = 0.0
    held: Held | None = None
    told: Callable[[str], None] = _nobody

    @property
    def refused(self) -> bool:
        return stops(self.findings)

    @property
    def bytes_written(self) -> int:
        return sum(f.size for f in self.written)


def convert(request: Request, progress: Progress, told: Callable[[str], None] = _nobody) -> Report:
    """Convert `request.source` to `request.out`; OUT is absent, as it was, or new and whole.

    Raises UsageError, InputError and OutputError; a refused drafter is a report with error findings.
    """
    assert request.out is not None
    request.wish.check()
    if request.to and request.engines:
        raise UsageError("--to writes a trainer's form and --engine an engine's: give one of them")
    if request.to:
        check_writable(request.to)
    report = _read(request, told)
    if not request.dry_run:
        recover(normal(request.out))
        assert report.source is not None
        check_out(request.out, str(report.source.folder) if report.source.commit else request.source, request.force)
    _values(report)
    if report.drafter is None or report.refused:
        return report
    assert report.source is not None
    planning = make_plan(report.drafter, report.engines, report.target, report.source, request.dtype)
    report.plan = planning.plan
    _add(report, planning.findings)
    if report.plan is not None:  # writing finds values that are no numbers, but what a cast makes such is known before
        narrowed = needs_cast(report.drafter.checkpoint, report.drafter.tensors, report.plan.spec.dtype)
        _scan(report, list(report.drafter.tensors.values()) if request.dry_run else narrowed, report.plan.spec.dtype)
    if report.refused or report.plan is None:
        _prove(report, [], _unwritten(report, report.engines))  # what serving it all the same would cost
        return report
    if request.dry_run:
        _prove(report, _unwritten(report, report.engines), [])
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


def validate(request: Request, told: Callable[[str], None] = _nobody) -> Report:
    """Check a drafter and say, for each engine, whether it serves it as it lies there, or once it is converted; prove
    it as it lies and as it would be written. An output of eagle3-convert for engines is read as the first of them does.
    """
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
        _search(report)
    report.verdicts = _verdicts(report, report.drafter)
    able = [e for e in report.engines if not stops(report.verdicts[e.requirement])]
    assert report.opened is not None
    report.as_it_is = {e.requirement: as_it_is(e, report.opened, report.drafter, report.target) for e in able}
    unable = [e for e in report.engines if e not in able]
    _prove(report, _unwritten(report, able), _unwritten(report, unable), _lying(report, able))
    if not report.points_known:
        _add(report, [_points_unknown(report.search)])
    _name_wiring(report)
    report.outcome = "refused" if report.refused or all(map(stops, report.verdicts.values())) else "validated"
    return report


def look(request: Request) -> Report:
    """Open, recognise, read and check, and no more; `drafter` is None where the findings say why there is none."""
    return _read(request, _nobody)


def _verdicts(report: Report, drafter: Drafter) -> dict[str, list[Finding]]:
    """What stands in each engine's way."""
    assert report.source is not None
    found = {}
    for engine in report.engines:
        planning = make_plan(drafter, [engine], report.target, report.source)
        found[engine.requirement] = judge(planning.findings, report.request.allow, report.request.strict)
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
    report.otherwise = _verdicts(report, replace(drafter, spec=best.spec(drafter.spec)))


def _search(report: Report) -> None:
    """Search for the wiring, and go on with what was found where the input states no capture points."""
    from converter.forward.prove import find_wiring
    from converter.forward.wiring import declared

    drafter, wish = report.drafter, report.request.wish
    assert drafter is not None
    sample = _sample(report)
    assert sample is not None
    if report.points_known:
        report.declared = declared(drafter.spec)
    else:  # any points stand in for those to be found
        drafter = drafter.with_points(sample.points[: drafter.spec.num_points])
    question = question_of(wish, drafter, sample, report.target, report.target_weights)
    report.search = find_wiring(question, report.told)
    if not report.points_known and report.search is not None:
        report.drafter = replace(drafter, spec=report.search.of.spec(drafter.spec))


def _points_unknown(search: Judgement | None) -> Finding:
    fix: tuple[str, ...] = ()
    why = "the config does not name them"
    if search is not None and search.those("undecided"):
        why += ", and the sample cannot tell"
    elif search is not None:
        why += "; the sample says what they were"
        fix = (f"say so: --aux {as_option(search.of.points)}",)
    return error(
        "A104",
        "which hidden states of the target feed this drafter is not known",
        where="config.json",
        expected="the capture points that it was trained on",
        why=why,
        fix=fix,
    )


# --- reading ------------------------------------------------------------------------------------------------


def _read(request: Request, told: Callable[[str], None], outputs: bool = False) -> Report:
    """`outputs`: outputs for engines are read as well, where nothing says as what."""
    report = Report(request, told=told)
    if not request.to:
        wanted = request.engines or (("sglang",) if request.out is not None else tuple(loading.names("engines")))
        report.engines = [release for requirement in wanted for release in resolve(requirement)]
    report.opened = report.source = source = open_source(request.source)
    _add(report, source.notes)
    sealed = seal.read_seal(source.folder)
    served = names_engine(request.dialect)
    dialect_asked = request.dialect
    target = _target(request, sealed)
    _add(report, target.notes)
    engines = seal.texts_at(sealed, "engines", "engine") if sealed is not None else []
    if sealed is not None:
        if served and "=" not in dialect_asked:  # the release that it was written for
            dialect_asked = next((e for e in engines if e.partition("==")[0] == dialect_asked), dialect_asked)
        if not seal.text_at(sealed, "to") and not served:
            if request.dialect or not outputs:
                _add(report, [_own_output(source, sealed, engines)])
                return report
            _add(report, _changed(source, sealed))
            dialect_asked = own_reader(engines, source.config, target, "launch" in sealed)
            report.read_as = dialect_asked
            if not dialect_asked:
                _add(report, [_no_reader(source, engines, target)])
                return report
            served, target = True, replace(target, name=target.name or seal.target_of(sealed).name)
        if served and dialect_asked not in engines:
            _add(report, [_for_another(source, dialect_asked, engines)])
        _add(report, _allowed_once(source, sealed))
    recognition = Recognition(None, None)
    if not served:
        recognition = recognise(source.config, source.checkpoint.tensors, request.dialect)
        if recognition.refusal is not None:
            _add(report, [recognition.refusal])
            return report
        if recognition.dialect is None:
            _add(report, [_unrecognised(source)])
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
        _add(report, [_needed(form, key) for key in form.needed()])
    # How fused rows lie is for a sample to show, where there is one.
    report.open = [f for f in reading.findings if f.code == ASSUMED and request.wish.sample is not None]
    _add(report, [f for f in reading.findings if f not in report.open])
    if reading.spec is None:
        return report
    if report.read_as and sealed is not None and "launch" not in sealed:
        _add(report, _launch_unknown(dialect, reading.spec))
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


def _target(request: Request, sealed: Mapping[str, Any] | None) -> Target:
    """What is known of the target beside the drafter's own config; an output's seal says what was known before."""
    target = read_target(request.target) if request.target is not None else Target()
    before = seal.target_of(sealed) if sealed is not None else Target()
    if request.target_arch:
        target = replace(target, architecture=request.target_arch)
    if target.layers is None and before.architecture and target.architecture in ("", before.architecture):
        target = replace(before, name=target.name)
    return target


def _changed(source: Source, sealed: Mapping[str, Any]) -> list[Finding]:
    """C233 where an output is not what was sealed."""
    found = seal.changed(sealed, source.folder, source.weights)
    if not found:
        return []
    return [
        error(
            "C233",
            f"this output was changed since it was sealed: {'; '.join(found[:4])}{'; ...' if len(found) > 4 else ''}",
            where=str(source.folder / seal.NAME),
            why="what was checked and proved when it was written need not hold of it any more",
            fix=(
                "copy the folder again, whole",
                f"or convert again what it was made from: {seal.text_at(sealed, 'source.given') or 'the checkpoint'}",
            ),
        )
    ]


def _no_reader(source: Source, engines: Sequence[str], target: Target) -> Finding:
    known = f"; the target's class is {target.architecture}" if target.architecture else ""
    return error(
        "C234",
        "no engine that this output was written for can be asked what is in it",
        where=str(source.folder / seal.NAME),
        found=", ".join(engines) + known if engines else "no engines",
        expected="a release that is known here, and the target's class, without which ids mean nothing",
        fix=(
            *(() if target.architecture else ("--target FOLDER, or --target-arch CLASS",)),
            "with rules of your own: --mapping FILE, as when it was written",
        ),
    )


def _launch_unknown(dialect: Dialect, spec: DrafterSpec) -> list[Finding]:
    """C235 for an output of an older eagle3-convert, whose seal does not say what travels in launch options."""
    options = {field: rule["launch"] for field, rule in dialect.rules["fields"].items() if "launch" in rule}
    silent = {field: option for field, option in options.items() if spec.origins[field].where == option}
    if not silent:
        return []
    return [
        warning(
            "C235",
            f"what this output is told at launch is in neither its config nor its seal: {', '.join(silent)}",
            where=str(seal.NAME),
            found=f"read as if it were served without {', '.join(silent.values())}",
            why="the launch command that was printed when it was written may have had that option",
            fix=("look into that command, or convert again what it was made from",),
        )
    ]


def _for_another(source: Source, asked: str, engines: Sequence[str]) -> Finding:
    written_for = ", ".join(engines) or "no engine"
    return warning(
        "C232",
        f"this output was written for {written_for}, and is read as {asked} does",
        where=str(source.folder / seal.NAME),
        why="what another engine does not find in it, ids above all, it takes by its own defaults: another drafter",
        fix=tuple(f"read it as it was meant: --dialect {engine}" for engine in engines),
    )


def _allowed_once(source: Source, sealed: Mapping[str, Any]) -> list[Finding]:
    """C231 where an output was written though an error spoke against it."""
    codes = seal.texts_at(sealed, "allowed")
    if not codes:
        return []
    return [
        warning(
            "C231",
            f"this folder was written with {', '.join(codes)} allowed",
            where=str(source.folder / seal.NAME),
            why="it is not the drafter that was trained: what its form could not hold is lost in it",
            fix=(f"go back to what it was made from: {seal.text_at(sealed, 'source.given')}",),
        )
    ]


def _own_output(source: Source, sealed: Mapping[str, Any], engines: Sequence[str]) -> Finding:
    """An output bears two conventions at once, and what a trainer's file would leave open was decided for it."""
    made_from = seal.text_at(sealed, "source.given") or "the trainer's own checkpoint"
    return error(
        "F112",
        "this folder is an output of eagle3-convert, for an engine; a trainer's checkpoint is expected",
        where=str(source.folder / seal.NAME),
        why="nothing is said of whether it is in order",
        fix=(
            f"give what it was made from: {made_from}",
            *(f"or have it read as that engine does: --dialect {engine}" for engine in engines),
        ),
    )


def _needed(form: TrainerForm, key: str) -> Finding:
    return error(
        "C230",
        f"a {form.title} drafter names its target, and none is known",
        where=key,
        why="its trainer, and an engine that reads its form, look for the target there",
        fix=("--target FOLDER, or org/name on the Hub",),
    )


def _unrecognised(source: Source) -> Finding:
    keys = ", ".join(sorted(source.config)[:6])
    fitting = whose_tensors(source.checkpoint.tensors)
    named = source.config.get("architectures")
    if fitting and isinstance(named, list) and named:
        return error(
            "F112",
            f"the tensors are an EAGLE-3 drafter's, the class {named[0]!s:.60} in config.json is no known trainer's",
            where=f"architectures in {source.folder / 'config.json'}",
            expected="the class that its trainer writes",
            why="a target's class, or an engine's, does not tell what the layer ids and flags mean",
            fix=tuple(f"if it is a drafter of {title}: --dialect {name}" for name, title in fitting.items()),
        )
    return error(
        "F112",
        "the config is of no dialect that is known here",
        where=str(source.folder / "config.json"),
        found=f"keys {keys}, ..." if keys else "an empty config",
        expected="a drafter of " + ", ".join(loading.load("dialects", n)["title"] for n in loading.names("dialects")),
        fix=("if its trainer writes one of these forms, say which: --dialect NAME",),
    )


def _check(report: Report, dialect: Dialect, reading: DialectReading) -> None:
    assert report.source is not None and reading.spec is not None
    spec, checkpoint = reading.spec, report.source.checkpoint
    report.engines = [engine.serving(spec) for engine in report.engines]
    dropped = dict(reading.dropped)
    unknown = [f for f in reading.findings if f.code == "T101"]
    dropped |= {f.where: "not a tensor of this dialect; left out with --allow T101" for f in unknown}
    weights = report.target_weights = _target_weights(report, spec)
    vocab, findings = _read_vocabulary(dialect, reading, checkpoint)
    if weights is not None and weights.head is not None:
        vocab, findings = _with_head_rows(dialect, reading, checkpoint, weights.head, vocab, findings)
    embedding: Embedding = "unknown" if "embed_tokens.weight" in reading.tensors else "absent"
    if embedding == "unknown" and weights is not None and weights.embedding is not None:
        own = reading.tensors["embed_tokens.weight"]
        if checkpoint.tensors[own].info.shape == (spec.vocab_size, weights.embedding.shape[1]):
            frozen = dialect.rules.get("embedding") == "frozen"
            embedding, faults = check_embedding(checkpoint, own, weights.embedding, frozen)
            findings += faults
    fc = reading.tensors.get("fc.weight")
    stated = _stated_points(dialect, report.source)
    quantised = quantised_weights(checkpoint, reading.tensors)
    findings += check_tensors(spec, checkpoint, reading.tensors, quantised, reading.carried)
    findings += check_points(spec, checkpoint.tensors[fc].info.shape if fc else None, report.target, stated)
    other_meaning = list(_other_meaning(dialect, reading, spec, report.target))
    if report.request.wish.sample is None:
        findings += [*other_meaning, *((reading.unlike[1],) if reading.unlike is not None else ())]
    else:  # which may decide
        report.other_meaning, report.unlike = other_meaning, reading.unlike
    findings += check_target(spec, reading.provenance, report.target)
    findings += check_target_folder(report.request.target)
    findings += check_tokens(spec, vocab, report.target, report.source.folder, report.request.target)
    if vocab is not None:
        findings += check_stray_maps(report.source.folder, vocab, spec)
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
    if report.request.allow_plugin:
        report.engines, findings = with_plugins(report.engines, report.drafter, report.target)
        _add(report, findings)


def _values(report: Report) -> None:
    """What some of the weights tell."""
    drafter = report.drafter
    if drafter is not None:
        known = frozenset({"embed_tokens.weight"} if drafter.embedding == "unrelated" else ())
        plain = {c: name for c, name in drafter.tensors.items() if c not in drafter.quantised}
        _add(report, check_values(drafter.spec, drafter.checkpoint, plain, known))


def _scan(report: Report, names: Sequence[str], served: str) -> None:
    """What all weights of these names tell, for weights that are served in a dtype."""
    drafter = report.drafter
    assert drafter is not None
    if names:
        report.told("reading every weight")
        as_they_are = frozenset(name for c, name in drafter.tensors.items() if c in drafter.quantised)
        _add(report, check_precision(drafter.checkpoint, names, served, as_they_are))


def _other_meaning(dialect: Dialect, reading: DialectReading, spec: DrafterSpec, target: Target) -> Iterable[Finding]:
    if reading.other_meaning is None or reading.stated_ids is None:
        return ()
    rule, why = reading.other_meaning
    usual = dialect.rules["ids"].get("default")
    other = points_of(rule, reading.stated_ids, target.layers)
    default = POINTS[usual](target.layers) if usual is not None and target.layers is not None else None
    return check_meaning(spec, reading.stated_ids, other, why, default, target.layers)


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
    return read_target_weights(pinned(target, report.target.commit), spec.vocab_size, spec.target_hidden_size)


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
    for key in dialect.rules["fields"]["capture_points"].get("keys", ()):
        ids = lookup(source.config, key)
        if isinstance(ids, list) and all(isinstance(i, int) for i in ids):
            return id_meaning(dialect, Target()).points(key, ids)
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
    vocab, findings = decide(
        arrays["d2t"],
        None if marks is None else marks.astype(np.bool_),
        reading.spec.vocab_size,
        reading.spec.draft_vocab_size,
        dialect.map_form,
    )
    lost = dialect.rules.get("map_lost", "")
    if lost:
        findings = [replace(f, fix=(*f.fix, lost)) if f.code == "V204" else f for f in findings]
    return vocab, findings


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
        report.sealed = seal.make_seal(
            command=request.command,
            given=request.source,
            commit=source.commit,
            config_file=source.folder / "config.json",
            plan=plan,
            written=report.written,
            input_digests=input_digests,
            proof=proof_json(report),
            findings=report.findings,
            target={k: getattr(report.target, k) for k in ("name", "architecture", "layers", "commit")},
        )
        seal.write_json(staging.folder / seal.NAME, report.sealed)
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
    if not report.refused:
        _prove(report, written(plan, folder, report.target) if _wanted(report) else [], [])


def _wanted(report: Report) -> bool:
    return report.request.wish.anything


def _unwritten(report: Report, engines: Sequence[EngineRelease]) -> list[EngineFiles]:
    """The drafter as each release would have it, for those that compute anything."""
    if not _wanted(report) or report.drafter is None:
        return []
    files = [unwritten(engine, report.drafter, report.target) for engine in engines]
    return [f for f in files if f is not None]


def _lying(report: Report, engines: Sequence[EngineRelease]) -> list[EngineFiles]:
    """The files as they lie, as each release sees them that serves them so by its rules."""
    if not _wanted(report):
        return []
    assert report.opened is not None
    standings = [report.as_it_is[engine.requirement] for engine in engines]
    return [lying(s.seen, report.opened.checkpoint) for s in standings if s.works]


def _prove(
    report: Report,
    engines: Sequence[EngineFiles],
    refused: Sequence[EngineFiles],
    as_they_lie: Sequence[EngineFiles] = (),
) -> None:
    """Run what was asked for; findings about single engines go with the engine in `validate`."""
    drafter, wish = report.drafter, report.request.wish
    if not _wanted(report) or drafter is None:
        return
    from converter.forward.prove import prove

    question = question_of(wish, drafter, _sample(report), report.target, report.target_weights)
    question = replace(
        question, engines=engines, refused=refused, judgement=report.search, declared=report.declared,
        unlike=report.unlike, as_it_is=as_they_lie,
    )  # fmt: skip
    report.proof = proof = prove(question, report.told)
    by_label = {str(e): e.requirement for e in report.engines}
    for label, finding in proof.costs:
        verdict = report.verdicts.get(by_label[label])
        if verdict is None:
            _add(report, [replace(finding, caused_by=_cause(report, finding))])
        else:
            verdict.append(finding)
    for label, otherwise in proof.as_it_is:
        if otherwise is not None:
            standing = report.as_it_is[by_label[label]]
            said = f"served as it lies it does not compute what was trained: {otherwise.found or otherwise.message}"
            report.as_it_is[by_label[label]] = replace(standing, against=(said,))
    _add(report, [replace(f, caused_by=_cause(report, f)) if f.code == "N102" else f for f in proof.findings])
    if report.unlike is not None and not {"C216", "C227"} & {f.code for f in proof.findings}:
        _add(report, [report.unlike[1]])  # nothing could be measured
    # States that were named by the very ids in question cannot say what these mean.
    named = report.sample is not None and (report.sample.labelled or wish.sample_points is not None)
    undecided = proof.level in ("none", "agreement")
    told = any(f.code == "A301" for f in proof.findings)  # which says what the ids mean
    other = report.other_meaning if not named or (undecided and not told) else ()
    _add(report, [*other, *(report.open if undecided else ())])


def _sample(report: Report) -> Sample | None:
    """The sample, opened once."""
    if report.sample is None and report.drafter is not None:
        weights, target = report.target_weights, report.target
        wish = report.request.wish
        report.sample = read_proof_sample(wish, report.drafter, target, weights, report.points_known)
        if report.sample is not None:
            _add(report, report.sample.notes)
    return report.sample


def _cause(report: Report, disagreement: Finding) -> str:
    """The finding that a disagreement follows from, allowed ones first; "" where none explains it."""
    codes = {CODES.get(name, "") for name in disagreement.where.split(", ")}
    codes |= {"K131"} if "embed_tokens.weight" in disagreement.where else set()
    found = sorted((f for f in report.findings if f.code in codes), key=lambda f: not f.allowed)
    return found[0].code if found else ""


def proof_json(report: Report) -> dict[str, Any]:
    """The `proof` object of report and seal."""
    if report.proof is None:
        return {"level": "none", "sample": None, "scores": None, "largest_logit_difference": None, "engines": [],
                "embedding": "", "device": "", "anchors": None, "wiring": None}  # fmt: skip
    from converter.forward.prove import as_json

    return as_json(report.proof, report.sample, report.declared)


__all__ = ["Progress", "Provenance", "Report", "Request", "convert", "look", "proof_json", "validate"]
