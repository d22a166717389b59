"""Fifty pairs of small changes of healthy drafters, drawn once by a seed, and what became of the drafter then.

Each change is one that people, scripts and disks make. `shows` says what can tell it:

files     names, shapes, dtypes, the vocabulary map, numbers of the config that contradict each other, weights of zeros
sample    the files are in order, and a sample contradicts them
nothing   weights have other values, or a number of the config that nothing else bears out is another: no file, sample
          or engine knows what training left. The drafter is a worse one, and only the accuracy that its trainer logged,
          given as --min-accuracy, tells
harmless  the engine computes the same; `said` are the warnings that speak of it
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file

from converter.errors import InputError
from converter.findings import Finding
from converter.forward import sides
from converter.forward.rope import NotComputable
from converter.forward.sample import read_sample
from converter.forward.sides import Surroundings
from converter.pipeline import Report, convert, validate
from converter.proving import written
from converter.target_weights import read_target_weights
from tests.faults.changes import INDEX, WEIGHTS, Tensors, cut, fused, header, tensors
from tests.support import DATA, SAMPLE, TARGET, quiet, request

Shows = Literal["harmless", "files", "sample", "nothing"]
Mutate = Callable[[Path, random.Random], None]

SEED, PAIRS = 20, 50
SGLANG, VLLM = "sglang==0.5.23", "vllm==0.33.0"
IDS = "eagle_aux_hidden_state_layer_ids"
SAME = 1e-3  # logits in fp32


@dataclass(frozen=True)
class Healthy:
    """A drafter, what speculators recorded of the same weights, and which engines serve it."""

    folder: str
    recorded: str
    engines: tuple[str, ...] = (SGLANG, VLLM)
    aux: tuple[int, ...] | None = None  # where its config does not name the points


HEALTHY = [
    *(Healthy(f"drafters/{name}", name) for name in ("a_plain", "c_nbfc", "d_fcnorm_normout", "e_2layers", "g_aux024",
                                                     "h_fullvocab", "i_rope_headdim", "k_embedgrad")),
    *(Healthy(f"drafters/{name}", name, (VLLM,)) for name in ("b_nbr", "f_qwen3", "j_attnbias", "l_defaults")),
    Healthy("producers/specforge_hf", "a_plain"),
    Healthy("producers/automodel", "a_plain", aux=(1, 3, 5)),
]  # fmt: skip


# --- changes --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutation:
    name: str
    shows: Shows
    apply: Mutate
    last: bool = False  # of files as a whole, after which nothing else can be changed
    said: frozenset[str] = frozenset()


def _weights(edit: Callable[[Tensors, random.Random], object]) -> Mutate:
    return lambda folder, seed: tensors(lambda values: edit(values, seed))(folder)


def _one(edit: Callable[[torch.Tensor, random.Random], torch.Tensor], *endings: str) -> Mutate:
    """Of one tensor, drawn from those whose names end so."""

    def change(values: Tensors, seed: random.Random) -> None:
        names = sorted(name for name in values if name.endswith(endings))
        if names:
            name = seed.choice(names)
            values[name] = edit(values[name], seed)

    return _weights(change)


def _pair(first: str, second: str) -> Mutate:
    def change(values: Tensors, seed: random.Random) -> None:
        for name in [n for n in values if first in n and n.replace(first, second) in values]:
            other = name.replace(first, second)
            values[name], values[other] = values[other], values[name]

    return _weights(change)


def _config(edit: Callable[[dict[str, Any], random.Random], object]) -> Mutate:
    def change(folder: Path, seed: random.Random) -> None:
        document = json.loads((folder / "config.json").read_text())
        edit(document, seed)
        (folder / "config.json").write_text(json.dumps(document))

    return change


def _holding(document: dict[str, Any], key: str) -> dict[str, Any]:
    """The object of the config in which the key stands, or would."""
    inner = [v for v in document.values() if isinstance(v, dict) and key in v]
    return document if key in document or not inner else inner[0]


def _key(key: str, value: Callable[[Any], Any]) -> Mutate:
    def edit(document: dict[str, Any], seed: random.Random) -> None:
        place = _holding(document, key)
        place[key] = value(place.get(key))

    return _config(edit)


def _ids(edit: Callable[[list[int], random.Random], list[int]]) -> Mutate:
    def change(document: dict[str, Any], seed: random.Random) -> None:
        place = _holding(document, IDS)
        if place.get(IDS):
            place[IDS] = edit(list(place[IDS]), seed)

    return _config(change)


def _moved(ids: list[int], seed: random.Random) -> list[int]:
    ids[seed.randrange(3)] += seed.choice((-1, 1))
    return ids


def _without_key(document: dict[str, Any], seed: random.Random) -> None:
    place = seed.choice([document, *(v for v in document.values() if isinstance(v, dict))])
    place.pop(seed.choice(sorted(place)), None)


def _rope(**values: Any) -> Mutate:
    def edit(document: dict[str, Any], seed: random.Random) -> None:
        place = _holding(document, "rope_parameters")
        place["rope_parameters"] = (place.get("rope_parameters") or {}) | values
        if "rope_theta" in values and "rope_theta" in place:
            place["rope_theta"] = values["rope_theta"]

    return _config(edit)


def _same_key_twice(folder: Path, seed: random.Random) -> None:
    text = (folder / "config.json").read_text().rstrip()
    (folder / "config.json").write_text(text[:-1] + ', "draft_vocab_size": 384}')


def _renamed(values: Tensors, seed: random.Random) -> None:
    name = seed.choice(sorted(values))
    values[seed.choice((name.replace("weight", "kernel"), f"extra.{name}", name.replace("proj", "linear")))] = (
        values.pop(name)
    )


def _shards(folder: Path, seed: random.Random) -> None:
    values = load_file(folder / WEIGHTS)
    names = sorted(values)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: values[name] for name in part}, folder / file, {"format": "pt"})
    (folder / WEIGHTS).unlink()
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    (folder / INDEX).write_text(json.dumps(index))


def _prefixed(values: Tensors, seed: random.Random) -> None:
    for name in list(values):
        values[f"module.{name}"] = values.pop(name)


def _blocks_of_fc(values: Tensors, seed: random.Random) -> None:
    for name in [n for n in values if n.endswith("fc.weight")]:
        values[name] = values[name].roll(values[name].shape[1] // 3, 1)


def _interleaved(values: Tensors, seed: random.Random) -> None:
    """q and k as a converter leaves them that knows the other layout of rope."""
    for name in [n for n in values if n.endswith(("q_proj.weight", "k_proj.weight"))]:
        rows = values[name]
        values[name] = rows.view(-1, 2, 8, rows.shape[1]).transpose(1, 2).reshape(rows.shape)


def _ids_for_offsets(d2t: torch.Tensor, seed: random.Random) -> torch.Tensor:
    return d2t + torch.arange(len(d2t))


def _one_bit(t2d: torch.Tensor, seed: random.Random) -> torch.Tensor:
    return t2d.index_fill(0, torch.tensor([seed.randrange(len(t2d))]), True).roll(1)


def _rows(of: torch.Tensor, seed: random.Random) -> torch.Tensor:
    return of[torch.randperm(len(of), generator=torch.Generator().manual_seed(seed.randrange(1000)))]


def _not_a_number(of: torch.Tensor, seed: random.Random) -> torch.Tensor:
    flat = of.flatten().clone()
    flat[seed.randrange(len(flat))] = float("nan")
    return flat.view(of.shape)


MATRICES = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight", "up_proj.weight", "down_proj.weight")
NORMS = ("input_layernorm.weight", "hidden_norm.weight", "post_attention_layernorm.weight")
MUTATIONS = [
    Mutation("rename a tensor", "files", _weights(_renamed)),
    Mutation("transpose a matrix", "files", _one(lambda t, seed: t.T, "down_proj.weight", "k_proj.weight")),
    Mutation("drop a tensor", "files", _weights(lambda values, seed: values.pop(seed.choice(sorted(values))))),
    Mutation("add a tensor", "files", _weights(lambda values, seed: values.update({"lora.weight": torch.ones(4, 4)}))),
    Mutation("cut a row off", "files", _one(lambda t, seed: t[:-1], *MATRICES, "lm_head.weight", "d2t", "t2d")),
    Mutation("one tensor in fp32", "harmless", _one(lambda t, seed: t.float(), *MATRICES, *NORMS),
             said=frozenset({"T107"})),
    Mutation("one tensor in whole numbers", "files", _one(lambda t, seed: t.to(torch.int8), *NORMS)),
    Mutation("a weight that is NaN", "files", _one(_not_a_number, *MATRICES, "fc.weight")),
    Mutation("d2t one more", "files", _one(lambda t, seed: t + 1, "d2t")),
    Mutation("d2t rolled", "files", _one(lambda t, seed: t.roll(1), "d2t")),
    Mutation("d2t zero", "files", _one(lambda t, seed: torch.zeros_like(t), "d2t")),
    Mutation("ids for offsets", "harmless", _one(_ids_for_offsets, "d2t"), said=frozenset({"V201"})),
    Mutation("marks moved", "files", _one(_one_bit, "t2d")),
    Mutation("no marks", "harmless", _weights(lambda values, seed: values.pop("t2d", None))),
    Mutation("no map", "harmless", _weights(lambda values, seed: values.pop("d2t", None)), said=frozenset({"V202"})),
    Mutation("no embedding", "harmless", _weights(
        lambda values, seed: [values.pop(n) for n in list(values) if n.endswith("embed_tokens.weight")])),
    Mutation("fused matrices", "harmless", _weights(
        lambda values, seed: "layers.0.self_attn.q_proj.weight" in values and fused(values)), said=frozenset({"T112"})),
    Mutation("a wrapper's prefix", "harmless", _weights(_prefixed), last=True),
    Mutation("two shards", "harmless", _shards, last=True),
    Mutation("cut the file", "files", lambda folder, seed: cut(WEIGHTS, 0.1 + 0.8 * seed.random())(folder), last=True),
    Mutation("a shape in the header", "files", lambda folder, seed: header(
        lambda d: d[min(n for n in d if n.endswith("fc.weight"))]["shape"].reverse())(folder), last=True),
    Mutation("drop a key", "files", _config(_without_key)),
    Mutation("add a key", "harmless", _config(lambda document, seed: document.update({"brand_new": 1})),
             said=frozenset({"C204"})),
    Mutation("the same key twice", "files", _same_key_twice, last=True),
    Mutation("a vocabulary of one more", "files", _key("vocab_size", lambda v: v + 1)),
    Mutation("a draft vocabulary of one less", "files", _key("draft_vocab_size", lambda v: (v or 384) - 1)),
    Mutation("one layer more", "files", _key("num_hidden_layers", lambda v: v + 1)),
    Mutation("another width", "files", _key("intermediate_size", lambda v: v * 2)),
    Mutation("a number in quotes", "files", _key("hidden_size", str)),
    Mutation("gelu", "files", _key("hidden_act", lambda v: "gelu")),
    Mutation("biases declared", "files", _key("attention_bias", lambda v: not v)),
    Mutation("norm_before_fc flipped", "files", _key("norm_before_fc", lambda v: not v)),
    Mutation("fc_norm flipped", "files", _key("fc_norm", lambda v: not v)),
    Mutation("called qwen3", "files", _key("model_type", lambda v: "llama" if v == "qwen3" else "qwen3")),
    Mutation("a trainer of the future", "harmless", _key("speculators_version", lambda v: "7.0"),
             said=frozenset({"C204", "C208"})),
    Mutation("called float32", "harmless", _key("dtype", lambda v: "float32"),
             said=frozenset({"C205", "K115", "C226"})),
    Mutation("an id twice", "files", _ids(lambda ids, seed: [ids[0], *ids[:2]])),
    Mutation("no ids", "files", _ids(lambda ids, seed: [])),
    Mutation("ids at top level and nested", "files", _config(
        lambda document, seed: document.update({IDS: [1, 2, 4], "eagle_config": {IDS: [0, 3, 4]}}))),
    Mutation("fc zero", "files", _one(lambda t, seed: torch.zeros_like(t), "fc.weight")),
    Mutation("the final norm zero", "files", _one(lambda t, seed: torch.zeros_like(t), "norm.weight")),
    Mutation("a matrix zero", "files", _one(lambda t, seed: torch.zeros_like(t), *MATRICES)),
    Mutation("an id moved", "sample", _ids(_moved)),
    Mutation("ids in another order", "sample", _ids(lambda ids, seed: ids[1:] + ids[:1])),
    Mutation("norm_before_residual flipped", "sample", _key("norm_before_residual", lambda v: not v)),
    Mutation("norm_output flipped", "sample", _key("norm_output", lambda v: not v)),
    Mutation("rope base of a million", "sample", _rope(rope_theta=1e6)),
    Mutation("gate and up exchanged", "sample", _pair("gate_proj", "up_proj")),
    Mutation("blocks of fc rolled", "sample", _weights(_blocks_of_fc)),
    Mutation("rows of q and k interleaved", "sample", _weights(_interleaved)),
    Mutation("head rows permuted", "sample", _one(_rows, "lm_head.weight")),
    Mutation("an embedding of other rows", "sample", _one(_rows, "embed_tokens.weight")),
    Mutation("rows of a matrix permuted", "nothing", _one(_rows, *MATRICES)),
    Mutation("a norm doubled", "nothing", _one(lambda t, seed: t * 2, *NORMS)),
    Mutation("another eps", "nothing", _key("rms_norm_eps", lambda v: 0.1)),
    Mutation("rope stretched", "nothing", _rope(rope_type="linear", factor=4.0)),
    Mutation("heads of half the size", "nothing", _config(lambda document, seed: [
        _holding(document, key).update({key: value}) for key, value in
        (("num_attention_heads", 8), ("num_key_value_heads", 4), ("head_dim", 8))])),
    Mutation("a short window", "nothing", _config(lambda document, seed: _holding(document, "hidden_act").update(
        {"layer_types": ["sliding_attention"], "sliding_window": 8, "use_sliding_window": True}))),
]  # fmt: skip


@dataclass(frozen=True)
class Double:
    healthy: Healthy
    first: Mutation
    second: Mutation
    seed: int

    @property
    def name(self) -> str:
        return f"{self.seed} {self.healthy.folder.split('/')[1]}: {self.first.name}, {self.second.name}"

    @property
    def shows(self) -> set[Shows]:
        return {self.first.shows, self.second.shows}

    @property
    def harmless(self) -> frozenset[str]:
        """Codes of warnings that speak of what changes nothing, or of the drafter as it was."""
        return self.first.said | self.second.said | _own_warnings(self.healthy)

    def put_into(self, folder: Path) -> Path:
        """The drafter with both changes; later changes see what earlier ones left."""
        folder.mkdir(parents=True)
        for file in ("config.json", WEIGHTS):
            (folder / file).write_bytes((DATA / self.healthy.folder / file).read_bytes())
        seed = random.Random(self.seed)
        for mutation in sorted((self.first, self.second), key=lambda m: m.last):
            mutation.apply(folder, seed)
        return folder


def doubles(seed: int = SEED) -> list[Double]:
    """Every change at least once."""
    drawn = random.Random(seed)
    order = drawn.sample(MUTATIONS, len(MUTATIONS))
    found = []
    for k, first in enumerate(order[:PAIRS]):
        others = [m for m in MUTATIONS if m is not first and not (m.last and first.last)]
        rest = [m for m in order[PAIRS + k : PAIRS + k + 1] if m in others]
        found.append(Double(drawn.choice(HEALTHY), first, drawn.choice(rest or others), k))
    return found


DOUBLES = doubles()


@cache
def _own_warnings(healthy: Healthy) -> frozenset[str]:
    options = {"target": TARGET / "config.json", "engines": healthy.engines, "aux": healthy.aux}
    report = validate(request(DATA / healthy.folder, **options))
    every = [*report.findings, *(f for verdict in report.verdicts.values() for f in verdict)]
    return frozenset(f.code for f in every if f.severity == "warning")


# --- what became of it ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """report is None where the input could not be read."""

    findings: tuple[Finding, ...]
    report: Report | None

    @property
    def converted(self) -> bool:
        return self.report is not None and self.report.outcome == "converted"

    @property
    def errors(self) -> set[str]:
        return {f.code for f in self.findings if f.severity == "error"}

    @property
    def said(self) -> set[str]:
        """Codes of errors and warnings."""
        return {f.code for f in self.findings if f.severity != "note"}


def converted(double: Double, folder: Path, out: Path, **options: Any) -> Outcome:
    """What is said of a conversion; anything but a refusal or a written OUT is raised."""
    asked = {"engines": double.healthy.engines, "aux": double.healthy.aux, **options}
    try:
        report = convert(request(folder, out=out, **asked), quiet)
    except InputError as problem:
        return Outcome((problem.finding,), None)
    return Outcome(tuple(report.findings), report)


@cache
def recorded(name: str) -> dict[str, torch.Tensor]:
    """What speculators' own model computed of a drafter (tests/data/README.md)."""
    return load_file(DATA / "expected" / f"{name}.safetensors")


