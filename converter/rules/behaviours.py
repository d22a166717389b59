"""The closed registry of named behaviours that rules choose from: what a table of names cannot say.

READERS     config node -> value of a spec field            (`how:` of a field that is read)
DEFAULTS    other fields -> value of an absent field         (`default:` and `fixed:`)
WRITERS     spec field -> value of a config key              (`how:` of a key that is written)
POINTS      the target's number of layers -> capture points  (`points:` of a default)
LAUNCH      spec field <-> value of a launch option          (`launch:` of a field)
EMBEDDINGS  whose embedding an engine runs a drafter with    (`embedding:` of an engine)
What reads is total: a value that it cannot take raises Unreadable with what was expected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any

from converter.checkpoint.header import DTYPE_NAMES
from converter.drafter.spec import Latent, Rope

Values = Mapping[str, Any]


class Unreadable(ValueError):
    """A config value that means nothing; the message is what was expected.

    key, value   the part of an object that is meant; "" where it is the whole of it
    """

    def __init__(self, expected: str, key: str = "", value: Any = None) -> None:
        super().__init__(expected)
        self.key = key
        self.value = value


# --- plain values -----------------------------------------------------------------------------------------

COUNTS = frozenset({
    "hidden_size", "target_hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "vocab_size", "draft_vocab_size", "max_position_embeddings",
})  # fmt: skip
FLAGS = frozenset({
    "qkv_bias", "o_bias", "mlp_bias", "fc_bias", "qk_norm", "norm_before_residual", "norm_before_fc", "fc_norm",
    "norm_output", "tie_word_embeddings",
})  # fmt: skip


def plain(field: str, value: Any, values: Values) -> Any:
    """A value of the field's own type."""
    if field in COUNTS:
        return whole_number(value, least=1, most=1000 if field == "num_hidden_layers" else 2**40)
    if field in FLAGS:
        if not isinstance(value, bool):
            raise Unreadable("true or false")
        return value
    if field == "mask_token_id":
        return whole_number(value, least=0)
    if field == "rms_norm_eps":
        return positive(value)
    if not isinstance(value, str):
        raise Unreadable("a string")
    return value


def whole_number(value: Any, least: int, most: int = 2**40) -> int:
    """The value, from `least` to `most`. Raises Unreadable."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise Unreadable(f"a whole number from {least} to {most:,}")
    return value


def positive(value: Any) -> float:
    """The value as a float. Raises Unreadable."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e30:
        raise Unreadable("a positive number")
    return float(value)


def dtype(field: str, value: Any, values: Values) -> str:
    """`bfloat16`, also spelt `torch.bfloat16`."""
    known = sorted(DTYPE_NAMES.values())
    if not isinstance(value, str) or value.removeprefix("torch.") not in known:
        raise Unreadable("one of " + ", ".join(known))
    return value.removeprefix("torch.")


def integers(field: str, value: Any, values: Values) -> tuple[int, ...]:
    """Layer ids as listed; what they mean is the id rule's business."""
    if not isinstance(value, list) or not 0 < len(value) <= 1000:
        raise Unreadable("a list of layer ids")
    wrong = [i for i in value if not isinstance(i, int) or isinstance(i, bool) or abs(i) >= 2**31]
    if wrong:
        raise Unreadable(f"a list of layer ids, whole numbers all; {repr(wrong[0])[:40]} cannot be one")
    return tuple(value)


# --- rope ---------------------------------------------------------------------------------------------------

_ROPE_NAMES = ("rope_type", "type")  # transformers before 4.43 wrote `type`

