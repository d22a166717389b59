"""What an engine release would make of a folder as it lies: its own config and names, read by the release's rules.

`seen_by` says what; `against` says what of it keeps the release from computing the drafter that was trained.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from converter.checkpoint.reader import INDEX, SINGLE
from converter.drafter.drafter import Drafter
from converter.drafter.points import describe_points
from converter.drafter.spec import OPTIONAL, DrafterSpec, differences, shown_value
from converter.drafter.target import Target
from converter.findings import Finding
from converter.rules.engine import EngineRelease, EngineView
from converter.rules.fields import derived_dtype, lookup
from converter.rules.stopping import other_class, why_it_stops
from converter.rules.written import nested, write_config
from converter.source import Source

NO_DEPTH = "the target's number of layers is not known (--target)"
_NO_CLASS = "the target's class is not known (--target)"
_AT_LAUNCH = "they are named where it is launched, not in the folder"
_USUAL_POINTS = 3  # that many states are fed where nothing says how many


@dataclass(frozen=True)
class Lying:
    """A folder as an engine is given it.

    names    of its tensors, fused ones whole
    derived  fields of the spec that follow from its tensors, where a config does not state them: value and tensor
    launch   what it is told at launch beside the folder, by option
    """

    config: Mapping[str, Any]
    names: Sequence[str]
    derived: Mapping[str, tuple[Any, str]]
    launch: Mapping[str, Any]


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
    received     canonical name -> name in the folder, of what is loaded
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
    received: Mapping[str, str] | None = None


def seen_by(
    engine: EngineRelease,
    folder: Lying,
    target: Target,
    trained: DrafterSpec | None,
    own_kind: bool = False,
    unsaid: Collection[str] = (),
) -> Seen:
    """The release's view of the folder, held against the spec that was trained.

    own_kind  the kind of drafter is told by the folder's own config, not by `trained`
    unsaid    fields that the folder leaves to the launch command
    """
    flat, why = engine.laid_flat(folder.config)
    if flat is None:
        return Seen(engine, unreadable=why)
    engine = engine.serving_config(flat) if trained is None or own_kind else engine.serving(trained)
    reading = engine.read_config(flat, target, folder.launch, derived=folder.derived)
    rule = engine.target(target.architecture)
    told = engine.points_at_launch and engine.rules["read"]["capture_points"]["launch"] in folder.launch
    unknown = _AT_LAUNCH if engine.points_at_launch and not told else ""
    if rule is None and (target.architecture or not unknown):
        unknown = _no_class(engine, target)
    if reading.spec is None and all(f.code == "A104" for f in reading.findings):
        unknown = unknown or NO_DEPTH
        stand_in = {"capture_points": tuple(range(trained.num_points if trained is not None else _USUAL_POINTS))}
        reading = engine.read_config(flat, target, folder.launch, derived=folder.derived, given=stand_in)
    spec = reading.spec
    if spec is None:
        return Seen(engine, unreadable=_unreadable(reading.findings))
    view = engine.loads(spec, folder.names)
    unsure = replace(target, architecture="") if unknown else target  # then nothing is said of its class
    return Seen(
        engine,
        stops=other_class(engine, flat) or why_it_stops(engine, view, unsure),
        points=None if unknown else spec.capture_points,
        unknown=unknown,
        flags=tuple(engine.rules["other_points"]["flags"]) if not unknown and engine.needs_flags(spec, target) else (),
        spec=spec,
        differs=tuple(name for name in _differs(trained, spec) if name not in unsaid),
        loaded=tuple(view.received.values()),
        missing=view.missing,
        ignored=view.ignored,
        embedding=_embedding(engine, view),
        head=_head(view),
        received=view.received,
    )


def _no_class(engine: EngineRelease, target: Target) -> str:
    if not target.architecture:
        return _NO_CLASS
    return f"{engine} has no EAGLE-3 support for the target class {target.architecture}"


def _unreadable(faults: Sequence[Finding]) -> str:
    """Why a release reads no spec: keys that are not there (C202), or one whose value it does not take."""
    absent = [f.where for f in faults if f.code == "C202"]
    if absent:
        more = f" and {len(absent) - 1} more of its keys" if len(absent) > 1 else ""
        return f"finds no {absent[0]}{more} in config.json"
    return f"cannot read {faults[0].where} in config.json (it takes {faults[0].expected})"


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


# --- whether that is the drafter that was trained -----------------------------------------------------------


@dataclass(frozen=True)
class AsItIs:
    """Whether a release serves a folder as it lies, with the launch command for it.

    against  what keeps it from that, in sentences (the release is their subject where they have none), what decides it
             first; empty where nothing does
    unknown  what is missing to say; "" where that is known
    """

    seen: Seen
    against: tuple[str, ...] = ()
    unknown: str = ""

    @property
    def works(self) -> bool:
        """Whether it is known to."""
        return not self.against and not self.unknown


def as_it_is(engine: EngineRelease, source: Source, drafter: Drafter, target: Target) -> AsItIs:
    """Hold what the release (`EngineRelease.serving` this drafter) makes of the files of `source` against the drafter.

    source  as it was opened: with fused tensors whole, and its config as it lies there
    """
    checkpoint, trained = source.checkpoint, drafter.spec
    derived = derived_dtype(drafter.checkpoint, drafter.tensors.get("fc.weight"))
    folder = Lying(source.config, list(checkpoint.tensors), derived, engine.launch_options(trained.ascending()))
    seen = seen_by(engine, folder, target, trained)
    unknown = seen.unknown or ("" if target.layers is not None else NO_DEPTH)
    return AsItIs(seen, tuple(_against(seen, source, drafter)), unknown)


def _against(seen: Seen, source: Source, drafter: Drafter) -> Iterator[str]:
    if seen.unreadable:
        yield seen.unreadable
        return
    flat, _ = seen.engine.laid_flat(source.config)
    assert flat is not None and seen.spec is not None
    yield from _class(seen, flat)
    yield from _tensors(seen, drafter)
    yield from _points(seen, drafter.spec, flat)
    if seen.stops:
        yield seen.stops
    for name in seen.differs:
        yield _field(name, seen, drafter.spec)
    yield from _map(seen, source, drafter)
    yield from _keys(seen, flat, drafter.spec)
    yield from _files(source)


def _class(seen: Seen, flat: Mapping[str, Any]) -> Iterator[str]:
    """A class or a type of config that the release's rules do not speak of: transformers' defaults go by the type."""
    assert seen.spec is not None
    written = nested(write_config(seen.engine, seen.spec, ()))
    known, named = _classes(seen.engine), _first(flat.get("architectures"))
    if known and named not in known:
        yield f"config.json names the class {named}, which it does not run as such a drafter"
    elif not known and named != _first(written.get("architectures")):
        yield f"config.json names the class {named}; whether it runs that as such a drafter was not looked at"
    kind = written.get("model_type")
    if flat.get("model_type") != kind:
        yield f"model_type is {flat.get('model_type') or 'not stated'} in config.json; it runs such a drafter as {kind}"


def _classes(engine: EngineRelease) -> list[str]:
    """The classes that the release is known to run as such a drafter; none where its rules do not list them."""
    listed = engine.rules.get("draft_classes", {}).get("names", ())
    told = [rule["map"] for rule in engine.rules["read"].values() if rule.get("keys") == ["architectures"]]
    return [*listed, *(name for table in told for name in table)]  # what a config names may not be hashable


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value


def _tensors(seen: Seen, drafter: Drafter) -> Iterator[str]:
    stored = {c: drafter.checkpoint.tensors[n].whole or n for c, n in drafter.tensors.items()}
    lost = [stored[c] for c in seen.missing if c in stored]
    if lost:
        yield f"tensors {_together(lost)} go nowhere: it looks for other names"
    unfilled = [c for c in seen.missing if c not in stored]
    if unfilled == ["d2t"]:
        yield "there is no d2t, so it takes draft ids for target ids"
    elif unfilled:
        yield f"nothing in the folder goes into {_together(unfilled)}"


def _together(names: Sequence[str]) -> str:
    """`layers.0.*` for names that begin so; else the first, and how many more."""
    unique = sorted(set(names))
    columns = zip(*(name.split(".") for name in unique), strict=False)
    head = [parts[0] for parts in takewhile(lambda parts: len(set(parts)) == 1, columns)]
    if len(unique) > 1 and head:
        return ".".join(head) + ".*"
    return unique[0] + (f" and {len(unique) - 1} more" if len(unique) > 1 else "")


def _points(seen: Seen, trained: DrafterSpec, flat: Mapping[str, Any]) -> Iterator[str]:
    if seen.points is None or seen.points == trained.capture_points:
        return
    assert seen.spec is not None
    if seen.points == trained.ascending().capture_points:
        yield "the blocks of fc are not in layer order, in which it captures"
        return
    origin = seen.spec.origins["capture_points"]
    told = f"ids {_listed(lookup(flat, origin.where))}" if origin.how == "stated" else ""
    meant = describe_points(trained.capture_points)
    if told:
        yield f"{told} make it capture {describe_points(seen.points)}, not {meant}"
    else:
        yield f"finds no layer ids, so it captures its default, {describe_points(seen.points)}, not {meant}"


def _listed(ids: Any) -> str:
    return ", ".join(map(str, ids)) if isinstance(ids, list) else str(ids)


def _field(name: str, seen: Seen, trained: DrafterSpec) -> str:
    assert seen.spec is not None
    theirs, meant = (shown_value(getattr(spec, name)) for spec in (seen.spec, trained))
    origin = seen.spec.origins.get(name)
    other_key = origin is not None and origin.how == "stated" and origin.where not in (name, "")
    by = f" by {origin.where} in config.json" if origin and other_key else ""
    return f"reads {name} as {theirs}{by}; it was trained with {meant}"


def _map(seen: Seen, source: Source, drafter: Drafter) -> Iterator[str]:
    """Engines take d2t for offsets, whatever it holds."""
    import numpy as np

    assert seen.received is not None
    ids, name = drafter.map.ids, seen.received.get("d2t")
    if name is None:
        if not drafter.spec.reduced_vocabulary and not drafter.map.identity:
            yield "it does not load d2t, so it takes draft ids for target ids"
        return
    stored = source.checkpoint.tensors[name].info
    if stored.dtype[0] not in "IU" or stored.shape != ids.shape:
        yield f"{name} is {stored.dtype} {list(stored.shape)}, not one offset for each draft id"
    elif not np.array_equal(source.checkpoint.read(name).astype(np.int64) + np.arange(len(ids)), ids):
        held = {"ids": "holds target ids"}.get(drafter.map.source, "is not the map that was trained")
        yield f"{name} {held}, and it reads offsets"


def _keys(seen: Seen, flat: Mapping[str, Any], trained: DrafterSpec) -> Iterator[str]:
    """Keys that trip a release over what its rules say of their values."""
    assert seen.spec is not None
    for field, rule in seen.engine.rules["read"].items():
        for key in rule.get("keys", ()) if field not in OPTIONAL else ():
            if null := _null(flat, key):
                yield f"{null} is null in config.json, which to an engine is not the same as absent"
    if "served_dtype" in seen.engine.rules and seen.spec.origins["dtype"].how == "derived":
        yield "config.json states no dtype, so it serves the drafter in one of its own choice"
    count = [path for path, rule in seen.engine.rules["write"].items() if rule.get("how") == "count"]
    if trained.num_points != _USUAL_POINTS and any(lookup(flat, path) != trained.num_points for path in count):
        yield f"config.json does not say that fc takes {trained.num_points} states ({count[0]})"


def _null(config: Mapping[str, Any], key: str) -> str:
    """The part of a dotted key that is there and null; "" where none is, and for "", the config itself."""
    node: Any = config
    parts = key.split(".") if key else []
    for i, part in enumerate(parts):
        if not isinstance(node, Mapping) or part not in node:
            return ""
        node = node[part]
        if node is None:
            return ".".join(parts[: i + 1])
    return ""


def _files(source: Source) -> Iterator[str]:
    """Weights that are not where every engine looks for them."""
    folder, usual = source.folder, (source.folder / SINGLE,)
    others = sorted(p.name for p in folder.glob("*.safetensors") if p not in source.weights)
    if any(file.suffix != ".safetensors" for file in source.weights):
        yield f"{source.weights[0].name} is a pickle; whether it opens that was not looked at"
    elif tuple(source.weights) != usual and not (folder / INDEX).exists():
        yield f"the weights are in {source.weights[0].name}; whether it opens a file of that name was not looked at"
    elif others:
        yield f"{others[0]} lies beside the weights; whether it loads that as well was not looked at"
