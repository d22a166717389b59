"""A true greedy speculative run in plain torch: a target, a drafter fed with its own drafts, and verification.

It knows nothing of `converter.forward.scores` and `acceptance`, which are held against it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from converter.drafter.spec import DrafterSpec
from converter.forward.model import DraftModel, History, Piece


class Target:
    """A Llama with a key-value cache that can be cut back, in fp32.

    weights: by the names of Hugging Face's LlamaForCausalLM; a head that is missing is the embedding (tied).
    """

    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
        self.weights = {name: w.float() for name, w in weights.items()}
        self.layers, self.eps = config["num_hidden_layers"], config["rms_norm_eps"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.dim = config["hidden_size"] // self.heads
        theta = config["rope_parameters"]["rope_theta"]
        self._inverse = theta ** (-torch.arange(0, self.dim, 2, dtype=torch.float32) / self.dim)
        self.forget()

    @classmethod
    def read(cls, folder: Path) -> Target:
        config = json.loads((folder / "config.json").read_text())
        return cls(config, load_file(folder / "model.safetensors"))

    @property
    def embedding(self) -> Tensor:
        return self.weights["model.embed_tokens.weight"]

    def forget(self, length: int = 0) -> None:
        """Cut the cache back to its first `length` tokens."""
        if length == 0:
            self._cache: list[tuple[Tensor, Tensor]] = [
                (torch.zeros(self.kv_heads, 0, self.dim),) * 2 for _ in range(self.layers)
            ]
        self._cache = [(k[:, :length], v[:, :length]) for k, v in self._cache]
        self.length = length

    @torch.inference_mode()
    def feed(self, tokens: list[int]) -> tuple[Tensor, Tensor]:
        """Go on with `tokens`: their states [layers + 1, N, H], the last before the final norm, and choices [N]."""
        past = self.length
        self.length += len(tokens)
        x = self.embedding[torch.tensor(tokens)]
        states = [x]
        angles = torch.arange(past, self.length)[:, None] * self._inverse
        turn = torch.cat([angles, angles], dim=-1)
        cos, sin = turn.cos(), turn.sin()
        visible = torch.arange(self.length) <= torch.arange(past, self.length)[:, None]
        for i in range(self.layers):
            name = f"model.layers.{i}"
            normed = self._norm(x, f"{name}.input_layernorm.weight")
            q, k, v = (self._heads(normed, f"{name}.self_attn.{p}_proj.weight") for p in "qkv")
            q, k = (h * cos + _half_turned(h) * sin for h in (q, k))
            k, v = torch.cat([self._cache[i][0], k], dim=1), torch.cat([self._cache[i][1], v], dim=1)
            self._cache[i] = (k, v)
            groups = self.heads // self.kv_heads
            k, v = k.repeat_interleave(groups, dim=0), v.repeat_interleave(groups, dim=0)
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=self.dim**-0.5)
            mixed = mixed.transpose(0, 1).reshape(len(tokens), -1)
            x = x + F.linear(mixed, self.weights[f"{name}.self_attn.o_proj.weight"])
            normed = self._norm(x, f"{name}.post_attention_layernorm.weight")
            gate, up = (F.linear(normed, self.weights[f"{name}.mlp.{p}_proj.weight"]) for p in ("gate", "up"))
            x = x + F.linear(F.silu(gate) * up, self.weights[f"{name}.mlp.down_proj.weight"])
            states.append(x)
        head = self.weights.get("lm_head.weight", self.embedding)
        return torch.stack(states), (self._norm(x, "model.norm.weight") @ head.T).argmax(-1)

    def _heads(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.weights[name]).view(len(x), -1, self.dim).transpose(0, 1)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weights[name]


def _half_turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


@dataclass
class Drafter:
    """`model` with the embedding [V, H] and the target's ids [Vd] of its rows."""

    model: DraftModel
    embedding: Tensor
    ids: Tensor
    points: tuple[int, ...]
    _known: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    _text: list[int] = field(default_factory=list)  # x_0, .. of the rows whose step-0 keys are in `_history`
    _history: History = field(default_factory=History)

    @classmethod
    def read(cls, folder: Path, spec: DrafterSpec, embedding: Tensor | None = None) -> Drafter:
        """From a folder as speculators saves it, whose names are the canonical ones."""
        weights = load_file(folder / "model.safetensors")
        offsets = weights.pop("d2t", torch.zeros(spec.draft_vocab_size, dtype=torch.int64))
        weights = {name: w.float() for name, w in weights.items() if name != "t2d"}
        rows = weights["embed_tokens.weight"] if embedding is None else embedding
        ids = torch.arange(len(offsets)) + offsets
        return cls(DraftModel(spec, weights | {"embed_tokens.weight": rows}), rows, ids, spec.capture_points)

    def inputs(self, states: Tensor) -> Tensor:
        """States [points of the target, T, Ht] -> [T, n*Ht] in the order of fc's blocks."""
        return torch.cat([states[p] for p in self.points], dim=-1)

    def draft(self, tokens: list[int], states: Tensor, chain: int) -> list[int]:
        """Guess what follows x_0..x_n from the states of x_0..x_{n-1}, each guess fed with those before it.

        Row n-1 takes x_n with state n-1; it sees step 0 of the rows before it, and its own steps.
        """
        key = tuple(tokens)
        if len(self._known.get(key, ())) < chain:
            self._known[key] = self._guess(tokens, states, chain)
        return self._known[key][:chain]

    @torch.inference_mode()
    def _guess(self, tokens: list[int], states: Tensor, chain: int) -> list[int]:
        last = len(tokens) - 2
        start = self._kept(tokens, last)
        combined = self.model.combine(self.inputs(states[:, start:]))
        rows = self.embedding[torch.tensor(tokens[start + 1 :])]
        if last > start:
            before = Piece(start, last - start, self._history)
            next(self.model.steps(combined[: last - start], [rows[: last - start]], [before]))
        fed, guesses = [rows[last - start :]], list[int]()
        for normed in self.model.steps(combined[last - start :], fed, [Piece(last, 1, self._history)]):
            guesses.append(int(self.ids[self.model.logits(normed)[0].argmax()]))
            if len(guesses) < chain:
                fed.append(self.embedding[guesses[-1:]])  # the next step takes it
        self._text = tokens[:]
        return guesses

    def _kept(self, tokens: list[int], most: int) -> int:
        """How many of the first rows need not be computed again: row i took x_0..x_{i+1} and the states of those."""
        differing = (i for i, (a, b) in enumerate(zip(self._text, tokens, strict=False)) if a != b)
        same = next(differing, min(len(self._text), len(tokens)))
        count = max(min(same - 1, most), 0)
        for kept in (self._history.keys, self._history.values):
            for layer, rows in kept.items():
                kept[layer] = rows[:count]
        return count


