"""Which tensors a drafter of a given spec has, of what shape, and why. Names are speculators'."""

from __future__ import annotations

from dataclasses import dataclass

from converter.drafter.spec import DrafterSpec, Latent

# Tensors whose last axis has one block for each capture point, in the order of the points.
IN_BLOCKS = frozenset({"fc.weight", "input_norm.weight", "mask_hidden"})


@dataclass(frozen=True)
class Expected:
    """shape     as the spec implies it
    words     the same in symbols, for people: "heads x head_dim, 2 H"
    feature   the spec field that makes the drafter have it; "" for those that every drafter has
    optional  the forward pass can take it from elsewhere (the target's embedding)
    """

    shape: tuple[int, ...]
    words: str
    feature: str = ""
    optional: bool = False


def expected_tensors(spec: DrafterSpec) -> dict[str, Expected]:
    """Every weight of a drafter of this spec by canonical name (the vocabulary map is not among them)."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    width = spec.num_points * spec.target_hidden_size
    points = f"{spec.num_points} capture points x target hidden {spec.target_hidden_size}"
    tensors = {"fc.weight": Expected((hidden, width), f"[H, {points}]")}
    if spec.fc_bias:
        tensors["fc.bias"] = Expected((hidden,), "[H]", "fc_bias")
    if spec.norm_before_fc:
        tensors["input_norm.weight"] = Expected((width,), f"[{points}]", "norm_before_fc")
    if spec.fc_norm:
        for j in range(spec.num_points):
            tensors[f"fc_norm.{j}.weight"] = Expected((spec.target_hidden_size,), "[target hidden]", "fc_norm")
    if spec.mask_token_id is not None:
        tensors["mask_hidden"] = Expected((1, 1, width), f"[1, 1, {points}]", "mask_token_id")
    for i in range(spec.num_hidden_layers):
        # Layer 0 takes the token's embedding beside the state, so q, k and v are twice as wide.
        width_in, words_in = (2 * hidden, "2 H") if i == 0 else (hidden, "H")
        layer = {
            "input_layernorm.weight": Expected((hidden,), "[H]"),
            **_attention(spec, width_in, words_in),
            "post_attention_layernorm.weight": Expected((hidden,), "[H]"),
            "mlp.gate_proj.weight": Expected((inner, hidden), "[intermediate, H]"),
            "mlp.up_proj.weight": Expected((inner, hidden), "[intermediate, H]"),
            "mlp.down_proj.weight": Expected((hidden, inner), "[H, intermediate]"),
        }
        if i == 0:
            layer["hidden_norm.weight"] = Expected((hidden,), "[H]")
        if spec.mlp_bias:
            layer["mlp.gate_proj.bias"] = Expected((inner,), "[intermediate]", "mlp_bias")
            layer["mlp.up_proj.bias"] = Expected((inner,), "[intermediate]", "mlp_bias")
            layer["mlp.down_proj.bias"] = Expected((hidden,), "[H]", "mlp_bias")
        tensors |= {f"layers.{i}.{name}": expected for name, expected in layer.items()}
    tensors["norm.weight"] = Expected((hidden,), "[H]")
    if not spec.tie_word_embeddings:
        tensors["lm_head.weight"] = Expected((spec.draft_vocab_size, hidden), "[draft vocabulary, H]")
    # The target's can stand in for it only where the widths are equal.
    shared = spec.target_hidden_size == hidden
    tensors["embed_tokens.weight"] = Expected((spec.vocab_size, hidden), "[vocabulary, H]", optional=shared)
    return tensors


def _attention(spec: DrafterSpec, width: int, words: str) -> dict[str, Expected]:
    """Of a layer whose input is `width` wide."""
    if spec.latent is not None:
        return _latent_attention(spec, spec.latent, width, words)
    hidden = spec.hidden_size
    q, kv = spec.num_attention_heads * spec.head_dim, spec.num_key_value_heads * spec.head_dim
    tensors = {
        "self_attn.q_proj.weight": Expected((q, width), f"[heads x head_dim, {words}]"),
        "self_attn.k_proj.weight": Expected((kv, width), f"[kv heads x head_dim, {words}]"),
        "self_attn.v_proj.weight": Expected((kv, width), f"[kv heads x head_dim, {words}]"),
        "self_attn.o_proj.weight": Expected((hidden, q), "[H, heads x head_dim]"),
    }
    if spec.qk_norm:
        tensors["self_attn.q_norm.weight"] = Expected((spec.head_dim,), "[head_dim]", "qk_norm")
        tensors["self_attn.k_norm.weight"] = Expected((spec.head_dim,), "[head_dim]", "qk_norm")
    if spec.qkv_bias:
        tensors["self_attn.q_proj.bias"] = Expected((q,), "[heads x head_dim]", "qkv_bias")
        tensors["self_attn.k_proj.bias"] = Expected((kv,), "[kv heads x head_dim]", "qkv_bias")
        tensors["self_attn.v_proj.bias"] = Expected((kv,), "[kv heads x head_dim]", "qkv_bias")
    if spec.o_bias:
        tensors["self_attn.o_proj.bias"] = Expected((hidden,), "[H]", "o_bias")
    return tensors


def _latent_attention(spec: DrafterSpec, latent: Latent, width: int, words: str) -> dict[str, Expected]:
    """Of a layer of DeepSeek's kind; biases where its transformers class has them (5.19.0 models/deepseek_v3)."""
    heads, nope, turned, v = (
        spec.num_attention_heads, latent.qk_nope_head_dim, latent.qk_rope_head_dim, latent.v_head_dim
    )  # fmt: skip
    kv = latent.kv_lora_rank
    q_rows, q_words = heads * (nope + turned), "heads x (nope + rope)"
    shapes = {
        "kv_a_proj_with_mqa.weight": ((kv + turned, width), f"[kv rank + rope, {words}]"),
        "kv_a_layernorm.weight": ((kv,), "[kv rank]"),
        "kv_b_proj.weight": ((heads * (nope + v), kv), "[heads x (nope + v), kv rank]"),
        "o_proj.weight": ((spec.hidden_size, heads * v), "[H, heads x v]"),
    }
    if latent.q_lora_rank is None:
        shapes["q_proj.weight"] = ((q_rows, width), f"[{q_words}, {words}]")
    else:
        shapes["q_a_proj.weight"] = ((latent.q_lora_rank, width), f"[q rank, {words}]")
        shapes["q_a_layernorm.weight"] = ((latent.q_lora_rank,), "[q rank]")
        shapes["q_b_proj.weight"] = ((q_rows, latent.q_lora_rank), f"[{q_words}, q rank]")
    tensors = {f"self_attn.{n}": Expected(shape, text, "latent") for n, (shape, text) in shapes.items()}
    if spec.qkv_bias:
        tensors["self_attn.kv_a_proj_with_mqa.bias"] = Expected((kv + turned,), "[kv rank + rope]", "qkv_bias")
        if latent.q_lora_rank is not None:
            tensors["self_attn.q_a_proj.bias"] = Expected((latent.q_lora_rank,), "[q rank]", "qkv_bias")
    if spec.o_bias:
        tensors["self_attn.o_proj.bias"] = Expected((spec.hidden_size,), "[H]", "o_bias")
    return tensors
