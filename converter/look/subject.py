"""A folder to look at, read as far as it can be: a trainer's drafter, an output of this tool, or something else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from converter import seal
from converter.checkpoint.reader import Checkpoint
from converter.checks.rows import check_embedding
from converter.drafter.drafter import Drafter, Embedding, Provenance
from converter.drafter.layout import expected_tensors
from converter.drafter.points import describe_points
from converter.drafter.quantised import companion_of, quantised_weights, weight_of
from converter.drafter.spec import DrafterSpec, Origin
from converter.drafter.target import Target
from converter.drafter.vocab import VocabularyMap, decide
from converter.errors import UsageError
from converter.findings import Finding
from converter.hub.ids import pinned
from converter.pipeline import look
from converter.rules.behaviours import POINTS
from converter.rules.dialect import Dialect, read
from converter.rules.engine import EngineRelease
from converter.rules.fields import derived_dtype
from converter.rules.names import translate
from converter.rules.recognition import marks_of
from converter.rules.releases import resolve
from converter.run import Report, Request
from converter.source import Source, open_source
from converter.target import read_target
from converter.target_weights import read_target_weights

_LAUNCHED = "the folder does not say; it travels in the launch option {}"
_AT_LAUNCH = "the folder does not say; it is named where the drafter is launched"


@dataclass(frozen=True)
class Asked:
    """The options of the commands, as in `Request`."""

    engines: tuple[str, ...] = ()
    target: Path | None = None
    target_arch: str = ""
    dialect: str = ""


@dataclass(frozen=True)
class Subject:
    """What a folder holds.

    source       with its tensors as they are in the files
    seal         the record of this tool where the folder is an output of it
    sealed_for   the releases that the seal names and these rules know
    reader       the one of them that an output is read as: the first that can read its config; None of anything else
    dialect      None for outputs for engines, and for what no rules read; marks: by which it is told
    tensors      canonical name -> names in `checkpoint`; several where an output serves engines that differ in names
    drafter      None where no spec could be read
    points       the capture points, or the name of the trainer's default where the target's depth is unknown
    unsaid       spec fields that an output leaves to the launch command -> in which words
    findings     what `eagle3 validate` would find of the drafter itself
    """

    source: Source
    target: Target
    findings: tuple[Finding, ...]
    seal: Mapping[str, Any] | None = None
    sealed_for: tuple[EngineRelease, ...] = ()
    reader: EngineRelease | None = None
    dialect: Dialect | None = None
    marks: tuple[str, ...] = ()
    tensors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    drafter: Drafter | None = None
    points: tuple[int, ...] | str = ""
    unsaid: Mapping[str, str] = field(default_factory=dict)

    @property
    def spec(self) -> DrafterSpec | None:
        """The drafter's; None where none could be read."""
        return self.drafter.spec if self.drafter is not None else None

    @property
    def checkpoint(self) -> Checkpoint:
        """With its fused tensors cut into their parts, where it could be read."""
        return self.drafter.checkpoint if self.drafter is not None else self.source.checkpoint

    def stored_in(self, name: str) -> str:
        """The tensor of the files that a tensor of `checkpoint` is, or is a run of."""
        return self.checkpoint.tensors[name].whole or name

    @property
    def is_output(self) -> bool:
        """Made by this tool for engines, and read as they do."""
        return self.seal is not None and self.dialect is None

    @property
    def read_as(self) -> str:
        """The dialect or the release by whose rules it was read, as --dialect takes it; "" where none could."""
        if self.dialect is None or self.drafter is None:
            return self.reader.requirement if self.reader is not None else ""
        return "==".join(filter(None, (self.dialect.name, self.dialect.release)))

    @property
    def points_words(self) -> str:
        """The capture points for people, or why they are not known."""
        return self.points if isinstance(self.points, str) else describe_points(self.points)


