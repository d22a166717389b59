"""The plan: every output tensor with the input tensor it comes from, every config key with its origin. Data only.

`--dry-run` prints it, the writer executes it, the seal records it. Nothing reaches OUT unless it is in here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from converter.checkpoint.header import FLOATS, nbytes_of
from converter.checkpoint.reader import INDEX, SINGLE, StoredTensor, run_name
from converter.checks.carried import stays_behind
from converter.checks.engine import examine
from converter.checks.suits import with_fixes
from converter.drafter.drafter import Drafter
from converter.drafter.layout import IN_BLOCKS
from converter.drafter.points import describe_points
from converter.drafter.quantised import weight_of
from converter.drafter.spec import DrafterSpec, Origin
from converter.drafter.target import Target
from converter.errors import UsageError
from converter.findings import Finding, error, stops, warning
from converter.rules.engine import EngineRelease
from converter.rules.forms import TrainerForm
from converter.rules.written import ConfigEntry
from converter.source import Source, carried_files
from converter.transforms import (
    CAST,
    CAST_DTYPES,
    MAP_OPERATIONS,
    MARKS_FROM_IDS,
    OFFSETS_FROM_IDS,
    PERMUTE_BLOCKS,
    SPLIT_ROWS,
    Operation,
)


@dataclass(frozen=True)
class TensorPlan:
    """name, dtype, shape   as written
    canonical   what it is
    source      the input tensor whose bytes it takes
    file        the output file that holds it
    operations  empty where the bytes are copied; `split rows` comes first where only some of them are
    """

    name: str
    canonical: str
    source: str
    file: str
    dtype: str
    shape: tuple[int, ...]
    operations: tuple[Operation, ...] = ()

    @property
    def made(self) -> bool:
        """True of a map tensor that the input has only in another form (t2d from d2t)."""
        return any(o.name in MAP_OPERATIONS for o in self.operations) and not self.source.endswith(self.canonical)

    @property
    def split(self) -> Operation | None:
        """The operation that takes a run of the input tensor's rows, where it does not take all."""
        return next((o for o in self.operations if o.name == SPLIT_ROWS), None)

    @property
    def changed(self) -> bool:
        """True where values are other ones than in the input."""
        return len(self.operations) > (self.split is not None)

    @property
    def nbytes(self) -> int:
        """As written."""
        return nbytes_of(self.dtype, self.shape)

    @property
    def stored(self) -> str:
        """The tensor that it takes, as the checkpoint calls it once its fused tensors are cut."""
        return run_name(self.source, **self.split.arguments) if self.split else self.source

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "canonical": self.canonical,
            "source": self.source,
            "file": self.file,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "operations": [o.as_json() for o in self.operations],
        }


@dataclass(frozen=True)
class Plan:
    """What will be written for which engines.

    spec      the drafter as the output declares it: capture points in ascending order
    layer_ids per engine release, the ids that make it capture these points
    dropped   input tensor -> why it is not written
    carried   files copied as they are; left: files of the input that stay behind
    launch    launch options that carry a part of the wiring
    """

    engines: tuple[EngineRelease, ...]
    spec: DrafterSpec
    layer_ids: Mapping[str, tuple[int, ...]]
    tensors: tuple[TensorPlan, ...]
    config: tuple[ConfigEntry, ...]
    dropped: Mapping[str, str]
    carried: tuple[str, ...]
    left: tuple[str, ...]
    launch: Mapping[str, Any]

    @property
    def form(self) -> TrainerForm | None:
        """The dialect's form that is written (`--to`), None where it is engines'."""
        return next((e for e in self.engines if isinstance(e, TrainerForm)), None)

    @property
    def renamed(self) -> list[TensorPlan]:
        """Those that have another name in the input."""
        return [t for t in self.tensors if t.name != t.source and not t.made and not t.split]

    @property
    def split(self) -> list[TensorPlan]:
        """Those that are a part of a fused one."""
        return [t for t in self.tensors if t.split]

    @property
    def changed(self) -> list[TensorPlan]:
        """Those whose values are other ones than in the input."""
        return [t for t in self.tensors if t.changed]

    @property
    def files(self) -> Mapping[str, list[TensorPlan]]:
        """The tensors of each weight file, both in the order in which they are written."""
        files: dict[str, list[TensorPlan]] = {}
        for tensor in self.tensors:
            files.setdefault(tensor.file, []).append(tensor)
        return files

    @property
    def sharded(self) -> bool:
        """True where an index names the files."""
        return list(self.files) != [SINGLE]

    def as_json(self) -> dict[str, Any]:
        """The published form (schemas/plan.schema.json)."""
        return {
            "schema": "eagle3-convert/plan/1",
            "engines": [e.requirement for e in self.engines if e is not self.form],
            "to": self.form.requirement if self.form else "",
            "capture_points": list(self.spec.capture_points),
            "layer_ids": {engine: list(ids) for engine, ids in self.layer_ids.items()},
            "tensors": [t.as_json() for t in self.tensors],
            "config": [{"key": e.path, "value": e.value, "origin": e.origin} for e in self.config],
            "dropped": dict(self.dropped),
            "carried": list(self.carried),
            "left": list(self.left),
            "lost": self.form.unsaid() if self.form else [],
            "launch": dict(self.launch),
        }


