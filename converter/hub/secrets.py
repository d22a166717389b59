"""What is never written down: passwords in URLs, and the token that huggingface_hub sends to the Hub."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_MASK = "***"
_SHORTEST = 8  # characters; what is shorter is no secret, and would be found in words by chance
_USER_AND_PASSWORD = re.compile(r"//[^/\s]+@")


def masked(value: Any) -> Any:
    """`value`, a text or a JSON value with texts in it, with each secret as ***."""
    from huggingface_hub import get_token

    return _masked(value, get_token() or "")


def masked_words(words: Iterable[str]) -> tuple[str, ...]:
    """The same for the words of a command line. The token is asked for only where a word may hold one: the client takes
    a tenth of a second to import, and options, short words and paths that are here hold none.
    """
    given = tuple(words)
    perhaps = (w for w in given if len(w) >= _SHORTEST and (not w.startswith("-") or "=" in w))
    if any(not Path(word).exists() for word in perhaps):
        return tuple(masked(word) for word in given)
    return tuple(_masked(word, "") for word in given)


def _masked(value: Any, token: str) -> Any:
    if isinstance(value, str):
        text = value.replace(token, _MASK) if len(token) >= _SHORTEST else value
        return _USER_AND_PASSWORD.sub(f"//{_MASK}@", text)
    if isinstance(value, dict):
        return {key: _masked(part, token) for key, part in value.items()}
    return [_masked(part, token) for part in value] if isinstance(value, list) else value