def open_subject(given: str, asked: Asked) -> Subject:
    """Read the folder `given`. Raises InputError where there is no config or weights cannot be opened, UsageError for
    options that name nothing.
    """
    source = open_source(given)
    document = seal.read_seal(source.folder)
    if document is not None and not seal.text_at(document, "to") and not asked.dialect:
        return _output(source, document, asked)
    request = Request(given, engines=asked.engines, target=asked.target, target_arch=asked.target_arch,
                      dialect=asked.dialect)  # fmt: skip
    report = look(request)
    assert report.source is not None
    if report.dialect is None:
        return Subject(report.source, _asked_target(asked), tuple(report.findings))
    return replace(_input(report, source, report.dialect), seal=document)


# --- a trainer's drafter ------------------------------------------------------------------------------------


def _input(report: Report, source: Source, dialect: Dialect) -> Subject:
    """`source` as it was opened: in the report's, fused tensors are cut."""
    request = report.request
    marks = tuple(marks_of(dialect, source.config, list(source.checkpoint.tensors)))
    subject = Subject(source, report.target, tuple(report.findings), dialect=dialect, marks=marks)
    if report.drafter is not None:
        return _with_drafter(subject, report.drafter, report.drafter.spec.capture_points)
    reading = read(dialect, source.config, source.checkpoint, report.target, request.aux, request.given)
    subject = replace(subject, tensors={canonical: (name,) for canonical, name in reading.tensors.items()})
    missing = [f for f in report.findings if f.severity == "error"]
    if reading.spec is not None or [f.code for f in missing] != ["A104"]:
        return subject
    # Only the points are unknown: any others stand in for them, as many as fc takes.
    spec = read(dialect, source.config, source.checkpoint, report.target, (0,)).spec
    if spec is None:
        return subject
    count = _states(source.checkpoint, reading.tensors.get("fc.weight"), spec)
    again = look(replace(request, aux=tuple(range(count))))
    default = dialect.rules["ids"].get("default")
    points = f"{default} of the target's L layers" if default in POINTS else "unknown"
    if again.drafter is None:
        return replace(subject, points=points)
    return _with_drafter(subject, replace(again.drafter, spec=_points_unknown(again.drafter.spec)), points)


def _with_drafter(subject: Subject, drafter: Drafter, points: tuple[int, ...] | str) -> Subject:
    tensors = {canonical: (name,) for canonical, name in drafter.tensors.items()}
    return replace(subject, drafter=drafter, tensors=tensors, points=points)


def _points_unknown(spec: DrafterSpec) -> DrafterSpec:
    """A spec in which other points stand in for those that are not known."""
    return replace(spec, origins={**spec.origins, "capture_points": Origin("default", "")})


# --- an output of this tool ---------------------------------------------------------------------------------


def _output(source: Source, document: Mapping[str, Any], asked: Asked) -> Subject:
    """As the first engine reads it that the seal names, and that can read it."""
    target = _asked_target(asked)
    sealed = document.get("target")
    if not target.architecture and isinstance(sealed, Mapping):
        name, architecture = (str(sealed.get(key) or "") for key in ("name", "architecture"))
        target = replace(target, name=target.name or name, architecture=architecture, where=seal.NAME)
    served = (engine.serving_config(source.config) for engine in _sealed_engines(document))
    engines = tuple(sorted(served, key=lambda engine: engine.points_at_launch))  # those that read points first
    derived = derived_dtype(source.checkpoint, "fc.weight")
    for engine in engines:
        rule = engine.target(target.architecture)
        reading = engine.read_config(source.config, target, {}, derived=derived)
        if reading.spec is not None and rule is not None and not engine.points_at_launch:
            return _read_output(source, document, target, engine, engines, reading.spec, asked.target)
        spec = engine.read_config(source.config, target, {}, given={"capture_points": (0,)}, derived=derived).spec
        if spec is not None:  # only the points are unknown; any stand in for them
            points = tuple(range(_states(source.checkpoint, "fc.weight", spec)))
            spec = _points_unknown(replace(spec, capture_points=points))
            subject = _read_output(source, document, target, engine, engines, spec, asked.target)
            words = subject.unsaid.get("capture_points") or "unknown without the target's class and depth (--target)"
            return replace(subject, points=words)
    return Subject(source, target, (), seal=document, sealed_for=engines)


