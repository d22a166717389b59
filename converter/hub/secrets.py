"""What is never written down: passwords in URLs, and tokens of the Hub."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

_MASK = "***"
_SHORTEST = 8  # characters of a token; what is shorter is none, and would be found in words by chance
_USER_AND_PASSWORD = re.compile(r"(//|\w:/)[^/\s]+@")  # a path has one slash where the URL had two
_OF_THE_HUB = re.compile(r"\bhf_(?:[A-Za-z0-9]{30,}|oauth_[\w.-]{20,})")  # anybody's


def masked(value: Any) -> Any:
    """`value`, a text or a JSON value with texts in it, with each secret as ***."""
    return _masked(value, _tokens())


def unsigned(text: str) -> str:
    """A line of a server or a client, without the tokens and without what signs a URL; 200 characters at most."""
    return re.sub(r"\?\S+", "?...", str(masked(text)))[:200]


def _masked(value: Any, tokens: list[str]) -> Any:
    if isinstance(value, str):
        for token in tokens:
            value = value.replace(token, _MASK)
        return _OF_THE_HUB.sub(_MASK, _USER_AND_PASSWORD.sub(rf"\1{_MASK}@", value))
    if isinstance(value, dict):
        return {key: _masked(part, tokens) for key, part in value.items()}
    return [_masked(part, tokens) for part in value] if isinstance(value, (list, tuple)) else value


def _tokens() -> list[str]:
    """What the user is known by. Looked up where huggingface_hub 2.4.0 does (constants.py, utils/_auth.py), and not by
    its get_token(), which may renew a token over the network first, and takes a tenth of a second to import.
    """
    home = os.environ.get("HF_HOME") or str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface"))
    file = Path(os.path.expandvars(os.environ.get("HF_TOKEN_PATH") or str(Path(home, "token"))))
    texts = [os.environ.get(name, "") for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")]
    with suppress(OSError, UnicodeDecodeError, RuntimeError):  # the last of a user who has no home
        texts.append(file.expanduser().read_text(encoding="utf-8"))
    return [token for token in map(str.strip, texts) if len(token) >= _SHORTEST]