# Kind of rope -> parameters that it needs, and that it may have (transformers 5.19.0 modeling_rope_utils.py). Others
# are refused: an engine may read a name that the trainer ignored, or the other way round.
_ROPE_KINDS: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "default": (frozenset(), frozenset({"partial_rotary_factor", "mrope_section", "mrope_interleaved"})),
    "linear": (frozenset({"factor"}), frozenset()),
    "dynamic": (frozenset({"factor"}), frozenset({"original_max_position_embeddings"})),
    "yarn": (
        frozenset({"factor", "original_max_position_embeddings"}),
        frozenset({"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}),
    ),
    "longrope": (
        frozenset({"short_factor", "long_factor", "original_max_position_embeddings"}),
        frozenset({"factor", "attention_factor"}),
    ),
    "llama3": (
        frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
        frozenset(),
    ),
}


def _rope(theta: Any, scaling: Any) -> Rope:
    if scaling is None:
        return Rope(positive(theta))
    if not isinstance(scaling, dict):
        raise Unreadable("rope parameters as an object")
    named = [scaling[n] for n in _ROPE_NAMES if scaling.get(n) is not None] or ["default"]
    if len({str(n) for n in named}) > 1 or not isinstance(named[0], str) or named[0] not in _ROPE_KINDS:
        raise Unreadable("one rope_type of " + ", ".join(_ROPE_KINDS))
    needed, allowed = _ROPE_KINDS[named[0]]
    rest = {k: v for k, v in scaling.items() if k not in (*_ROPE_NAMES, "rope_theta") and v is not None}
    if not needed <= rest.keys() <= needed | allowed:
        also = f", perhaps {', '.join(sorted(allowed))}" if allowed else ""
        raise Unreadable(f"for {named[0]} rope: {', '.join(sorted(needed)) or 'nothing'}{also}, and nothing else")
    return Rope(positive(theta), named[0], tuple((k, _rope_value(rest[k])) for k in sorted(rest)))


def _rope_value(value: Any) -> Any:
    """A positive number, a list of them, or a flag; as it is, so that it is written as it was."""
    if isinstance(value, bool):
        return value
    if isinstance(value, list) and len(value) <= 10_000:
        return tuple(v for v in value if positive(v))
    positive(value)
    return value


def rope_parameters_first(field: str, node: Any, values: Values) -> Rope | None:
    """transformers 5's `rope_parameters` where present, else transformers 4's `rope_theta` and `rope_scaling`."""
    if not isinstance(node, dict):
        raise Unreadable("an object")
    parameters = node.get("rope_parameters")
    if parameters is None:
        return rope_flat(field, node, values)
    if not isinstance(parameters, dict):
        raise Unreadable("rope_parameters as an object")
    scaling = node.get("rope_scaling")
    theta = parameters.get("rope_theta", node.get("rope_theta"))
    if theta is None:
        raise Unreadable("a rope_theta in rope_parameters")
    rope = _rope(theta, parameters)
    if scaling is not None and _rope(theta, scaling) != rope:  # transformers 5 would take rope_scaling
        raise Unreadable("the same in rope_scaling and rope_parameters")
    return rope


def rope_without_scaling(field: str, node: Any, values: Values) -> Rope | None:
    """As rope_parameters_first, for trainers that take the base from there and nothing else."""
    rope = rope_parameters_first(field, node, values)
    return None if rope is None else Rope(rope.theta)


def rope_base_10000(field: str, node: Any, values: Values) -> Rope | None:
    """As rope_parameters_first, for trainers that leave the base at 10000 whatever it says.

    Kinds that they do not know, and interleaved mrope, which has a class of its own, are taken as they stand.
    """
    rope = rope_parameters_first(field, node, values)
    other = (
        rope is None
        or rope.kind not in ("default", "linear", "dynamic")
        or "mrope_interleaved" in dict(rope.parameters)
    )
    return rope if rope is None or other else replace(rope, theta=10000.0)


def rope_flat(field: str, node: Any, values: Values) -> Rope | None:
    """`rope_theta` and `rope_scaling` only; None where neither is there."""
    if not isinstance(node, dict):
        raise Unreadable("an object")
    theta, scaling = node.get("rope_theta"), node.get("rope_scaling")
    if theta is None and scaling is None:
        return None
    if theta is None:
        raise Unreadable("a rope_theta beside rope_scaling")
    return _rope(theta, scaling)


# --- sliding windows ------------------------------------------------------------------------------------------


def windows_by_layer_types(field: str, node: Any, values: Values) -> tuple[int | None, ...]:
    """A layer of type `sliding_attention` sees `sliding_window` keys, its own included; others see all.

    `use_sliding_window` counts only in qwen3 configs, whose class then forgets the window (transformers 5.19.0
    models/qwen3/configuration_qwen3.py:87).
    """
    if not isinstance(node, dict):
        raise Unreadable("an object")
    layers: int = values["num_hidden_layers"]
    kinds = node.get("layer_types")
    if kinds is None and node.get("model_type") == "qwen3":  # transformers' Qwen3Config then goes by max_window_layers
        full = whole_number(node.get("max_window_layers", 28), least=0)
        kinds = ["sliding_attention" if i >= full else "full_attention" for i in range(layers)]
    if kinds is None:
        return (None,) * layers
    known = {"full_attention", "sliding_attention"}
    if not isinstance(kinds, list) or len(kinds) != layers or not set(map(str, kinds)) <= known:
        fits = f"{layers} entries of full_attention or sliding_attention, as many as num_hidden_layers"
        raise Unreadable(fits, "layer_types", kinds)
    forgotten = node.get("model_type") == "qwen3" and not node.get("use_sliding_window")
    if "sliding_attention" not in kinds or forgotten or node.get("sliding_window") is None:
        return (None,) * layers
    window = whole_number(node.get("sliding_window"), least=1)
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def windows_listed(field: str, node: Any, values: Values) -> tuple[int | None, ...]:
    """One entry for each layer: the keys that a query sees, its own included, or null for all."""
    layers: int = values["num_hidden_layers"]
    if not isinstance(node, list) or len(node) != layers:
        raise Unreadable(f"a list of {layers}: a window or null for each layer")
    return tuple(None if window is None else whole_number(window, least=1) for window in node)


# --- latent attention -----------------------------------------------------------------------------------------


def latent_attention(field: str, node: Any, values: Values) -> Latent | None:
    """The widths of a latent attention; None where there is no kv_lora_rank."""
    if not isinstance(node, dict):
        raise Unreadable("an object")
    if node.get("kv_lora_rank") is None:
        return None

    def width(name: str) -> int:
        try:
            return whole_number(node.get(name), least=1)
        except Unreadable as problem:
            raise Unreadable(f"{name}: {problem}") from problem

    compressed = node.get("q_lora_rank") is not None
    others = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    return Latent(width("q_lora_rank") if compressed else None, *map(width, others))


READERS: Mapping[str, Callable[[str, Any, Values], Any]] = {
    "plain": plain,
    "dtype": dtype,
    "ids": integers,
    "rope_parameters_first": rope_parameters_first,
    "rope_flat": rope_flat,
    "rope_base_10000": rope_base_10000,
    "rope_without_scaling": rope_without_scaling,
    "windows_by_layer_types": windows_by_layer_types,
    "windows_listed": windows_listed,
    "latent_attention": latent_attention,
}

# --- defaults -----------------------------------------------------------------------------------------------


def _half_and_near_the_end(layers: int) -> tuple[int, ...]:
    """Capture points 2, L//2, L-3: what all agree on where no ids are written."""
    return (2, layers // 2, layers - 3)


def _one_later(layers: int) -> tuple[int, ...]:
    return tuple(p + 1 for p in _half_and_near_the_end(layers))


# Default capture points by name: a function of the target's number of layers.
POINTS: Mapping[str, Callable[[int], tuple[int, ...]]] = {
    "2, L//2, L-3": _half_and_near_the_end,
    "3, L//2+1, L-2": _one_later,
}


DEFAULTS: Mapping[str, Callable[[Any, Values, int | None], Any]] = {
    "same_as": lambda field, values, layers: values[field],
    "quotient": lambda fields, values, layers: max(values[fields[0]] // values[fields[1]], 1),
    "rope_theta": lambda theta, values, layers: Rope(float(theta)),
    "full_attention": lambda _, values, layers: (None,) * values["num_hidden_layers"],
    "points": lambda name, values, layers: None if layers is None else POINTS[name](layers),
}


def default_value(default: Any, values: Values, layers: int | None) -> Any:
    """A literal, or what a one-key mapping computes from earlier fields; None where that is unknown."""
    if not isinstance(default, dict):
        return default
    [(name, argument)] = default.items()
    return DEFAULTS[name](argument, values, layers)


# --- writing ------------------------------------------------------------------------------------------------


def _rope_scaling(rope: Rope) -> Any:
    return _thawed(rope.as_scaling())


def _thawed(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _thawed(v) for k, v in value.items()}
    return list(value) if isinstance(value, tuple) else value


WRITERS: Mapping[str, Callable[[Any], Any]] = {
    "plain": _thawed,
    "rope_theta": lambda rope: rope.theta,
    "rope_scaling": _rope_scaling,
    "rope_parameters": lambda rope: _thawed(rope.as_parameters()),
    "count": len,
    "layer_types": lambda windows: _sliding(
        windows, ["full_attention" if w is None else "sliding_attention" for w in windows]
    ),
    "windows": lambda windows: _sliding(windows, list(windows)),
    "sliding_window": lambda windows: _sliding(windows, max((w for w in windows if w is not None), default=None)),
    **{f.name: attrgetter(f.name) for f in fields(Latent)},
    "use_sliding_window": lambda windows: _sliding(windows, True),
    "greedy_proposals": lambda tokens: [{"proposal_type": "greedy", "speculative_tokens": tokens}],
}


def _sliding(windows: tuple[int | None, ...], value: Any) -> Any:
    """What transformers writes of sliding windows: nothing where no layer has one."""
    return value if any(w is not None for w in windows) else None


@dataclass(frozen=True)
class Launch:
    """How a field travels in a launch option: `to_option` gives None where the option cannot say it."""

    to_option: Callable[[Any], Any]
    from_option: Callable[[Any, Values], Any]


def _window_to_left_reach(windows: tuple[int | None, ...]) -> int | None:
    """One window for all layers, counted without the query's own key; None for a mix."""
    return windows[0] - 1 if len(set(windows)) == 1 and windows[0] is not None else None


def _left_reach_to_window(reach: Any, values: Values) -> tuple[int | None, ...]:
    layers: int = values["num_hidden_layers"]
    return (None if reach is None else whole_number(reach, least=0) + 1,) * layers


def _layers_before(points: tuple[int, ...]) -> list[int]:
    """0-based layers whose outputs are the points."""
    return [p - 1 for p in sorted(points)]


def _points_after(layers: Any, values: Values) -> tuple[int, ...] | None:
    if layers is None:
        return None
    if not isinstance(layers, list):
        raise Unreadable("a list of layers")
    return tuple(whole_number(layer, least=-1) + 1 for layer in layers)


# How llama.cpp's converter is told in which type to write the weights.
_GGUF_TYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}


def _to_gguf_type(dtype: str) -> str:
    """`auto` where there is no such type: read back it is none, so the drafter is refused."""
    return _GGUF_TYPES.get(dtype, "auto")


def _from_gguf_type(word: Any, values: Values) -> str | None:
    return next((dtype for dtype, known in _GGUF_TYPES.items() if known == word), None)


LAUNCH: Mapping[str, Launch] = {
    "left_reach": Launch(_window_to_left_reach, _left_reach_to_window),
    "layers_before": Launch(_layers_before, _points_after),
    "gguf_type": Launch(_to_gguf_type, _from_gguf_type),
}

# Whether an engine takes the target's embedding in place of the drafter's own: (target width, drafter width) -> bool.
EMBEDDINGS: Mapping[str, Callable[[int, int], bool]] = {
    "target_unless_widths_differ": lambda target, drafter: target == drafter,
    "own_if_present": lambda target, drafter: False,
}
