"""Every tensor that the spec implies is there, of the implied shape, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from converter.checkpoint.header import DTYPE_NAMES, FLOATS
from converter.checkpoint.reader import Checkpoint, StoredTensor
from converter.checks.points import other_width
from converter.checks.shapes import misshapen
from converter.drafter.layout import Expected, expected_tensors
from converter.drafter.quantised import only_cache, weight_of
from converter.drafter.spec import DrafterSpec
from converter.findings import Finding, error, note, some_of, warning

_MAP = ("d2t", "t2d")


def check_tensors(
    spec: DrafterSpec,
    checkpoint: Checkpoint,
    tensors: Mapping[str, str],
    quantised: set[str],
    declared: Mapping[str, Any],
) -> Iterator[Finding]:
    """C207 heads that cannot be, C217 and C218 no mask token or one outside the vocabulary, C236 layers that are not
    there, T103 missing, T104 misshapen, T105 not implied by the config, T106 not floating, T107 mixed dtypes, T110 and
    T111 quantised weights without quantization_config and the reverse, C205 another dtype than the config says.

    quantised  canonical names of quantised weights; declared: what the config says of quantisation, empty for nothing
    """
    if spec.num_attention_heads % spec.num_key_value_heads or spec.head_dim % 2:
        yield _heads(spec)
    if "mask_hidden" in tensors and spec.mask_token_id is None:
        yield _no_mask_token(tensors["mask_hidden"])
        tensors = {canonical: name for canonical, name in tensors.items() if canonical != "mask_hidden"}
    if spec.mask_token_id is not None and spec.mask_token_id >= spec.vocab_size:
        yield _token_outside(spec)
    wanted = expected_tensors(spec)
    absent = [i for i in range(spec.num_hidden_layers) if not any(name.startswith(f"layers.{i}.") for name in tensors)]
    if 0 < len(absent) < spec.num_hidden_layers:
        yield _layers_absent(spec, absent)
    else:
        absent = []
    for canonical, expected in wanted.items():
        if canonical.startswith(tuple(f"layers.{i}." for i in absent)):
            continue
        if canonical not in tensors:
            packed = canonical.removesuffix("weight") + "weight_packed"
            if not (expected.optional or packed in tensors):
                yield _missing(canonical, expected)
            continue
        stored = checkpoint.tensors[tensors[canonical]]
        explained = canonical == "fc.weight" and other_width(spec, stored.info.shape)  # A103
        if stored.info.shape != expected.shape and not explained:
            yield misshapen(canonical, stored, expected, spec)
        if stored.info.dtype not in FLOATS and canonical not in quantised:
            yield _not_float(stored)
    extra = [
        stored
        for canonical, stored in tensors.items()
        if (weight_of(canonical) or canonical) not in wanted and canonical not in _MAP
    ]
    if extra:
        yield _not_implied(extra, spec)
    if quantised and not declared:
        yield _not_declared(sorted(quantised))
    if declared and not quantised:
        yield _only_cache() if all(map(only_cache, declared.values())) else _nothing_quantised()
    yield from _other_dtype(spec, checkpoint, tensors)
    yield from _mixed(spec, checkpoint, [t for c, t in tensors.items() if c not in _MAP and not weight_of(c)])


def _heads(spec: DrafterSpec) -> Finding:
    return error(
        "C207",
        "the heads of the attention cannot be computed",
        where="config.json",
        found=f"{spec.num_attention_heads} heads, {spec.num_key_value_heads} of keys, head_dim {spec.head_dim}",
        expected="heads a multiple of those of keys and values, an even head_dim",
        why="heads share keys in equal groups, and rope turns the two halves of each head",
        fix=("put back the config.json that was saved with these weights",),
    )


def _no_mask_token(name: str) -> Finding:
    return error(
        "C217",
        "the drafter drafts in parallel, and the config does not name its mask token",
        where="mask_token_id",
        found=f"the tensor {name}",
        expected="the token that stood for those not drafted yet in training",
        why="with another token in its place every draft after the first is worse",
        fix=("name it: --set mask_token_id=N  (the training run's log or configuration says which)",),
    )


def _token_outside(spec: DrafterSpec) -> Finding:
    return error(
        "C218",
        "the mask token is not in the vocabulary",
        where="mask_token_id",
        found=str(spec.mask_token_id),
        expected=f"0 to {spec.vocab_size - 1}",
        why="engines look up its row in the embedding, and there is none",
        fix=("name the one that training used: --set mask_token_id=N",),
    )


def _layers_absent(spec: DrafterSpec, absent: list[int]) -> Finding:
    origin, there = spec.origins["num_hidden_layers"], spec.num_hidden_layers - len(absent)
    key = origin.where or "num_hidden_layers"
    return error(
        "C236",
        f"the config says {spec.num_hidden_layers} layers, the checkpoint has {there}",
        where=key,
        found=f"no tensor of layer {absent[0]}" + (f" to {absent[-1]}" if len(absent) > 1 else ""),
        expected=f"{key}: {there}, the drafter's own number of layers",
        why="engines stop, or run the layers that are not there as they were initialised",
        fix=(f"set {key} to {there} in config.json, if that is what was trained: it is often the target's",),
    )


# Where something else was meant by leaving a tensor out.
_NOT_STORED = {
    "lm_head.weight": (
        "or, if it was meant to be the target's head, or the embedding: save those rows as lm_head.weight",
    )
}


def _missing(canonical: str, expected: Expected) -> Finding:
    because = f"the config says {expected.feature}" if expected.feature else "every drafter of this kind has it"
    return error(
        "T103",
        f"{canonical} is missing",
        where=canonical,
        expected=str(expected),
        why=f"{because}; an engine would leave the parameter at its initial value without a word",
        fix=("save the checkpoint again, whole", *_NOT_STORED.get(canonical, ()))
        + ((f"or correct {expected.feature} in config.json",) if expected.feature else ()),
    )


def _not_implied(extra: list[str], spec: DrafterSpec) -> Finding:
    flags = {
        "input_norm.": "norm_before_fc", "fc_norm.": "fc_norm", ".q_norm": "q/k norms (a qwen3 layer)",
        ".k_norm": "q/k norms (a qwen3 layer)", "_proj.bias": "attention_bias or mlp_bias", "fc.bias": "a bias of fc",
        ".kv_a_": "latent attention (kv_lora_rank)", ".kv_b_": "latent attention (kv_lora_rank)",
        ".q_a_": "latent attention (q_lora_rank)", ".q_b_": "latent attention (q_lora_rank)",
        "layers.": f"more than {spec.num_hidden_layers} layers",
    }  # fmt: skip
    meant = dict.fromkeys(flag for name in extra for part, flag in flags.items() if part in name)
    return error(
        "T105",
        f"{len(extra)} tensors are there that the config does not speak of",
        where=some_of(extra),
        expected=f"a config that declares {next(iter(meant))}" if meant else "",
        why="engines build the model from the config and would leave trained weights out",
        fix=("set in config.json what was trained",),
    )


def _not_float(stored: StoredTensor) -> Finding:
    return error(
        "T106",
        f"{stored.name} is {stored.info.dtype}, not a floating-point tensor",
        where=stored.name,
        found=stored.info.dtype,
        expected="BF16, F16, F32 or F64",
        why="norms, biases and embeddings are never quantised",
        fix=("save the checkpoint again",),
    )


def _not_declared(weights: list[str]) -> Finding:
    return error(
        "T110",
        f"{len(weights)} weights are quantised and the config does not say how",
        where=some_of(weights),
        expected="quantization_config in config.json",
        why="an engine would load the quantised numbers as if they were the weights, or stop",
        fix=("put the quantization_config back that was saved with them, or convert the unquantised drafter",),
    )


def _nothing_quantised() -> Finding:
    return warning(
        "T111",
        "the config says that weights are quantised, and none is; quantization_config is not carried over",
        where="quantization_config",
        why="an engine would wait for scales that are not there",
        fix=("take it out of config.json, or convert the checkpoint that was quantised, if one was meant",),
    )


def _only_cache() -> Finding:
    return note(
        "T111",
        "quantization_config speaks of the KV cache alone; it is not carried over",
        where="quantization_config",
        why="no weight is quantised, and what the cache is kept in is for the engine's launch options to say",
    )


def _other_dtype(spec: DrafterSpec, checkpoint: Checkpoint, tensors: Mapping[str, str]) -> Iterator[Finding]:
    stored = checkpoint.tensors.get(tensors.get("fc.weight", ""))
    if stored and DTYPE_NAMES.get(stored.info.dtype, spec.dtype) != spec.dtype:
        yield warning(
            "C205",
            f"the config says {spec.dtype}, the weights are {DTYPE_NAMES[stored.info.dtype]}",
            where=spec.origins["dtype"].where,
            why="engines cast the weights to what the config says",
            fix=(f"to store them so: --dtype {spec.dtype}",),
        )


def _mixed(spec: DrafterSpec, checkpoint: Checkpoint, names: list[str]) -> Iterator[Finding]:
    by_dtype: dict[str, list[str]] = {}
    for name in names:
        by_dtype.setdefault(checkpoint.tensors[name].info.dtype, []).append(name)
    floats = {dtype: names for dtype, names in by_dtype.items() if dtype in FLOATS}
    if len(floats) > 1:
        rarest = min(floats, key=lambda dtype: len(floats[dtype]))
        yield warning(
            "T107",
            f"the weights mix {' and '.join(sorted(floats))}",
            where=some_of(floats[rarest]),
            why="engines load all of them in the served dtype, so the wider ones lose digits",
            fix=(f"to store them alike: --dtype {spec.dtype}",),
        )
