"""Prompts and texts as token ids, cut to what the target and the user allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from converter.capture.prompts import Prompt
from converter.checkpoint.jsonfile import shortened
from converter.errors import InputError, UsageError
from converter.findings import error


@dataclass(frozen=True)
class Input:
    """tokens: what the target is given; new: how many it may add (0: the tokens are a text to run through)."""

    tokens: tuple[int, ...]
    new: int = 0


@dataclass(frozen=True)
class Limits:
    """given: tokens of a prompt, or of a piece of text; new: tokens of an answer; room: tokens the target can hold."""

    given: int
    new: int
    room: int | None


def prompt_inputs(prompts: Sequence[Prompt], tokenizer: Any, limits: Limits, chat: bool) -> tuple[list[Input], int]:
    """Inputs, and how many prompts were left out because they are too long.

    The chat template is applied where `chat` is true and the tokenizer has one. Raises InputError F132 where a chat
    cannot be put into words or no prompt is left.
    """
    template = chat and getattr(tokenizer, "chat_template", None) is not None
    most = limits.given if limits.room is None else min(limits.given, limits.room - 1)
    inputs, left_out = [], 0
    for prompt in prompts:
        tokens = _answerable(prompt, tokenizer, template)
        if len(tokens) > most:
            left_out += 1
            continue
        new = limits.new if limits.room is None else min(limits.new, limits.room - len(tokens))
        inputs.append(Input(tokens, new))
    if not inputs:
        raise InputError(
            error(
                "F132",
                f"all {left_out} prompts are longer than {most:,} tokens",
                where=prompts[0].where,
                fix=("give shorter ones, or raise --max-prompt-tokens as far as the target goes",),
            )
        )
    return inputs, left_out


def text_inputs(texts: Sequence[Prompt], tokenizer: Any, limits: Limits) -> list[Input]:
    """Each document in pieces of at most `limits.given` tokens, each begun as the tokenizer begins a text.

    Raises InputError F132 where nothing of two tokens or more is left, UsageError for pieces of less.
    """
    size = limits.given if limits.room is None else min(limits.given, limits.room)
    if size < 2:
        raise UsageError("--max-prompt-tokens: a piece of text needs at least 2 tokens")
    inputs = []
    for text in texts:
        tokens = _ids(tokenizer, text.text, special=True)
        begin = tokens[:1] if tokens and tokens[0] == tokenizer.bos_token_id else ()
        rest, step = tokens[len(begin) :], size - len(begin)
        pieces = [begin + rest[i : i + step] for i in range(0, len(rest), step)]
        inputs += [Input(piece) for piece in pieces if len(piece) > 1]
    if not inputs:
        raise InputError(
            error("F132", "the texts are shorter than two tokens", where=texts[0].where, fix=("give longer ones",))
        )
    return inputs


def _answerable(prompt: Prompt, tokenizer: Any, template: bool) -> tuple[int, ...]:
    if not template:
        if prompt.messages:
            raise InputError(
                error(
                    "F132",
                    "a chat needs the target's chat template",
                    where=prompt.where,
                    found="--no-chat-template, or a tokenizer that has none",
                    expected='{"prompt": "..."}',
                    fix=("give the prompts as text",),
                )
            )
        return _ids(tokenizer, prompt.text, special=True)
    chat = [dict(turn) for turn in prompt.messages] or [{"role": "user", "content": prompt.text}]
    try:
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    except Exception as problem:  # a template is a program of the target's author and raises what it likes
        raise InputError(
            error(
                "F132",
                f"the target's chat template refuses this prompt: {shortened(str(problem))}",
                where=prompt.where,
                fix=("correct its turns, or: --no-chat-template",),
            )
        ) from problem
    return _ids(tokenizer, text, special=False)  # the template writes the special tokens itself


def _ids(tokenizer: Any, text: str, special: bool) -> tuple[int, ...]:
    return tuple(int(i) for i in tokenizer(text, add_special_tokens=special, verbose=False).input_ids)