_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


def shard_size(text: str) -> int:
    """Bytes of a size as people write it: 5GB (10^9 bytes each), 500MB, 2GiB, a bare number. Raises UsageError."""
    found = re.fullmatch(r"\s*([0-9]{1,9}(?:\.[0-9]{1,9})?|[0-9]{1,18})\s*([A-Za-z]*)\s*", text, re.ASCII)
    size = int(float(found[1]) * _UNITS.get(found[2].upper(), 0)) if found else 0
    if not size:
        raise UsageError(f"--max-shard-size {text}: expected a size such as 5GB, 500MB or 2GiB")
    return size


@dataclass(frozen=True)
class Planning:
    """plan    None where no output could suit the engines
    findings  per engine, what stands in the way
    """

    plan: Plan | None
    findings: tuple[Finding, ...]


def make_plan(
    drafter: Drafter,
    engines: Sequence[EngineRelease],
    target: Target,
    source: Source,
    dtype: str = "",
    max_shard_size: int = 0,
) -> Planning:
    """Lower a drafter for engine releases that one output must suit; the findings say what stands in the way.

    source          where the input's files are
    dtype           what to cast the weights to, as configs name it; "" leaves them as they are
    max_shard_size  bytes of tensors in a file of the output at most; 0 keeps the files of the input
    """
    order = tuple(sorted(range(drafter.spec.num_points), key=drafter.spec.capture_points.__getitem__))
    spec = drafter.spec.ascending()
    if dtype:
        origins = {**spec.origins, "dtype": Origin("given", "--dtype")}
        spec = replace(spec, dtype=dtype, origins=origins)
    findings: list[Finding] = []
    config: dict[str, ConfigEntry] = {}
    launch: dict[str, Any] = {}
    layer_ids: dict[str, tuple[int, ...]] = {}
    for engine in engines:
        examination = examine(engine, spec, target, drafter.embedding)
        findings += examination.findings
        findings += _replaced_unseen(engine, drafter)
        findings += _map_refused(engine, drafter)
        findings += [_never_quantised(engine, w) for w in engine.never_quantised if w in drafter.quantised]
        for entry in examination.config:
            first = config.setdefault(entry.path, entry)
            if first.value != entry.value and not stops(findings):
                findings.append(_conflict(first, entry, engines))
        launch |= examination.launch
        if examination.layer_ids is not None:
            layer_ids[engine.requirement] = examination.layer_ids
    for key, value in drafter.carried.items():
        config[key] = ConfigEntry(key, value, "the input's config")
    if drafter.quantised:
        findings.append(_as_it_is(drafter))
    if list(order) != sorted(order) and _bound_to_columns(drafter):
        findings.append(_out_of_order(drafter))
    if spec.not_computed:
        findings.append(_not_computed(spec))
    findings = with_fixes(findings, spec, target, drafter.embedding)
    if any(f.code == "K120" for f in findings):
        return Planning(None, tuple(findings))
    tensors, dropped = _plan_tensors(drafter, spec, order, engines, CAST_DTYPES.get(dtype, ""))
    if max_shard_size:
        tensors = _cut_anew(tensors, max_shard_size)
    carried, left = _sort_files(source)
    plan = Plan(tuple(engines), spec, layer_ids, tensors, tuple(config.values()), dropped, carried, left, launch)
    return Planning(plan, tuple(findings))