def _states(checkpoint: Checkpoint, fc: str | None, spec: DrafterSpec) -> int:
    """How many states fc takes; 1 where it does not say."""
    stored = checkpoint.tensors.get(fc or "")
    shape = stored.info.shape if stored is not None else ()
    return max(shape[1] // spec.target_hidden_size, 1) if len(shape) == 2 else 1


def _sealed_engines(document: Mapping[str, Any]) -> tuple[EngineRelease, ...]:
    engines = []
    for requirement in seal.texts_at(document, "engines", "engine"):
        try:
            engines += resolve(requirement)
        except UsageError:  # of rules that are not here (--mapping)
            continue
    return tuple(engines)


def _read_output(
    source: Source,
    document: Mapping[str, Any],
    target: Target,
    engine: EngineRelease,
    engines: tuple[EngineRelease, ...],
    spec: DrafterSpec,
    weights: Path | None,
) -> Subject:
    checkpoint = source.checkpoint
    names = list(checkpoint.tensors)
    tensors: dict[str, tuple[str, ...]] = {}
    for release in (engine, *engines):  # each loads the tensors under its own names
        for canonical, name in release.loads(spec, names).received.items():
            tensors[canonical] = tuple(dict.fromkeys((*tensors.get(canonical, ()), name)))
    taken = {name for several in tensors.values() for name in several}
    own = (*expected_tensors(spec), "d2t", "t2d")
    for name in names:
        if name not in taken and name in own:  # what no engine loads keeps its canonical name
            tensors.setdefault(name, (name,))
    for name in names:  # the scales of quantised weights follow these
        weight = translate(engine.rules["tensors"], weight_of(name) or "")
        if weight is not None:
            tensors.setdefault(companion_of(name, weight), (name,))
    first = {canonical: several[0] for canonical, several in tensors.items()}
    vocab, findings = _vocabulary(checkpoint, first, spec)
    drafter = Drafter(
        checkpoint,
        spec,
        Provenance("", ""),
        first,
        {},
        vocab,
        _likeness(checkpoint, first.get("embed_tokens.weight"), spec, weights, target),
        frozenset(quantised_weights(checkpoint, first)),
    )
    options = {field: rule["launch"] for field, rule in engine.rules["read"].items() if "launch" in rule}
    unsaid = {f: _LAUNCHED.format(option) if option.startswith("-") else _AT_LAUNCH for f, option in options.items()}
    return Subject(
        source, target, tuple(findings), seal=document, sealed_for=engines, reader=engine, tensors=tensors,
        drafter=drafter, points=spec.capture_points, unsaid=unsaid,
    )  # fmt: skip


def _vocabulary(
    checkpoint: Checkpoint, tensors: Mapping[str, str], spec: DrafterSpec
) -> tuple[VocabularyMap | None, list[Finding]]:
    """The map of an output, which holds offsets; None where it is none."""
    import numpy as np

    d2t, t2d = tensors.get("d2t"), tensors.get("t2d")
    for name, kinds in ((d2t, "IU"), (t2d, "IUB")):
        info = checkpoint.tensors[name].info if name is not None else None
        if info is not None and (info.dtype[0] not in kinds or info.dtype == "BF16" or len(info.shape) != 1):
            return None, []
    offsets: Any = None if d2t is None else checkpoint.read(d2t)
    marks = None if t2d is None else checkpoint.read(t2d).astype(np.bool_)
    return decide(offsets, marks, spec.vocab_size, spec.draft_vocab_size, "offsets")


def _likeness(
    checkpoint: Checkpoint, name: str | None, spec: DrafterSpec, folder: Path | None, target: Target
) -> Embedding:
    """Whose rows an output's embedding holds, where the target's weights are at hand."""
    if name is None:
        return "absent"
    if folder is None or target.hidden_size != spec.target_hidden_size:
        return "unknown"
    weights = read_target_weights(pinned(folder, target.commit), spec.vocab_size, spec.target_hidden_size)
    table = weights.embedding if weights is not None else None
    if table is None or checkpoint.tensors[name].info.shape != (spec.vocab_size, table.shape[1]):
        return "unknown"
    return check_embedding(checkpoint, name, table)[0]


def _asked_target(asked: Asked) -> Target:
    target = read_target(asked.target) if asked.target is not None else Target()
    return replace(target, architecture=asked.target_arch, where="--target-arch") if asked.target_arch else target
