"""What a drafter's config.json asks of the model; read from the config as SGLang holds it. Imports nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Wanted:
    """Sizes and flags of the model.

    hidden, target_hidden   width of a state of the drafter, and of one of the target's
    inner                   width within the MLP (intermediate_size)
    vocabulary              of the target; draft_vocabulary: of the drafter
    points    the target's states that are fed in (0 = embedding, k = output of the k-th layer), ascending
    windows   per layer: keys that a query sees, itself included; None for all
    tied      the head is the embedding
    """

    hidden: int
    target_hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    vocabulary: int
    draft_vocabulary: int
    points: tuple[int, ...]
    windows: tuple[int | None, ...]
    tied: bool
    fc_bias: bool
    qkv_bias: bool
    o_bias: bool
    qk_norm: bool
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool

    @classmethod
    def of(cls, config: Any) -> Wanted:
        """Raises ValueError for a config that eagle3-convert did not write for this class."""
        points = getattr(config, "eagle_aux_hidden_state_layer_ids", None)
        draft_vocabulary = getattr(config, "draft_vocab_size", None)
        layers = config.num_hidden_layers
        windows = getattr(config, "layer_windows", None) or [None] * layers
        if not points or draft_vocabulary is None or len(windows) != layers:
            raise ValueError(
                "config.json: expected eagle_aux_hidden_state_layer_ids, draft_vocab_size and one entry of "
                "layer_windows for each layer; this class serves what `eagle3-convert --allow-plugin` wrote"
            )

        def flag(name: str) -> bool:
            return bool(getattr(config, name, False))

        heads = config.num_attention_heads
        return cls(
            hidden=config.hidden_size,
            target_hidden=getattr(config, "target_hidden_size", None) or config.hidden_size,
            inner=config.intermediate_size,
            heads=heads,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            layers=layers,
            vocabulary=config.vocab_size,
            draft_vocabulary=draft_vocabulary,
            points=tuple(sorted(points)),
            windows=tuple(windows),
            tied=flag("tie_word_embeddings"),
            fc_bias=flag("bias"),
            qkv_bias=flag("qkv_bias"),
            o_bias=flag("attention_bias") or flag("bias"),
            qk_norm=flag("qk_norm"),
            norm_before_residual=flag("norm_before_residual"),
            norm_before_fc=flag("norm_before_fc"),
            fc_norm=flag("fc_norm"),
            norm_output=flag("norm_output"),
        )

    @property
    def shares_embedding(self) -> bool:
        """Whether the target's embedding can stand in for the drafter's."""
        return self.target_hidden == self.hidden

    @property
    def reach(self) -> int | None:
        """The widest window as SGLang counts it, without the query's own key; None where no layer has one."""
        return max((w - 1 for w in self.windows if w is not None), default=None)

    def shapes(self) -> dict[str, Shape]:
        """Every weight that the files hold, by the names of converter/drafter/layout.py, unsharded."""
        hidden, width = self.hidden, len(self.points) * self.target_hidden
        shapes: dict[str, Shape] = {"fc.weight": (hidden, width), "norm.weight": (hidden,)}
        shapes["embed_tokens.weight"] = (self.vocabulary, hidden)
        if self.fc_bias:
            shapes["fc.bias"] = (hidden,)
        if self.norm_before_fc:
            shapes["input_norm.weight"] = (width,)
        if self.fc_norm:
            shapes |= {f"fc_norm.{j}.weight": (self.target_hidden,) for j in range(len(self.points))}
        if not self.tied:
            shapes["lm_head.weight"] = (self.draft_vocabulary, hidden)
        for i in range(self.layers):
            shapes |= {f"layers.{i}.{name}": shape for name, shape in self._layer(2 * hidden if i == 0 else hidden)}
        shapes["layers.0.hidden_norm.weight"] = (hidden,)
        return shapes

    def _layer(self, width: int) -> list[tuple[str, Shape]]:
        hidden, q, kv = self.hidden, self.heads * self.head_dim, self.kv_heads * self.head_dim
        rows = {"q": q, "k": kv, "v": kv}
        layer: list[tuple[str, Shape]] = [
            ("input_layernorm.weight", (hidden,)),
            ("post_attention_layernorm.weight", (hidden,)),
            ("self_attn.o_proj.weight", (hidden, q)),
            ("mlp.gate_proj.weight", (self.inner, hidden)),
            ("mlp.up_proj.weight", (self.inner, hidden)),
            ("mlp.down_proj.weight", (hidden, self.inner)),
            *((f"self_attn.{part}_proj.weight", (count, width)) for part, count in rows.items()),
        ]
        if self.qkv_bias:
            layer += [(f"self_attn.{part}_proj.bias", (count,)) for part, count in rows.items()]
        if self.o_bias:
            layer.append(("self_attn.o_proj.bias", (hidden,)))
        if self.qk_norm:
            layer += [(f"self_attn.{part}_norm.weight", (self.head_dim,)) for part in "qk"]
        return layer


def canonical(name: str) -> str:
    """A name in the files as the table above has it: `midlayer` is layer 0, and the norm before a later layer's
    attention is called hidden_norm by some and input_layernorm by others.
    """
    if name.startswith("midlayer."):
        return "layers.0." + name.removeprefix("midlayer.")
    if name.startswith("layers.") and not name.startswith("layers.0."):
        return name.replace(".hidden_norm.", ".input_layernorm.")
    return name


@dataclass(frozen=True)
class Misfit:
    """What does not fit between the files and the model; empty lists where all does."""

    nowhere: Sequence[str]
    misshapen: Sequence[str]
    nothing: Sequence[str]

    def __bool__(self) -> bool:
        return bool(self.nowhere or self.misshapen or self.nothing)

    def __str__(self) -> str:
        parts: Mapping[str, Sequence[str]] = {
            "tensors of the files that go nowhere": self.nowhere,
            "tensors of another shape": self.misshapen,
            "parameters that received nothing": self.nothing,
        }
        lists = [f"  {what}: {', '.join(names) or 'none'}" for what, names in parts.items()]
        return "the files of this drafter do not fill the model that its config.json describes\n" + "\n".join(lists)