def _replaced_unseen(engine: EngineRelease, drafter: Drafter) -> list[Finding]:
    trained = drafter.provenance.embedding_trained and drafter.embedding == "unknown"
    if not (trained and engine.replaces_embedding(drafter.spec)):
        return []
    return [
        warning(
            "K132",
            f"{engine} replaces the drafter's embedding by the target's, and training may have changed it",
            where="embed_tokens.weight",
            why="if it did, the drafter would read its tokens through another embedding than it was trained with",
            fix=("--target FOLDER compares the two",),
        )
    ]


def _map_refused(engine: EngineRelease, drafter: Drafter) -> list[Finding]:
    full = drafter.spec.draft_vocab_size == drafter.spec.vocab_size
    permuted = full and drafter.vocab is not None and not drafter.vocab.identity
    if not (permuted and engine.rules.get("full_vocabulary_map") == "refused"):
        return []
    return [
        error(
            "K119",
            f"{engine} takes no map over the full vocabulary, and this drafter's is not the identity",
            where="d2t",
            why="it stops while loading, or passes the map over, and the drafter would name other tokens",
            fix=("put the head's rows in the order of the target's ids, and save the checkpoint without d2t",),
        )
    ]


def _never_quantised(engine: EngineRelease, weight: str) -> Finding:
    return error(
        "K117",
        f"{engine} never loads {weight} quantised",
        where=weight,
        why="it builds that layer in full precision whatever the config says",
        fix=("quantise the drafter without it",),
    )


def _as_it_is(drafter: Drafter) -> Finding:
    return warning(
        "K118",
        f"quantised weights ({len(drafter.quantised)}) and their scales are renamed and left as they are",
        where="quantization_config",
        why="what an engine makes of them was not verified here: compare the served acceptance length with training",
    )


def _bound_to_columns(drafter: Drafter) -> bool:
    """Whether columns of a quantised fc cannot change places alone: it is packed, or has scales for groups of them."""
    if "fc.weight" not in drafter.quantised:
        return False
    rows = drafter.spec.hidden_size
    scales = [name for canonical, name in drafter.tensors.items() if weight_of(canonical) == "fc.weight"]
    alike = ((), (1,), (rows,), (rows, 1), (1, 1))  # one for all columns
    return "fc.weight" not in drafter.tensors or any(
        drafter.checkpoint.tensors[name].info.shape not in alike for name in scales
    )


def _out_of_order(drafter: Drafter) -> Finding:
    return error(
        "K145",
        "fc is quantised, and its blocks cannot be put in layer order",
        where="fc.weight",
        found=describe_points(drafter.spec.capture_points),
        expected=describe_points(drafter.spec.ascending().capture_points),
        why="engines capture in that order, and packed columns, or scales for groups of them, do not move with a block",
        fix=("convert the drafter as it was before it was quantised, and quantise what is written",),
    )


def _not_computed(spec: DrafterSpec) -> Finding:
    return warning(
        "K142",
        f"the forward pass of a drafter with {spec.not_computed} is not computed here, so nothing of it can be proved",
        where="config.json",
        why="names, shapes and config were checked by the engines' rules; what they compute was not compared",
        fix=("compare the served acceptance length with training",),
    )


def _conflict(first: ConfigEntry, second: ConfigEntry, engines: Sequence[EngineRelease]) -> Finding:
    return error(
        "K130",
        f"no one config suits {' and '.join(map(str, engines))}: they need another {first.path}",
        where=first.path,
        found=f"{first.value} and {second.value}",
        fix=("convert once for each engine release",),
    )


