"""How a repository on the Hub, or a folder in one, is named: `org/name[@revision]` or an hf:// URI.

The URIs are huggingface_hub's own (2.4.0, utils/_hf_uris.py: `hf://[models/]org/name[@revision][/path]`). They are
parsed here because older releases, which serving environments pin, have no parser.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeGuard
from urllib.parse import quote, unquote

from converter.errors import UsageError
from converter.hub.secrets import masked

_REPO = r"(?P<repo>(?!.*(?:--|\.\.))[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*)"
_SHORT = re.compile(rf"{_REPO}(@(?P<revision>[\w./-]+))?", re.ASCII)
# Paths collapse the slashes; revisions with a slash are spelt %2F, but for those of pull requests and conversions.
_URI = re.compile(
    r"hf:/+(models/)?(?!(?:datasets|spaces|kernels|buckets)/)(?P<repo>[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*)"
    r"(@(?P<revision>refs/(pr/\d+|convert/[\w.-]+)|[^/@]+))?(/(?P<path>.+))?",
    re.ASCII,
)
_SPECIAL = re.compile(r"refs/(pr/\d+|convert/[\w.-]+)", re.ASCII)
_FILE = re.compile(r"\.(safetensors|json|bin|pt|pth|ckpt)$")  # what is not there under such a name is a missing file
_COMMIT = re.compile(r"[0-9a-f]{40}")


def is_commit(said: object) -> TypeGuard[str]:
    """Whether it is the full name of a commit: 40 hex digits."""
    return isinstance(said, str) and _COMMIT.fullmatch(said) is not None


@dataclass(frozen=True)
class HubId:
    """revision: branch, tag or commit, "" for the default branch; path: a folder or file in it, "" its top; short: the
    user's spelling could be that of a path.
    """

    repo: str
    revision: str = ""
    path: str = ""
    short: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        if not self.path:
            return self.repo + (f"@{self.revision}" if self.revision else "")
        return self.uri

    @property
    def uri(self) -> str:
        """The spelling that is never taken for a path here."""
        plain = _SPECIAL.fullmatch(self.revision) is not None
        revision = f"@{self.revision if plain else quote(self.revision, safe='')}" if self.revision else ""
        return f"hf://{self.repo}{revision}" + (f"/{self.path}" if self.path else "")

    @property
    def is_commit(self) -> bool:
        """Whether the revision is one that cannot move."""
        return is_commit(self.revision)

    def at(self, commit: str) -> HubId:
        """The same place in a commit."""
        return replace(self, revision=commit, short=False)

    def inside(self, path: str) -> HubId:
        """What lies in the folder that is named."""
        return replace(self, path=self.file(path), short=False)

    def file(self, name: str) -> str:
        """A file of the folder that is named, as the repository has it."""
        return f"{self.path}/{name}" if self.path else name

    def holds(self, file: str) -> bool:
        """Whether a file of the repository lies in the folder that is named, or below."""
        return not self.path or file.startswith(f"{self.path}/")

    def within(self, file: str) -> str:
        """The name of a file that lies in the folder itself; "" for all others."""
        name = file[len(self.path) + 1 if self.path else 0 :] if self.holds(file) else ""
        return "" if "/" in name else name


def hub_id(given: str | Path) -> HubId | None:
    """None where `given` is a path: one that exists here, or that has not the form of an id.

    Raises UsageError for an hf:// URI that names no model repository.
    """
    text = str(given)
    if text.startswith("hf:/"):
        match = _URI.fullmatch(text)
        parts = (match["path"] or "").strip("/").split("/") if match is not None else ["."]
        if match is None or (parts != [""] and {"", ".", ".."} & set(parts)):
            raise UsageError(f"{masked(text)} names no model on the Hub: expected hf://org/name[@revision][/folder]")
        return HubId(match["repo"], unquote(match["revision"] or ""), "/".join(parts))
    match = _SHORT.fullmatch(text)
    if match is None or Path(text).exists() or _FILE.search(text):
        return None
    return HubId(match["repo"], match["revision"] or "", short=True)


def also_an_id(given: str) -> HubId | None:
    """What the path `given` would name on the Hub if it were not here."""
    match = _SHORT.fullmatch(given)
    return None if match is None or _FILE.search(given) else HubId(match["repo"], match["revision"] or "")


def pinned(given: Path, commit: str) -> Path:
    """`given` at this very commit where it is an id; a path as it is."""
    named = hub_id(given)
    return given if named is None or not commit else Path(named.at(commit).uri)
