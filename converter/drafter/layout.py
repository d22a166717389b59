"""Which tensors a drafter of a given spec has, of what shape, and why. Names are speculators'."""

from __future__ import annotations

from dataclasses import dataclass

from converter.drafter.spec import DrafterSpec


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
    q, kv = spec.num_attention_heads * spec.head_dim, spec.num_key_value_heads * spec.head_dim
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
            "self_attn.q_proj.weight": Expected((q, width_in), f"[heads x head_dim, {words_in}]"),
            "self_attn.k_proj.weight": Expected((kv, width_in), f"[kv heads x head_dim, {words_in}]"),
            "self_attn.v_proj.weight": Expected((kv, width_in), f"[kv heads x head_dim, {words_in}]"),
            "self_attn.o_proj.weight": Expected((hidden, q), "[H, heads x head_dim]"),
            "post_attention_layernorm.weight": Expected((hidden,), "[H]"),
            "mlp.gate_proj.weight": Expected((inner, hidden), "[intermediate, H]"),
            "mlp.up_proj.weight": Expected((inner, hidden), "[intermediate, H]"),
            "mlp.down_proj.weight": Expected((hidden, inner), "[H, intermediate]"),
        }
        if i == 0:
            layer["hidden_norm.weight"] = Expected((hidden,), "[H]")
        if spec.qk_norm:
            layer["self_attn.q_norm.weight"] = Expected((spec.head_dim,), "[head_dim]", "qk_norm")
            layer["self_attn.k_norm.weight"] = Expected((spec.head_dim,), "[head_dim]", "qk_norm")
        if spec.qkv_bias:
            layer["self_attn.q_proj.bias"] = Expected((q,), "[heads x head_dim]", "qkv_bias")
            layer["self_attn.k_proj.bias"] = Expected((kv,), "[kv heads x head_dim]", "qkv_bias")
            layer["self_attn.v_proj.bias"] = Expected((kv,), "[kv heads x head_dim]", "qkv_bias")
        if spec.o_bias:
            layer["self_attn.o_proj.bias"] = Expected((hidden,), "[H]", "o_bias")
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