def _plan_tensors(
    drafter: Drafter, spec: DrafterSpec, order: tuple[int, ...], engines: Sequence[EngineRelease], dtype: str
) -> tuple[tuple[TensorPlan, ...], dict[str, str]]:
    checkpoint = drafter.checkpoint
    canonical_of = {stored: canonical for canonical, stored in drafter.tensors.items()}
    dropped = dict(drafter.dropped)
    tensors: list[TensorPlan] = []

    def add(canonical: str, stored: StoredTensor, change: _Change) -> None:
        file = stored.file.name if checkpoint.sharded else SINGLE
        operations = change.operations
        if stored.whole:
            rows = {"first": stored.first, "count": stored.info.shape[0]}
            operations = (Operation(SPLIT_ROWS, rows), *operations)
        source = stored.whole or stored.name
        for name in _output_names(canonical, engines):
            tensors.append(TensorPlan(name, canonical, source, file, change.dtype, change.shape, operations))

    identity = not spec.reduced_vocabulary and (drafter.vocab is None or drafter.vocab.identity)
    form = next((e for e in engines if isinstance(e, TrainerForm)), None)
    maps = form.map_tensors(spec) if form else () if identity else ("d2t", "t2d")
    for stored in checkpoint.tensors.values():
        canonical = canonical_of.get(stored.name)
        if canonical is None:
            continue
        if canonical in ("d2t", "t2d"):
            if canonical in maps:
                add(canonical, stored, _map_change(canonical, stored, drafter))
            elif identity:
                dropped[stored.name] = "draft and target vocabulary are the same, so there is nothing to map"
            else:
                dropped[stored.name] = f"{form} has none; it follows from d2t"
            continue
        change = _Change(stored.info.dtype, stored.info.shape)
        if order != tuple(range(len(order))):
            if canonical in IN_BLOCKS:
                change = replace(change, operations=(Operation(PERMUTE_BLOCKS, {"order": list(order)}),))
            elif canonical.startswith("fc_norm."):
                canonical = f"fc_norm.{order.index(int(canonical.split('.')[1]))}.weight"
        if dtype and not drafter.keeps_values(canonical) and stored.info.dtype in FLOATS and stored.info.dtype != dtype:
            operation = Operation(CAST, {"from": stored.info.dtype, "to": dtype})
            change = replace(change, dtype=dtype, operations=(*change.operations, operation))
        add(canonical, stored, change)
    made_from = checkpoint.tensors[drafter.tensors[_holds_map(drafter)]]
    for canonical in maps:
        # Engines make do without t2d.
        if canonical not in drafter.tensors and (canonical == "d2t" or form):
            change = _map_change(canonical, made_from, drafter) if canonical == "d2t" else _marks(drafter)
            add(canonical, made_from, change)
    return tuple(tensors), dropped


def _holds_map(drafter: Drafter) -> str:
    """The canonical tensor that the vocabulary map was read from; the head where none is stored."""
    return {"offsets": "d2t", "ids": "d2t", "t2d": "t2d"}.get(drafter.map.source, "lm_head.weight")


@dataclass(frozen=True)
class _Change:
    dtype: str
    shape: tuple[int, ...]
    operations: tuple[Operation, ...] = ()


def _map_change(canonical: str, stored: StoredTensor, drafter: Drafter) -> _Change:
    """d2t goes out as int64 offsets; t2d as it is, but for a map that it had no part in."""
    vocab, spec = drafter.map, drafter.spec
    if canonical == "t2d":
        if vocab.source != "head":
            return _Change(stored.info.dtype, stored.info.shape)
        return _marks(drafter)
    if vocab.source == "offsets" and stored.info.dtype == "I64":
        return _Change(stored.info.dtype, stored.info.shape)
    return _Change("I64", (spec.draft_vocab_size,), (Operation(OFFSETS_FROM_IDS, {"source": vocab.source}),))


def _marks(drafter: Drafter) -> _Change:
    return _Change("BOOL", (drafter.spec.vocab_size,), (Operation(MARKS_FROM_IDS, {"source": drafter.map.source}),))


def _output_names(canonical: str, engines: Sequence[EngineRelease]) -> list[str]:
    """Every name that one of the engines loads the tensor under, once; its own where none loads it (t2d)."""
    names = {engine.names_for(canonical): None for engine in engines}
    return [name for name in names if name is not None] or [canonical]


def _cut_anew(tensors: Sequence[TensorPlan], most: int) -> tuple[TensorPlan, ...]:
    """The same tensors, in their order, in files of at most `most` bytes of them; one that is larger has its own."""
    shards: list[list[TensorPlan]] = []
    free = 0
    for tensor in tensors:
        if not shards or tensor.nbytes > free:
            shards.append([])
            free = most
        shards[-1].append(tensor)
        free -= tensor.nbytes
    count = len(shards)
    names = [f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)] if count > 1 else [SINGLE]
    return tuple(replace(t, file=name) for name, shard in zip(names, shards, strict=True) for t in shard)


def _sort_files(source: Source) -> tuple[tuple[str, ...], tuple[str, ...]]:
    weights = {file.name for file in source.weights}
    files = sorted(p for p in source.folder.iterdir() if p.is_file()) if source.folder.is_dir() else []
    carried = tuple(p.name for p in carried_files(source.folder) if not stays_behind(p))
    known = {*carried, *weights, "config.json", INDEX}
    return carried, tuple(p.name for p in files if p.name not in known)
