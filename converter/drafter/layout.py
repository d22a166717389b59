"""Which tensors a drafter of a given spec has, of what shape, and why. Names are speculators'."""

from __future__ import annotations

from dataclasses import dataclass

from converter.drafter.spec import DrafterSpec, Latent

# Tensors whose last axis has one block for each capture point, in the order of the points.
IN_BLOCKS = frozenset({"fc.weight", "input_norm.weight", "mask_hidden"})


@dataclass(frozen=True)
class Expected:
    """shape     as the spec implies it
    words     where each number comes from: "[4 heads x 16 rows, 2 x hidden 64 columns]"
    feature   the spec field that makes the drafter have it; "" for those that every drafter has
    optional  the forward pass can take it from elsewhere (the target's embedding)
    why       what is not plain about the shape; "" where nothing is
    """

    shape: tuple[int, ...]
    words: str
    feature: str = ""
    optional: bool = False
    why: str = ""

    def __str__(self) -> str:
        """`[64, 128] = [4 heads x 16 rows, 2 x hidden 64 columns]: layer 0 takes ...`"""
        return f"{list(self.shape)} = {self.words}" + (f": {self.why}" if self.why else "")


# Why q, k and v of layer 0 have twice the columns of a plain layer's.
_SIDE_BY_SIDE = "layer 0 takes the token's embedding and the state side by side"


def expected_tensors(spec: DrafterSpec) -> dict[str, Expected]:
    """Every weight of a drafter of this spec by canonical name (the vocabulary map is not among them)."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    width = spec.num_points * spec.target_hidden_size
    h, mlp = f"hidden {hidden}", f"intermediate {inner}"
    points = f"{spec.num_points} capture points x target hidden {spec.target_hidden_size}"
    tensors = {"fc.weight": Expected((hidden, width), f"[{h}, {points}]")}
    if spec.fc_bias:
        tensors["fc.bias"] = Expected((hidden,), f"[{h}]", "fc_bias")
    if spec.norm_before_fc:
        tensors["input_norm.weight"] = Expected((width,), f"[{points}]", "norm_before_fc")
    if spec.fc_norm:
        for j in range(spec.num_points):
            words = f"[target hidden {spec.target_hidden_size}]"
            tensors[f"fc_norm.{j}.weight"] = Expected((spec.target_hidden_size,), words, "fc_norm")
    if spec.mask_token_id is not None:
        tensors["mask_hidden"] = Expected((1, 1, width), f"[1, 1, {points}]", "mask_token_id")
    for i in range(spec.num_hidden_layers):
        wide = _Input(2 * hidden, f"2 x {h} columns", _SIDE_BY_SIDE) if i == 0 else _Input(hidden, f"{h} columns")
        layer = {
            "input_layernorm.weight": Expected((hidden,), f"[{h}]"),
            **_attention(spec, wide),
            "post_attention_layernorm.weight": Expected((hidden,), f"[{h}]"),
            "mlp.gate_proj.weight": Expected((inner, hidden), f"[{mlp}, {h}]"),
            "mlp.up_proj.weight": Expected((inner, hidden), f"[{mlp}, {h}]"),
            "mlp.down_proj.weight": Expected((hidden, inner), f"[{h}, {mlp}]"),
        }
        if i == 0:
            layer["hidden_norm.weight"] = Expected((hidden,), f"[{h}]")
        if spec.mlp_bias:
            layer["mlp.gate_proj.bias"] = Expected((inner,), f"[{mlp}]", "mlp_bias")
            layer["mlp.up_proj.bias"] = Expected((inner,), f"[{mlp}]", "mlp_bias")
            layer["mlp.down_proj.bias"] = Expected((hidden,), f"[{h}]", "mlp_bias")
        tensors |= {f"layers.{i}.{name}": expected for name, expected in layer.items()}
    tensors["norm.weight"] = Expected((hidden,), f"[{h}]")
    if not spec.tie_word_embeddings:
        words = f"[draft vocabulary {spec.draft_vocab_size}, {h}]"
        tensors["lm_head.weight"] = Expected((spec.draft_vocab_size, hidden), words)
    # The target's can stand in for it only where the widths are equal.
    shared = spec.target_hidden_size == hidden
    words = f"[vocabulary {spec.vocab_size}, {h}]"
    tensors["embed_tokens.weight"] = Expected((spec.vocab_size, hidden), words, optional=shared)
    return tensors


@dataclass(frozen=True)
class _Input:
    """What a layer's attention reads: `width` columns, in words, and why they are so many."""

    width: int
    words: str
    why: str = ""