@dataclass(frozen=True)
class Run:
    """tokens: the prompt and what was generated. Of each verification step: where it started, how many it accepted."""

    tokens: list[int]
    positions: list[int]
    accepted: list[int]


def speculate(target: Target, drafter: Drafter, prompt: list[int], length: int, chain: int, stop: int = -1) -> Run:
    """Generate until there are `length` tokens or one is `stop`; the last step may draft past that."""
    target.forget()
    states, choices = target.feed(prompt)
    tokens, positions, accepted = [*prompt, int(choices[-1])], [], []
    while len(tokens) < length and stop not in tokens[len(prompt) :]:
        guesses = drafter.draft(tokens, states, chain)
        new, after = target.feed([tokens[-1], *guesses])
        count = 0
        while count < chain and guesses[count] == int(after[count]):
            count += 1
        positions.append(len(tokens) - 2)
        accepted.append(count)
        target.forget(len(tokens) + count)  # keys of rejected drafts
        states = torch.cat([states, new[:, : count + 1]], dim=1)
        tokens += after[: count + 1].tolist()
    end = min(length, *(i + 1 for i, t in enumerate(tokens) if t == stop and i >= len(prompt)), len(tokens))
    return Run(tokens[:end], positions, accepted)


def generate(target: Target, prompt: list[int], length: int, stop: int = -1) -> tuple[Tensor, Tensor, Tensor]:
    """The target alone, one token at a time: tokens [T], states [layers + 1, T, H], choices [T]."""
    target.forget()
    states, choices = target.feed(prompt)
    tokens = list(prompt)
    while len(tokens) < length and tokens[-1] != stop:
        tokens.append(int(choices[-1]))
        new, after = target.feed(tokens[-1:])
        states, choices = torch.cat([states, new], dim=1), torch.cat([choices, after])
    return torch.tensor(tokens), states, choices