@cache
def trained_ids(name: str) -> torch.Tensor:
    """[Vd]: the target ids of the draft tokens."""
    d2t = load_file(DATA / "drafters" / name / WEIGHTS).get("d2t", torch.zeros(512, dtype=torch.int64))
    return d2t + torch.arange(len(d2t))


@cache
def accuracy(name: str) -> float:
    """Of step 0 on the sample, by the recorded choices."""
    sample, right, rows = load_file(SAMPLE), 0, 0
    for k in range(4):
        choice = trained_ids(name)[recorded(name)[f"s{k}.draft_argmax_step0"]]
        counts = sample[f"s{k}.loss_mask"][1:].bool()
        right += int((choice == sample[f"s{k}.target_greedy_next"][1:])[counts].sum())
        rows += int(counts.sum())
    return right / rows


def differs(double: Double, report: Report, out: Path) -> list[str]:
    """The engines that would not draft from OUT as the trainer's own model did before the changes, steps 0 to 2.

    The forward is the project's own, by the engine's rules; tests/engines holds it against the real classes.
    """
    assert report.plan is not None and report.drafter is not None
    name = double.healthy.recorded
    [sequence] = read_sample(SAMPLE, report.drafter.spec).sequences[:1]
    table = read_target_weights(TARGET, 512, 64)
    assert table is not None
    around = Surroundings([sequence], table.embedding, torch.device("cpu"), torch.float32)
    found = []
    for files in written(report.plan, out, report.target):
        try:
            side = sides.engine(files, report.drafter, sides.reference(report.drafter, around), around)
        except NotComputable:
            found.append(files.engine)
            continue
        states = torch.cat([sequence.state(point) for point in side.points], dim=-1)
        logits = side.model.run(side.embedding.rows(sequence, 0, len(sequence.tokens)), states, 3)
        theirs = [recorded(name)[f"s0.draft_logits_step{step}"] for step in range(3)]
        ours = [logits[0], *(later[::4] for later in logits[1:])]
        same = torch.equal(side.to_target, trained_ids(name)) and all(
            a.shape == b.shape and float((a - b).abs().max()) <= SAME for a, b in zip(ours, theirs, strict=True)
        )
        found += [] if same else [files.engine]
    return found
