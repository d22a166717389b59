"""What an engine release would make of a folder as it is: its own config and names, read by the release's rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from converter.drafter.spec import DrafterSpec, differences
from converter.drafter.target import Target
from converter.look.subject import Subject, derived_dtype
from converter.rules.engine import EngineRelease, EngineView

_NO_CLASS = "the target's class is not known (--target)"
_NO_DEPTH = "the target's number of layers is not known (--target)"
_AT_LAUNCH = "they are named where it is launched, not in the folder"


@dataclass(frozen=True)
class Seen:
    """What one release makes of a folder.

    unreadable   why there is no spec; then nothing else is known
    stops        why it computes nothing of what it read; "" where it runs, rightly or wrongly
    points       what it would capture; None where `unknown` says why that is not known
    flags        command-line flags without which it captures the target class's default points
    differs      fields of the spec, the points aside, that it reads otherwise than the trainer meant
    loaded       names in the folder that go into parameters; ignored: those that go nowhere
    missing      parameters that keep their initial value, by canonical name
    embedding    own, or the target's; head: own, the embedding (tied), or none in the folder
    """

    engine: EngineRelease
    unreadable: str = ""
    stops: str = ""
    points: tuple[int, ...] | None = None
    unknown: str = ""
    flags: tuple[str, ...] = ()
    spec: DrafterSpec | None = None
    differs: tuple[str, ...] = ()
    loaded: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    embedding: str = ""
    head: str = ""


def seen_by(engine: EngineRelease, subject: Subject) -> Seen:
    """The release's view of the subject's own config and names, held against what the trainer meant."""
    checkpoint, target, trained = subject.source.checkpoint, subject.target, subject.spec
    flat, why = engine.laid_flat(subject.source.config)
    if flat is None:
        return Seen(engine, unreadable=why)
    # An output is of the kind that its own config says; a trainer's folder of the kind that it was read as.
    engine = engine.serving_config(flat) if trained is None or subject.is_output else engine.serving(trained)
    names = list(checkpoint.tensors)
    [fc, *_] = subject.tensors.get("fc.weight", ("fc.weight",))
    derived = derived_dtype(subject.checkpoint, fc)
    reading = engine.read_config(flat, target, {}, derived=derived)
    rule = engine.target(target.architecture)
    unknown = _AT_LAUNCH if engine.points_at_launch else ""
    if rule is None and (target.architecture or not unknown):
        unknown = _no_class(engine, target)
    if reading.spec is None and all(f.code == "A104" for f in reading.findings):
        unknown = unknown or _NO_DEPTH
        stand_in = {"capture_points": tuple(range(trained.num_points if trained is not None else 3))}
        reading = engine.read_config(flat, target, {}, derived=derived, given=stand_in)
    spec = reading.spec
    if spec is None:
        return Seen(engine, unreadable=_unreadable([(f.code, f.where, f.expected) for f in reading.findings]))
    view = engine.loads(spec, names)
    unsure = replace(target, architecture="") if unknown else target  # then nothing is said of its class
    return Seen(
        engine,
        stops=engine.other_class(flat) or engine.stops(view, unsure),
        points=None if unknown else spec.capture_points,
        unknown=unknown,
        flags=tuple(engine.rules["other_points"]["flags"]) if not unknown and engine.needs_flags(spec, target) else (),
        spec=spec,
        differs=tuple(name for name in _differs(trained, spec) if name not in subject.unsaid),
        loaded=tuple(view.received.values()),
        missing=view.missing,
        ignored=view.ignored,
        embedding=_embedding(engine, view),
        head=_head(view),
    )


def _no_class(engine: EngineRelease, target: Target) -> str:
    if not target.architecture:
        return _NO_CLASS
    return f"{engine} has no EAGLE-3 support for the target class {target.architecture}"


def _unreadable(faults: Sequence[tuple[str, str, str]]) -> str:
    """Why a release reads no spec: keys that are not there (C202), or one whose value it does not take."""
    absent = [where for code, where, _ in faults if code == "C202"]
    if absent:
        more = f" and {len(absent) - 1} more of its keys" if len(absent) > 1 else ""
        return f"finds no {absent[0]}{more} in config.json"
    [(_, where, expected), *_] = faults
    return f"cannot read {where} in config.json (it takes {expected})"


def _differs(trained: DrafterSpec | None, seen: DrafterSpec) -> tuple[str, ...]:
    if trained is None:
        return ()
    unstated = seen.origins["dtype"].how == "derived"
    passed_over = {"capture_points", *(["dtype"] if unstated else [])}
    return tuple(name for name in differences(trained, seen) if name not in passed_over)


def _embedding(engine: EngineRelease, view: EngineView) -> str:
    assert view.spec is not None
    own = "embed_tokens.weight" in view.received and not engine.replaces_embedding(view.spec)
    return "own" if own else "the target's"


def _head(view: EngineView) -> str:
    assert view.spec is not None
    if view.spec.tie_word_embeddings:
        return "the embedding"
    stored = "lm_head.weight" in view.received or "lm_head.weight" not in view.missing
    return "own" if stored else "none in the folder"
