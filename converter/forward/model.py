"""The canonical drafter's forward pass.

Row i of a sequence x_0..x_T takes the token x_{i+1} together with the target's state at position i, and says
x_{i+2} (EAGLE-3, arXiv 2503.01840; row layout as speculators 0.9.0 models/eagle3/data.py `shift_batch`).
Step k of row i takes x_{i+1+k} with the state that step k-1 gave for the same row; it attends to the step-0 keys
of rows <= i and to its own steps 1..k.

Rows are computed in pieces of sequences; one call takes pieces of several, so that short sequences fill the matrix
products, and a long one needs the memory of a piece and its step-0 keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from converter.drafter.spec import DrafterSpec
from converter.forward.rope import NotComputable, frequencies, rotate

_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}
_QUERIES = 256  # rows that attend at once, under one mask: more of them compute more keys that a row does not see
_SCORES = 2**28  # attention scores held at once, should the kernel hold them at all: 1 GiB in fp32


@dataclass
class History:
    """Step-0 keys and values of the rows of one sequence so far: per layer [rows, kv heads, head_dim]."""

    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Piece:
    """Rows start..start+count-1 of one sequence; `history` holds those before and takes these in at step 0.

    lead   rows at the front that are only attended to: no more is computed of them than that takes
    """

    start: int
    count: int
    history: History = field(default_factory=History)
    lead: int = 0

    @property
    def asking(self) -> Piece:
        """The rows after the lead."""
        return Piece(self.start + self.lead, self.count - self.lead, self.history)


def after_lead(pieces: Sequence[Piece]) -> Tensor:
    """[N] bool: of the rows of all pieces, one after another, those after the lead of their piece."""
    return torch.cat([torch.arange(piece.count) >= piece.lead for piece in pieces])


class DraftModel:
    """A drafter of `spec` with `weights` (canonical name -> tensor of one dtype; shapes as drafter/layout.py says).

    Norms and logits are computed in fp32, everything else in the dtype of the weights.
    windows_move   False: a window lies over the step-0 keys and stays where it is in later steps, as in training;
                   True: it counts positions and moves on with the steps, own ones among them, as in engines
    state_normed_twice   the first layer's input_layernorm, which is for the embedding, is run over the state as well
                   before hidden_norm, as ModelOpt trains and no engine does (rules: `cautions`, kind unlike)
    Raises NotComputable where the spec has a part that this pass does not know.
    """

    def __init__(
        self,
        spec: DrafterSpec,
        weights: Mapping[str, Tensor],
        windows_move: bool = False,
        state_normed_twice: bool = False,
    ) -> None:
        if spec.hidden_act not in _ACTIVATIONS:
            raise NotComputable(f"the activation {spec.hidden_act}")
        if spec.not_computed:
            raise NotComputable(spec.not_computed)
        self.spec = spec
        self.weights = weights
        self.windows_move = windows_move
        self.state_normed_twice = state_normed_twice
        self.device, self.dtype = weights["fc.weight"].device, weights["fc.weight"].dtype
        inverse, self._rope_scale = frequencies(spec.rope, spec.head_dim)
        self._inverse = inverse.to(self.device)

    def combine(self, states: Tensor) -> Tensor:
        """[N, n*Ht] -> [N, H]: the norms before fc, then fc."""
        if self.spec.norm_before_fc:
            states = self._norm(states, "input_norm.weight")
        if self.spec.fc_norm:
            parts = states.chunk(self.spec.num_points, dim=-1)
            states = torch.cat([self._norm(s, f"fc_norm.{j}.weight") for j, s in enumerate(parts)], dim=-1)
        return self._linear(states, "fc")

    def steps(self, combined: Tensor, tokens: Sequence[Tensor], pieces: Sequence[Piece]) -> Iterator[Tensor]:
        """What the head takes at each step, [M, H] of the M rows after their leads; one for each entry of `tokens`.

        combined  [N, H]  the states after fc, the rows of all pieces one after another
        tokens    per step k [N, H]: the embedding of x_{i+1+k} for each row i
        """
        count = sum(piece.count for piece in pieces)
        positions = torch.cat([torch.arange(p.start, p.start + p.count) for p in pieces]).to(self.device)
        assert combined.shape[0] == count
        asking = after_lead(pieces).to(self.device) if any(piece.lead for piece in pieces) else None
        chains: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(self.spec.num_hidden_layers)]
        hidden = combined
        for step, embeds in enumerate(tokens):
            if step == 1 and asking is not None:  # what leads is attended to as it was at step 0
                positions, pieces = positions[asking], [piece.asking for piece in pieces]
            own = embeds if step == 0 or asking is None else embeds[asking]
            hidden = self._layers(own, hidden, positions + 1 + step, chains, pieces, asking if step == 0 else None)
            normed = self._norm(hidden, "norm.weight")
            yield normed
            hidden = normed if self.spec.norm_output else hidden

    def logits(self, normed: Tensor) -> Tensor:
        """[N, H] -> [N, Vd] in fp32."""
        head = self.weights["embed_tokens.weight" if self.spec.tie_word_embeddings else "lm_head.weight"]
        return F.linear(normed, head).float()

    def _layers(
        self,
        tokens: Tensor,
        hidden: Tensor,
        positions: Tensor,
        chains: Sequence[list[tuple[Tensor, Tensor]]],
        pieces: Sequence[Piece],
        asking: Tensor | None = None,
    ) -> Tensor:
        """One pass through all layers: [N, H] -> [N, H] before the final norm.

        asking  [N] bool: the rows that are wanted, [M, H], where not all; the last layer leaves out the others
        """
        angles = positions[:, None] * self._inverse
        cos = (torch.cat([angles, angles], dim=-1).cos()[:, None] * self._rope_scale).to(self.dtype)
        sin = (torch.cat([angles, angles], dim=-1).sin()[:, None] * self._rope_scale).to(self.dtype)
        for i in range(self.spec.num_hidden_layers):
            name = f"layers.{i}"
            state = (
                self._norm(hidden, f"{name}.input_layernorm.weight") if self.state_normed_twice and i == 0 else hidden
            )
            normed = self._norm(state, f"{name}.hidden_norm.weight" if i == 0 else f"{name}.input_layernorm.weight")
            residual = hidden
            if i == 0:
                residual = normed if self.spec.norm_before_residual else hidden
                normed = torch.cat([self._norm(tokens, f"{name}.input_layernorm.weight"), normed], dim=-1)
            q, k, v = self._heads(normed, f"{name}.self_attn")
            chains[i].append((rotate(k, cos, sin), v))
            _remember_first(chains[i], pieces, i)
            if asking is not None and i == self.spec.num_hidden_layers - 1:
                pieces = [piece.asking for piece in pieces]
                q, residual, cos, sin = q[asking], residual[asking], cos[asking], sin[asking]
            attended = self._attention(rotate(q, cos, sin), chains[i], pieces, i)
            hidden = residual + self._linear(attended, f"{name}.self_attn.o_proj")
            normed = self._norm(hidden, f"{name}.post_attention_layernorm.weight")
            gate = _ACTIVATIONS[self.spec.hidden_act](self._linear(normed, f"{name}.mlp.gate_proj"))
            up = self._linear(normed, f"{name}.mlp.up_proj")
            hidden = hidden + self._linear(gate * up, f"{name}.mlp.down_proj")
        return hidden

    def _heads(self, x: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
        """[N, H or 2H] -> q [N, heads, D], k and v [N, kv heads, D], before rotation."""
        q = self._linear(x, f"{name}.q_proj").view(len(x), self.spec.num_attention_heads, -1)
        k = self._linear(x, f"{name}.k_proj").view(len(x), self.spec.num_key_value_heads, -1)
        v = self._linear(x, f"{name}.v_proj").view(len(x), self.spec.num_key_value_heads, -1)
        if self.spec.qk_norm:
            q, k = self._norm(q, f"{name}.q_norm.weight"), self._norm(k, f"{name}.k_norm.weight")
        return q, k, v

    def _attention(
        self, q: Tensor, chain: Sequence[tuple[Tensor, Tensor]], pieces: Sequence[Piece], layer: int
    ) -> Tensor:
        """q [N, heads, D] -> [N, heads * D]; `chain` has the keys and values of these rows from step 1 on."""
        outs, offset = [], 0
        for piece in pieces:
            end = piece.start + piece.count
            queries = min(_QUERIES, max(1, _SCORES // (self.spec.num_attention_heads * end)))
            for start in range(piece.start, end, queries):
                rows = slice(offset, offset + min(queries, end - start))
                own = [(k[rows], v[rows]) for k, v in chain[1:]]
                outs.append(self._attend(q[rows], own, piece.history, start, layer))
                offset = rows.stop
        return torch.cat(outs)

    def _attend(
        self, q: Tensor, own: Sequence[tuple[Tensor, Tensor]], history: History, start: int, layer: int
    ) -> Tensor:
        """q [B, heads, D] of rows start..start+B-1 -> [B, heads * D]; `own` has their keys and values of steps 1..k.

        A row sees the step-0 keys of rows up to itself, within the window (which counts the row itself, as in
        speculators 0.9.0 models/eagle3/attention.py), and always its own later steps; see `windows_move`.
        """
        window, count = self.spec.layer_windows[layer], len(q)
        first = 0 if window is None else max(0, start - window + 1)
        end = start + count
        seen = _seen(first, start, end, len(own), window, self.windows_move, q.device)
        keys = torch.cat([history.keys[layer][first:end], *(k for k, _ in own)])
        values = torch.cat([history.values[layer][first:end], *(v for _, v in own)])
        out = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            keys.transpose(0, 1)[None],
            values.transpose(0, 1)[None],
            attn_mask=seen,
            scale=self.spec.head_dim**-0.5,
            enable_gqa=True,
        )
        return out[0].transpose(0, 1).reshape(count, -1)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.spec.rms_norm_eps)
        return (wide * scale).to(self.dtype) * self.weights[name]


def _remember_first(chain: Sequence[tuple[Tensor, Tensor]], pieces: Sequence[Piece], layer: int) -> None:
    """Put the keys and values of step 0 into the histories of their pieces."""
    if len(chain) > 1:
        return
    counts = [piece.count for piece in pieces]
    for piece, *new in zip(pieces, *(torch.split(x, counts) for x in chain[0]), strict=True):
        for kept, rows in zip((piece.history.keys, piece.history.values), new, strict=True):
            kept[layer] = torch.cat([kept[layer], rows]) if layer in kept else rows


@lru_cache(maxsize=4)
def _seen(
    first: int, start: int, end: int, steps: int, window: int | None, windows_move: bool, device: torch.device
) -> Tensor:
    """[B, keys] bool: what rows start..end-1 see of the step-0 keys first..end-1 and of their own in `steps` steps.

    Rows of other wirings, of other layers and of the other side ask the same.
    """
    row = torch.arange(start, end, device=device)[:, None]
    column = torch.arange(first, end, device=device)
    seen = column <= row
    if window is not None:
        seen &= column > row - window + (steps if windows_move else 0)
    itself = torch.eye(end - start, dtype=torch.bool, device=device)
    near = [not windows_move or window is None or age < window for age in reversed(range(steps))]
    return torch.cat([seen, *(itself & kept for kept in near)], dim=1)


def window(rows: Tensor, start: int, count: int) -> Tensor:
    """[count, H]: rows[start : start + count] of [T, H], filled up with zeros past the end: such rows are computed and
    not looked at.
    """
    part = rows[start : start + count]
    return part if len(part) == count else F.pad(part, (0, 0, 0, count - len(part)))
