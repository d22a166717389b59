"""What a folder says of tokens: which id each has, how a chat is laid out, which of them end an answer. Nothing is run.

Read from the files that transformers reads: tokenizer.json, tokenizer_config.json, chat_template.*, and
generation_config.json. A vocabulary in another form (sentencepiece, tiktoken) is not looked into.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from converter.checkpoint.jsonfile import read_object, unreadable
from converter.errors import InputError
from converter.findings import Finding

VOCABULARY, SETTINGS, GENERATION = "tokenizer.json", "tokenizer_config.json", "generation_config.json"
_TEMPLATES = ("chat_template.jinja", "chat_template.json")
_LONGEST_TEMPLATE = 4_000_000  # bytes; the longest have some 50,000
FILES = (VOCABULARY, SETTINGS, GENERATION, *_TEMPLATES)


@dataclass(frozen=True)
class Tokenizer:
    """tokens      id -> token; empty where no file says
    template    the chat template; "" where there is none
    template_in the file that holds it
    end         the id of the token that settings call eos_token; None where they name none, or tokens are not known
    ends        ids at which generation_config.json has an answer end
    unread      a file that cannot be read, and why
    """

    tokens: Mapping[int, str]
    template: str
    template_in: str
    end: int | None
    ends: tuple[int, ...]
    unread: tuple[Finding, ...]


def read_tokenizer(folder: Path) -> Tokenizer:
    """What the files in `folder` say; of a file that is missing or damaged, nothing."""
    unread: list[Finding] = []
    vocabulary, settings, generation = (_object(folder / n, unread) for n in (VOCABULARY, SETTINGS, GENERATION))
    tokens = dict(_tokens(vocabulary, settings))
    template, template_in = _template(folder, settings, unread)
    name = _text(settings.get("eos_token"))
    end = next((i for i, token in tokens.items() if token == name), None) if name else None
    return Tokenizer(tokens, template, template_in, end, token_ids(generation.get("eos_token_id")), tuple(unread))


def token_ids(value: Any) -> tuple[int, ...]:
    """The ids of a key that holds one, or a list of them."""
    listed = value if isinstance(value, list) else [value]
    return tuple(i for i in listed if isinstance(i, int) and not isinstance(i, bool) and i >= 0)


def _object(file: Path, unread: list[Finding]) -> Mapping[str, Any]:
    if not file.is_file():
        return {}
    try:
        return read_object(file)
    except InputError as problem:
        unread.append(problem.finding)
        return {}


def _tokens(vocabulary: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """Of a vocabulary by name (BPE, WordPiece), by place (Unigram), and of the tokens added to it."""
    model = vocabulary.get("model")
    table = model.get("vocab") if isinstance(model, Mapping) else None
    if isinstance(table, Mapping):
        yield from ((i, token) for token, i in table.items() if isinstance(i, int))
    elif isinstance(table, list):
        yield from ((i, row[0]) for i, row in enumerate(table) if isinstance(row, list) and row)
    if not table:
        return
    added = vocabulary.get("added_tokens")
    for token in added if isinstance(added, list) else ():
        if isinstance(token, Mapping) and isinstance(token.get("id"), int):
            yield token["id"], _text(token)
    decoder = settings.get("added_tokens_decoder")
    for key, token in decoder.items() if isinstance(decoder, Mapping) else ():
        if key.isdecimal() and len(key) < 10:
            yield int(key), _text(token)


def _template(folder: Path, settings: Mapping[str, Any], unread: list[Finding]) -> tuple[str, str]:
    """A file of its own outranks the settings, as in transformers (5.19.0 tokenization_utils_base.py)."""
    jinja, wrapped = (folder / name for name in _TEMPLATES)
    if jinja.is_file():
        try:
            with jinja.open("rb") as file:
                text = file.read(_LONGEST_TEMPLATE)
        except OSError as problem:
            unread.append(unreadable(jinja, problem).finding)
            return "", ""
        return text.decode(errors="replace"), jinja.name
    stated = _object(wrapped, unread).get("chat_template")
    if isinstance(stated, str):
        return stated, wrapped.name
    stated = settings.get("chat_template")
    if isinstance(stated, list):  # several, by name
        default = [t.get("template") for t in stated if isinstance(t, Mapping) and t.get("name") == "default"]
        stated = default[-1] if default else None
    return (stated, SETTINGS) if isinstance(stated, str) else ("", "")


def _text(token: Any) -> str:
    """A token as it stands, or as an object with its `content`."""
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else ""
