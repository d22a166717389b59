"""A repository at one commit: which files it has, and those that are asked for in huggingface_hub's cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from json import JSONDecodeError
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from converter.findings import Finding, note, warning
from converter.hub.ids import HubId, also_an_id, is_commit
from converter.hub.patience import patiently
from converter.hub.refusals import (
    broken,
    endpoint,
    explained,
    no_file,
    no_hub,
    not_cached,
    overloaded,
    transport_errors,
    unreachable,
)
from converter.version import __version__

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

_T = TypeVar("_T")

CONFIG = "config.json"
CARD = "README.md"  # what the Hub shows of a repository
LIBRARY: dict[str, Any] = {"library_name": "eagle3-convert", "library_version": __version__}
_TIMEOUT = 5.0  # seconds for the first answer; HF_HUB_ETAG_TIMEOUT sets another
_LOOKS = 3  # at a branch that moves meanwhile


@dataclass(frozen=True)
class Snapshot:
    """named: as the user did; commit: what that is now, 40 hex digits.

    files  path in the repository -> bytes (None where the Hub does not say); None where it could not be asked, so that
           only what the cache holds is known
    notes  H412 where that was not what the user wanted
    """

    named: HubId
    commit: str
    files: Mapping[str, int | None] | None
    notes: tuple[Finding, ...] = ()

    def fetch(self, file: str) -> Path:
        """`file` of this commit in the cache, downloaded where it is not there.

        Raises InputError F115, H401 to H407, or OutputError.
        """
        if self.files is not None and file not in self.files:
            raise no_file(self.named, file)
        there = cached(self.named.at(self.commit), file)
        if there is not None:
            return there
        if self.files is None:
            raise not_cached(self.named, file)
        from huggingface_hub import hf_hub_download

        with explained(self.named, file):
            return Path(persistently(lambda: hf_hub_download(self.named.repo, file, revision=self.commit, **LIBRARY)))

    def root(self, file: str) -> Path:
        """The folder of this commit in the cache, in which `file` is."""
        path = cached(self.named.at(self.commit), file)
        assert path is not None
        return path.parents[file.count("/")]


def look_up(named: HubId, file: str) -> Snapshot:
    """What `named` is at this moment. `file`, which the repository should have, is fetched first where it is there: by
    the name of the revision, so that the cache knows it without a network.

    Where the Hub cannot be reached it is what the cache last saw, with a note. Of a branch that does not rest it is one
    of its commits. Raises InputError H401 to H407.
    """
    with explained(named, file):
        if _offline():
            return _last_seen(named, file)
        for _ in range(_LOOKS):
            try:
                info = _info(named)
            except transport_errors() as problem:
                if not unreachable(problem) or _commit_in_cache(named, file) is None:
                    raise
                return _last_seen(named, file, () if named.is_commit else (_stale(named),))
            if not is_commit(info.sha):
                raise no_hub(named)
            commit = info.sha
            files = {f.rfilename: f.size for f in info.siblings or ()}
            if file in files and _commit_in_cache(named, file) != commit:
                from huggingface_hub import hf_hub_download

                hf_hub_download(named.repo, file, revision=named.revision or None, **LIBRARY)
                if _commit_in_cache(named, file) != commit:  # a commit came in between
                    continue
            break
        return Snapshot(named, commit, files)


def cached(named: HubId, file: str) -> Path | None:
    """`file` of the revision, as the cache last saw that; None where it is not there."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(named.repo, file, revision=named.revision or None)
    return Path(path) if isinstance(path, str) else None


def persistently(fetch: Callable[[], _T]) -> _T:
    """Try again where a connection broke: of the client's releases 2.4.0 goes on by itself, 1.0.1 and 0.36 do not."""
    return patiently(fetch, broken)


def two_meanings(given: str) -> tuple[Finding, ...]:
    """F136 where the path `given`, which is here, is also the name of a repository: the cache has something of it."""
    other = also_an_id(given)
    if other is None:
        return ()
    from huggingface_hub import constants

    if not (Path(constants.HF_HUB_CACHE) / f"models--{other.repo.replace('/', '--')}").is_dir():
        return ()
    return (
        note(
            "F136",
            f"{given} is a folder here and a repository on the Hub: the folder was taken",
            where=given,
            fix=(f"to take the repository: {other.uri}",),
        ),
    )


def quieten() -> None:
    """No bars while files are fetched."""
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()


def _info(named: HubId) -> ModelInfo:
    """Commit and files in one request, with few and short waits: a Hub that is not there shall not hold anybody up."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HFValidationError

    timeout = constants.HF_HUB_ETAG_TIMEOUT if "HF_HUB_ETAG_TIMEOUT" in os.environ else _TIMEOUT
    api = HfApi(**LIBRARY)
    explained_later: tuple[type[BaseException], ...] = (HFValidationError, UnicodeEncodeError, *transport_errors())
    try:
        return patiently(
            lambda: api.model_info(named.repo, revision=named.revision or None, files_metadata=True, timeout=timeout),
            overloaded,
        )
    except JSONDecodeError as problem:  # some page
        raise no_hub(named) from problem
    except explained_later:
        raise
    except (ValueError, LookupError, TypeError, AttributeError) as problem:  # JSON of something else
        raise no_hub(named) from problem


def _offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def _commit_in_cache(named: HubId, file: str) -> str | None:
    path = cached(named, file)
    return None if path is None else path.parents[file.count("/")].name


def _last_seen(named: HubId, file: str, notes: tuple[Finding, ...] = ()) -> Snapshot:
    commit = _commit_in_cache(named, file)
    if commit is None:
        raise not_cached(named, file)
    return Snapshot(named, commit, None, notes)


def _stale(named: HubId) -> Finding:
    return warning(
        "H412",
        f"{endpoint()} cannot be reached: {named} is what the cache last saw of it",
        where=str(named),
        why="a newer commit may have been pushed since",
        fix=(f"to say which is meant: {named.at('COMMIT')}", "HF_HUB_OFFLINE=1 says that this is wanted"),
    )
