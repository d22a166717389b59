"""What the target is given: prompts that it answers, or texts that it reads. Read before anything is loaded."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from converter.capture.bundled import PROMPTS
from converter.checkpoint.jsonfile import parse, shortened, unreadable
from converter.errors import InputError
from converter.findings import error

_CHATS = ("messages", "conversations")  # as most data sets call a chat, and as SpecForge does


@dataclass(frozen=True)
class Prompt:
    """Text, or the turns of a chat, each with `role` and `content`; `where` (file and line) is for messages."""

    where: str
    text: str = ""
    messages: tuple[Mapping[str, Any], ...] = ()


def bundled_prompts() -> list[Prompt]:
    """Those of bundled.py."""
    return [Prompt("the bundled prompts", text) for text in PROMPTS]


def read_prompts(path: Path) -> list[Prompt]:
    """JSON lines with {"prompt": ...} or {"messages": [...]}, else one prompt a line; `-` is stdin.

    A chat's last turns of the assistant are dropped: the target writes its own. Raises InputError F100 unreadable,
    F132 no prompts or a line that is none.
    """
    data = _read(path)
    if not _is_json_lines(path, data):
        return _some(path, [Prompt(where, line.strip()) for where, line in _lines(path, data)], "prompt")
    prompts = []
    for where, record in _records(path, data):
        chat = next((record[k] for k in _CHATS if k in record), None)
        if chat is not None:
            prompts.append(Prompt(where, messages=_turns(where, chat)))
        elif isinstance(record.get("prompt"), str) and record["prompt"].strip():
            prompts.append(Prompt(where, record["prompt"]))
        else:
            raise _unusable(where, "the line holds no prompt", '{"prompt": "..."} or {"messages": [...]}')
    return _some(path, prompts, "prompt")


def read_texts(path: Path) -> list[Prompt]:
    """JSON lines with {"text": ...}, one document each, else the whole file as one document; `-` is stdin.

    Raises InputError F100 unreadable, F132 no text or a line that is none.
    """
    data = _read(path)
    if not _is_json_lines(path, data):
        text = _decode(str(path), data)
        return _some(path, [Prompt(str(path), text)] if text.strip() else [], "text")
    texts = []
    for where, record in _records(path, data):
        if not (isinstance(record.get("text"), str) and record["text"]):
            raise _unusable(where, "the line holds no text", '{"text": "..."}')
        texts.append(Prompt(where, record["text"]))
    return _some(path, texts, "text")


def _read(path: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as problem:
        raise unreadable(path, problem) from problem


def _is_json_lines(path: Path, data: bytes) -> bool:
    """By its name; stdin by how it begins."""
    return path.suffix in (".jsonl", ".json") or (str(path) == "-" and data.lstrip()[:1] == b"{")


def _lines(path: Path, data: bytes) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            where = f"{path}, line {number}"
            yield where, _decode(where, line)


def _decode(where: str, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise _unusable(where, "this is no UTF-8 text", "text in UTF-8") from problem


def _records(path: Path, data: bytes) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for where, line in _lines(path, data):
        try:
            record = parse(line.encode())
        except ValueError as problem:
            raise _unusable(
                where, f"the line is no JSON: {shortened(str(problem))}", "a JSON object a line"
            ) from problem
        if not isinstance(record, dict):
            raise _unusable(where, "the line is no JSON object", "a JSON object a line")
        yield where, record


def _turns(where: str, chat: Any) -> tuple[Mapping[str, Any], ...]:
    good = isinstance(chat, list) and all(isinstance(t, dict) and {"role", "content"} <= set(t) for t in chat)
    turns = list(chat) if good else []
    while turns and turns[-1]["role"] == "assistant":
        turns.pop()
    if not turns:
        raise _unusable(where, "the line holds no chat", '"messages": [{"role": "user", "content": "..."}]')
    return tuple(turns)


def _some(path: Path, prompts: list[Prompt], kind: str) -> list[Prompt]:
    if not prompts:
        raise _unusable(str(path), f"there is no {kind} in {path}", f"at least one {kind}")
    return prompts


def _unusable(where: str, what: str, expected: str) -> InputError:
    return InputError(error("F132", what, where=where, expected=expected, fix=("docs/samples.md has the forms",)))
