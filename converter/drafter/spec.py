"""The canonical specification of a drafter: every fact that its forward pass needs, and where each came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

How = Literal["stated", "default", "derived", "given", "fixed"]


@dataclass(frozen=True)
class Origin:
    """Where a field's value came from.

    how    stated (in the input's config), default (the dialect's or engine's), derived (from tensors or other
           fields), given (by the user), fixed (the engine computes this whatever the config says)
    where  the config key, tensor, option or source behind it
    """

    how: How
    where: str

    def __str__(self) -> str:
        """`eagle_config.eagle_aux_hidden_state_layer_ids (stated)`"""
        return f"{self.where or 'the input'} ({self.how})"


def exact(number: float) -> str:
    """`500000`, `207112184`, `0.1`: what reads as this very number; whole ones have no exponent up to 15 digits."""
    text = f"{number:.15g}"
    return text if float(text) == number else repr(number)


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding: `kind` is transformers' rope_type; `parameters` holds what that kind needs."""

    theta: float
    kind: str = "default"
    parameters: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        """`theta 10000, yarn factor 32.0`; plain rope has its theta alone."""
        kind = [] if self.kind == "default" and not self.parameters else [self.kind]
        kind += [", ".join(f"{name} {value}" for name, value in self.parameters)] if self.parameters else []
        return f"theta {exact(self.theta)}" + (f", {' '.join(kind)}" if kind else "")

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.parameters)

    def as_scaling(self) -> dict[str, Any] | None:
        """transformers 4's `rope_scaling`: None for plain rope, `rope_type` and its parameters otherwise."""
        if self.kind == "default" and not self.parameters:
            return None
        return {"rope_type": self.kind, **dict(self.parameters)}

    def as_parameters(self) -> dict[str, Any]:
        """transformers 5's `rope_parameters`: theta and rope_type always, then the kind's parameters."""
        return {"rope_type": self.kind, "rope_theta": self.theta, **dict(self.parameters)}


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (MLA): what q, k and v are made of. Names are those of every config.

    q_lora_rank        width of the latent that q comes from; None: straight from the layer's input
    kv_lora_rank       width of the latent that k and v come from
    qk_nope_head_dim   width of a head of q and k that rope leaves alone
    qk_rope_head_dim   width of the part that it turns, in k one for all heads
    v_head_dim         width of a head of v
    """

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    @property
    def compressed_q(self) -> bool:
        return self.q_lora_rank is not None


@dataclass(frozen=True)
class DrafterSpec:
    """Shapes: H = hidden_size, Ht = target_hidden_size, V = vocab_size (the target's), Vd = draft_vocab_size.

    A field that a dialect may leave out says in `origins` where its value came from.
    capture_points     the target states fed in, in the order of the blocks of `fc`
    layer_windows      per layer: keys that a query sees, itself included; None for all
    norm_before_residual   layer 0 adds the normed state to its residual instead of the raw one
    norm_before_fc     one RMSNorm over the concatenated states (`input_norm`)
    fc_norm            one RMSNorm per state (`fc_norm.{j}`)
    norm_output        the state fed back between steps is the normed one
    qk_norm            RMSNorm over each head of q and k
    mask_token_id      the token in place of those not drafted yet, where all are drafted in one pass (P-EAGLE)
    latent             its attention is a latent one; head_dim is then the width that rope turns
    """

    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    hidden_act: str
    rms_norm_eps: float
    max_position_embeddings: int
    rope: Rope
    layer_windows: tuple[int | None, ...]
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    fc_bias: bool
    qk_norm: bool
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool
    tie_word_embeddings: bool
    capture_points: tuple[int, ...]
    dtype: str
    origins: Mapping[str, Origin]
    mask_token_id: int | None = None
    latent: Latent | None = None

    def value_of(self, attribute: str) -> Any:
        """The value of a field or property, or of a part of one (`rope.kind`); None where there is no such part."""
        value: Any = self
        for part in attribute.split("."):
            value = None if value is None else getattr(value, part)
        return value

    def origin_of(self, field: str) -> str:
        """Where a field's value came from, for people; "" where nothing says."""
        return str(self.origins.get(field, ""))

    @property
    def num_points(self) -> int:
        return len(self.capture_points)

    def ascending(self) -> DrafterSpec:
        """The drafter with its points in layer order, as engines are told them and capture them."""
        return replace(self, capture_points=tuple(sorted(self.capture_points)))

    @property
    def takes_embedding(self) -> bool:
        """Whether the target's embedding is among the captured states."""
        return 0 in self.capture_points

    @property
    def reduced_vocabulary(self) -> bool:
        return self.draft_vocab_size != self.vocab_size

    @property
    def mixed_windows(self) -> bool:
        return len(set(self.layer_windows)) > 1

    @property
    def not_computed(self) -> str:
        """The part that the forward pass here does not know, in words; "" where it knows all."""
        parts = {"latent attention": self.latent, "parallel drafting": self.mask_token_id}
        return " and ".join(part for part, value in parts.items() if value is not None)

    @property
    def cache_width(self) -> int:
        """Values that a layer's attention caches for a token: keys and values of all heads, or one latent."""
        if self.latent is not None:
            return self.latent.kv_lora_rank + self.latent.qk_rope_head_dim
        return 2 * self.num_key_value_heads * self.head_dim

    @property
    def equal_widths(self) -> bool:
        return self.target_hidden_size == self.hidden_size

    @property
    def fc_is_square(self) -> bool:
        """True where the captured states are together exactly as wide as the drafter."""
        return self.num_points * self.target_hidden_size == self.hidden_size


# The flags of a wiring: which norms there are and what they feed.
NORM_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")

# Fields that rules need not speak of: what few drafters have, and None for the others.
OPTIONAL = frozenset({"mask_token_id", "latent"})

FIELDS: tuple[str, ...] = tuple(f.name for f in fields(DrafterSpec) if f.name != "origins")


def differences(a: DrafterSpec, b: DrafterSpec) -> list[str]:
    """Names of the fields in which two specs differ, in the spec's order."""
    return [name for name in FIELDS if getattr(a, name) != getattr(b, name)]


def shown_value(value: Any) -> str:
    """A field's value for people: None and flags as JSON has them, layers without a window as `full`."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Latent):
        return ", ".join(f"{f.name} {shown_value(getattr(value, f.name))}" for f in fields(value))
    if isinstance(value, frozenset):
        return ", ".join(sorted(value)) or "nothing"
    if isinstance(value, tuple):
        return "[" + ", ".join("full" if v is None else str(v) for v in value) + "]"
    return str(value)
