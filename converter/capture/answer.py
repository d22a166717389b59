"""Sequences of a sample: the target's own answers to prompts, or texts run through it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from converter.capture.decoder import capture, input_device
from converter.capture.tokens import Input
from converter.checkpoint.jsonfile import shortened
from converter.errors import InputError
from converter.findings import error

_REPAIRS = 4  # times that an answer is taken up again after a token that is not the choice


@dataclass(frozen=True)
class Captured:
    """One sequence, on the CPU.

    tokens [T] int64, states [P, T, Ht], counts [T] uint8, target_next [T] int64
    replaced   greedy answers: tokens of the generation that were not the choice of the full pass
    """

    tokens: Tensor
    states: Tensor
    counts: Tensor
    target_next: Tensor
    replaced: int = 0


class Runner:
    """Runs a loaded target; `stops` are the modules that the capture points enter."""

    def __init__(
        self, model: Any, tokenizer: Any, stops: Sequence[Module], points: Sequence[int], greedy: bool
    ) -> None:
        self._model = model
        self._stops, self._points, self._greedy = stops, points, greedy
        model.generation_config = generation = _generation(model.generation_config, tokenizer, greedy)
        ends = generation.eos_token_id
        self._ends = frozenset(ends if isinstance(ends, list) else () if ends is None else (ends,))

    def run(self, given: Input, seed: int) -> Captured:
        """Raises InputError F134 where the target stops with an error, e.g. for want of memory."""
        torch.manual_seed(seed)
        return self._answer(given) if given.new else self._text(given.tokens)

    def _capture(self, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        with _running():
            return capture(self._model, self._stops, tokens, self._points)

    def _text(self, tokens: Sequence[int]) -> Captured:
        states, choices = self._capture(tokens)
        counts = torch.ones(len(tokens), dtype=torch.uint8)
        counts[0] = 0  # nothing foretold it
        return Captured(torch.tensor(tokens), states, counts, choices)

    def _answer(self, given: Input) -> Captured:
        start, most = len(given.tokens), len(given.tokens) + given.new
        tokens = self._generate(given.tokens, most)
        replaced = 0
        while True:
            states, choices = self._capture(tokens)
            wrong = self._first_other(tokens, choices, start) if self._greedy else None
            if wrong is None:
                break
            replaced += 1
            if replaced > _REPAIRS:  # the same pass also holds the states of what is kept
                tokens, states, choices = tokens[:wrong], states[:, :wrong].clone(), choices[:wrong].clone()
                break
            tokens = (*tokens[:wrong], int(choices[wrong - 1]))
            if tokens[-1] not in self._ends:
                tokens = self._generate(tokens, most)
        counts = (torch.arange(len(tokens)) >= start).to(torch.uint8)
        if tokens[-1] in self._ends:
            counts[-1] = 0  # a row that has read the end says nothing that a server would ask for
        return Captured(torch.tensor(tokens), states, counts, choices, replaced)

    @staticmethod
    def _first_other(tokens: Sequence[int], choices: Tensor, start: int) -> int | None:
        """The first answered token that is not what the same pass says after the token before it."""
        other = torch.tensor(tokens[start:]) != choices[start - 1 : len(tokens) - 1]
        return start + int(other.nonzero()[0]) if other.any() else None

    @torch.inference_mode()
    def _generate(self, tokens: Sequence[int], most: int) -> tuple[int, ...]:
        if len(tokens) >= most:
            return tuple(tokens)
        ids = torch.tensor([list(tokens)], device=input_device(self._model))
        with _running():
            out = self._model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=most - len(tokens))
        return tuple(out[0].tolist())


@contextmanager
def _running() -> Iterator[None]:
    """Only the target's own code runs in here: whatever it raises is said of it, and of nothing of ours."""
    try:
        yield
    except Exception as problem:  # a model of a stranger's own code raises what it likes
        memory = isinstance(problem, torch.OutOfMemoryError)
        fix = "fewer --max-new-tokens and --max-prompt-tokens, or --device cpu" if memory else "check the target"
        message = shortened((str(problem).splitlines() or [type(problem).__name__])[0])
        raise InputError(error("F134", f"the target cannot be run: {message}", fix=(fix,))) from problem


def _generation(own: Any, tokenizer: Any, greedy: bool) -> Any:
    """How the target answers: greedily, without penalties or bans, or sampled as its own generation config says."""
    from transformers import GenerationConfig

    config = GenerationConfig() if greedy else copy.deepcopy(own)
    ends = own.eos_token_id if own.eos_token_id is not None else tokenizer.eos_token_id
    first = ends[0] if isinstance(ends, list) else ends
    settings: dict[str, Any] = {
        "do_sample": not greedy,
        "bos_token_id": own.bos_token_id,
        "eos_token_id": ends,
        "pad_token_id": own.pad_token_id if own.pad_token_id is not None else first,
        "num_beams": 1,
        "num_return_sequences": 1,
        "return_dict_in_generate": False,
    }
    if config.top_k is None:
        settings["top_k"] = 0  # off, as engines have it where the target states none; transformers would take 50
    for name, value in settings.items():
        setattr(config, name, value)
    return config