def _attention(spec: DrafterSpec, wide: _Input) -> dict[str, Expected]:
    if spec.latent is not None:
        return _latent_attention(spec, spec.latent, wide)
    hidden = spec.hidden_size
    q, kv = spec.num_attention_heads * spec.head_dim, spec.num_key_value_heads * spec.head_dim
    heads, kv_heads = f"{spec.num_attention_heads} heads", f"{spec.num_key_value_heads} heads of keys"
    q_rows, kv_rows = f"{heads} x {spec.head_dim} rows", f"{kv_heads} x {spec.head_dim} rows"
    tensors = {
        "self_attn.q_proj.weight": Expected((q, wide.width), f"[{q_rows}, {wide.words}]", why=wide.why),
        "self_attn.k_proj.weight": Expected((kv, wide.width), f"[{kv_rows}, {wide.words}]", why=wide.why),
        "self_attn.v_proj.weight": Expected((kv, wide.width), f"[{kv_rows}, {wide.words}]", why=wide.why),
        "self_attn.o_proj.weight": Expected((hidden, q), f"[hidden {hidden}, {heads} x {spec.head_dim} columns]"),
    }
    if spec.qk_norm:
        tensors["self_attn.q_norm.weight"] = Expected((spec.head_dim,), f"[head_dim {spec.head_dim}]", "qk_norm")
        tensors["self_attn.k_norm.weight"] = Expected((spec.head_dim,), f"[head_dim {spec.head_dim}]", "qk_norm")
    if spec.qkv_bias:
        tensors["self_attn.q_proj.bias"] = Expected((q,), f"[{heads} x {spec.head_dim}]", "qkv_bias")
        tensors["self_attn.k_proj.bias"] = Expected((kv,), f"[{kv_heads} x {spec.head_dim}]", "qkv_bias")
        tensors["self_attn.v_proj.bias"] = Expected((kv,), f"[{kv_heads} x {spec.head_dim}]", "qkv_bias")
    if spec.o_bias:
        tensors["self_attn.o_proj.bias"] = Expected((hidden,), f"[hidden {hidden}]", "o_bias")
    return tensors


def _latent_attention(spec: DrafterSpec, latent: Latent, wide: _Input) -> dict[str, Expected]:
    """Of a layer of DeepSeek's kind; biases where its transformers class has them (5.19.0 models/deepseek_v3)."""
    heads, nope, turned, v = (
        spec.num_attention_heads, latent.qk_nope_head_dim, latent.qk_rope_head_dim, latent.v_head_dim
    )  # fmt: skip
    kv = latent.kv_lora_rank
    q_rows, q_words = heads * (nope + turned), f"{heads} heads x (nope {nope} + rope {turned})"
    kv_words = f"kv rank {kv} + rope {turned}"
    shapes = {
        "kv_a_proj_with_mqa.weight": ((kv + turned, wide.width), f"[{kv_words}, {wide.words}]", wide.why),
        "kv_a_layernorm.weight": ((kv,), f"[kv rank {kv}]", ""),
        "kv_b_proj.weight": ((heads * (nope + v), kv), f"[{heads} heads x (nope {nope} + v {v}), kv rank {kv}]", ""),
        "o_proj.weight": ((spec.hidden_size, heads * v), f"[hidden {spec.hidden_size}, {heads} heads x v {v}]", ""),
    }
    if latent.q_lora_rank is None:
        shapes["q_proj.weight"] = ((q_rows, wide.width), f"[{q_words}, {wide.words}]", wide.why)
    else:
        rank = f"q rank {latent.q_lora_rank}"
        shapes["q_a_proj.weight"] = ((latent.q_lora_rank, wide.width), f"[{rank}, {wide.words}]", wide.why)
        shapes["q_a_layernorm.weight"] = ((latent.q_lora_rank,), f"[{rank}]", "")
        shapes["q_b_proj.weight"] = ((q_rows, latent.q_lora_rank), f"[{q_words}, {rank}]", "")
    tensors = {f"self_attn.{n}": Expected(shape, text, "latent", why=why) for n, (shape, text, why) in shapes.items()}
    if spec.qkv_bias:
        tensors["self_attn.kv_a_proj_with_mqa.bias"] = Expected((kv + turned,), f"[{kv_words}]", "qkv_bias")
        if latent.q_lora_rank is not None:
            words = f"[q rank {latent.q_lora_rank}]"
            tensors["self_attn.q_a_proj.bias"] = Expected((latent.q_lora_rank,), words, "qkv_bias")
    if spec.o_bias:
        words = f"[hidden {spec.hidden_size}]"
        tensors["self_attn.o_proj.bias"] = Expected((spec.hidden_size,), words, "o_bias")
    return tensors
