"""Files of a repository on the Hugging Face Hub, through huggingface_hub: its cache, endpoint, token, offline mode."""

from __future__ import annotations

import re
from pathlib import Path

from converter.errors import InputError
from converter.findings import error

_ID = re.compile(r"(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(@(?P<revision>[\w./-]+))?")


def is_hub_id(text: str) -> bool:
    """True for `org/name[@revision]` that is not also a path here."""
    return _ID.fullmatch(text) is not None and not Path(text).exists()


def fetch(hub_id: str, file: str) -> Path:
    """One file of `org/name[@revision]` in the local cache.

    Raises InputError F115 where it cannot be had: missing, gated, private, offline, with what to do.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    match = _ID.fullmatch(hub_id)
    assert match is not None
    try:
        return Path(hf_hub_download(match["repo"], file, revision=match["revision"]))
    except LocalEntryNotFoundError as problem:
        why = "it is not in the cache and the Hub cannot be reached (or HF_HUB_OFFLINE is set)"
        fix = f"hf download {match['repo']} {file}    where there is a network, or give a local folder"
        raise _no(hub_id, file, why, fix) from problem
    except GatedRepoError as problem:
        raise _no(hub_id, file, "access to the repository must be asked for", "hf auth login") from problem
    except RepositoryNotFoundError as problem:
        why = "there is no such repository, or it is private"
        raise _no(hub_id, file, why, "check the name, or: hf auth login") from problem
    except RevisionNotFoundError as problem:
        raise _no(hub_id, file, f"there is no revision {match['revision']}", "check the revision") from problem
    except EntryNotFoundError as problem:
        raise _no(hub_id, file, "the repository has no such file", "check the name") from problem
    except (HfHubHTTPError, OSError) as problem:
        raise _no(hub_id, file, str(problem).strip().splitlines()[0][:200], "try again") from problem


def _no(hub_id: str, file: str, why: str, fix: str) -> InputError:
    finding = error(
        "F115",
        f"cannot get {file} of {hub_id}: {why}",
        where=hub_id,
        found=f"no folder {hub_id} on this machine, so it is taken for an id on the Hub",
        fix=(fix,),
    )
    return InputError(finding)
