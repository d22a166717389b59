"""What the Hub, the cache or the network answer instead of a file, in words that say what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from converter.errors import InputError, OutputError
from converter.findings import error
from converter.hub.ids import HubId
from converter.hub.secrets import unsigned

_LOGIN = "hf auth login    (or set HF_TOKEN to a token that may read it)"
_LOCAL = frozenset({errno.ENOSPC, errno.EACCES, errno.EPERM, errno.EROFS, errno.EDQUOT, errno.ENAMETOOLONG})


class NoRanges(OSError):
    """The server answered a request for a few bytes with all of them."""


def transport_errors() -> tuple[type[BaseException], ...]:
    """What the client raises where no answer comes: requests' errors (huggingface_hub 0.x) are OSErrors, those of httpx
    (1.x) and httpx2 (2.x) extend the first base of the client's own.
    """
    from huggingface_hub.errors import HfHubHTTPError

    return (OSError, HfHubHTTPError.__bases__[0])


@contextmanager
def explained(named: HubId, file: str = "") -> Iterator[None]:
    """Raises InputError H401 to H407, H411 or F115, or OutputError (no room in the cache), for the client's errors."""
    from huggingface_hub.errors import HFValidationError

    try:
        yield
    except HFValidationError as problem:
        raise _refused(named, "H401", f"no repository can be named {named.repo}", file) from problem
    except UnicodeEncodeError as problem:
        raise _refused(named, "H404", odd_token(), file, fix=(_LOGIN,)) from problem
    except transport_errors() as problem:
        raise refusal(named, problem, file) from problem


def unreachable(problem: BaseException) -> bool:
    """Whether it is the network or the server that fails, and not this repository that is refused."""
    return overloaded(problem) if status_of(problem) else not _here(problem)


def overloaded(problem: BaseException) -> bool:
    """Whether the server says that it cannot answer now."""
    status = status_of(problem)
    return status == 429 or status >= 500


def broken(problem: BaseException) -> bool:
    """Whether a connection ended in the midst of an answer: as requests, then as httpx calls that."""
    return type(problem).__name__ in ("ChunkedEncodingError", "RemoteProtocolError", "ReadError")


def no_answer(problem: BaseException) -> str:
    """What the Hub does where it gives none, as the end of a sentence."""
    return "ends the connection too early" if broken(problem) else "cannot be reached"


def endpoint() -> str:
    """The Hub that is asked, without a password that HF_ENDPOINT may hold."""
    from huggingface_hub import constants

    parts = urlsplit(constants.ENDPOINT)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def refusal(named: HubId, problem: BaseException, file: str = "") -> InputError | OutputError:
    """The error that stands for `problem`, H401 to H407, H411, F115, or OutputError; `file` is what was asked for."""
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(problem, LocalEntryNotFoundError) and problem.__cause__ is not None:
        problem = problem.__cause__  # it is not in the cache either
    status = status_of(problem)
    if isinstance(problem, NoRanges):
        return _refused(
            named, "H411", f"{endpoint()} does not give parts of a file", file,
            why="of a target only a few tensors are fetched, never the whole model",
            fix=(f"hf download {named.repo} --local-dir target    then --target target/",
                 f"without its weights: --target hf://{named.repo}/config.json"),
        )  # fmt: skip
    if isinstance(problem, OfflineModeIsEnabled | LocalEntryNotFoundError):
        return not_cached(named, file)
    if isinstance(problem, GatedRepoError):
        accept = f"ask for access, or accept its terms, at {endpoint()}/{named.repo}"
        fix = (accept,) if _logged_in() else (accept, f"then: {_LOGIN}")
        return _refused(named, "H402", f"access to {named.repo} must be asked for: it is gated", file, fix=fix)
    if status in (401, 403) and _logged_in():
        return _refused(
            named, "H404", f"the Hub does not accept the token for {named.repo}", file,
            found=f"{status} with the token of {token_source()}",
            fix=("hf auth whoami    tells whose it is; hf auth login    takes another",
                 "or give it the right to read this repository, in the token's settings"),
        )  # fmt: skip
    if isinstance(problem, RepositoryNotFoundError) or status in (401, 403):
        why = "it is private, and your token may not read it" if _logged_in() else "it is private"
        fix = ("check the name", *(() if _logged_in() else (f"if it is private: {_LOGIN}",)))
        return _refused(named, "H401", f"there is no such repository, or {why}: {named.repo}", file,
                        found=_no_folder(named), fix=fix)  # fmt: skip
    if isinstance(problem, RevisionNotFoundError):
        return _refused(
            named, "H403", f"{named.repo} has no revision {named.revision}", file,
            expected="a branch, a tag or a commit",
            fix=(f"see {endpoint()}/{named.repo}/commits",),
        )  # fmt: skip
    if isinstance(problem, EntryNotFoundError):
        return no_file(named, file)
    if _here(problem):
        assert isinstance(problem, OSError)
        return OutputError(f"cannot write {problem.filename or 'to the cache of the Hub'}: {problem.strerror}")
    if status:
        wait = "ask less often, or log in: hf auth login" if status == 429 else "try again"
        return _refused(named, "H407", f"{endpoint()} answers {status}: {words_of(problem)}", file,
                        fix=(f"{wait}; files that are whole are not fetched again",))  # fmt: skip
    proxied = any(os.environ.get(k) or os.environ.get(k.lower()) for k in ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"))
    return _refused(
        named, "H406", f"{file + ' of ' if file else ''}{named.repo}: {endpoint()} {no_answer(problem)}", file,
        found="; ".join(filter(None, (words_of(problem), _no_folder(named)))),
        fix=(f"check the network{', HTTPS_PROXY' if proxied else ''}{' and HF_ENDPOINT' if _mirror() else ''}",
             f"or: hf download {named.repo}    where there is a network, and give the folder"),
    )  # fmt: skip


def not_cached(named: HubId, file: str = "") -> InputError:
    """H405 or H406: what can only come from the cache, and is not there."""
    from huggingface_hub import constants

    what = f"{file} of {named.repo}" if file else named.repo
    later = f"or: hf download {named.repo}    where there is a network, and give the folder"
    if constants.HF_HUB_OFFLINE:
        message = f"{what}: not in the cache, and HF_HUB_OFFLINE is set"
        return _refused(named, "H405", message, file, found=_no_folder(named), fix=("unset HF_HUB_OFFLINE", later))
    message = f"{what}: not in the cache, and {endpoint()} cannot be reached"
    return _refused(named, "H406", message, file, found=_no_folder(named), fix=("check the network", later))


def no_hub(named: HubId) -> InputError:
    """H407 of an answer that is none."""
    return _refused(named, "H407", f"{endpoint()} does not answer as a Hub does", "", fix=("check HF_ENDPOINT",))


def no_file(named: HubId, file: str) -> InputError:
    """F115."""
    finding = error(
        "F115",
        f"{named.repo} has no file {file}",
        where=str(named),
        fix=(f"see {endpoint()}/{named.repo}/tree/{named.revision or 'main'}",),
    )
    return InputError(finding)


def _refused(
    named: HubId,
    code: str,
    message: str,
    file: str,
    *,
    found: str = "",
    expected: str = "",
    why: str = "",
    fix: tuple[str, ...] = (),
) -> InputError:
    where = str(named) if not file or file in str(named) else f"{named}: {file}"
    return InputError(error(code, message, where=where, found=found, expected=expected, why=why, fix=fix))


def status_of(problem: BaseException) -> int:
    """The HTTP status of an answer; 0 where there was none."""
    status = getattr(getattr(problem, "response", None), "status_code", 0)
    return status if isinstance(status, int) else 0


def _here(problem: BaseException) -> bool:
    """Whether it is a disk of this machine that fails."""
    return isinstance(problem, OSError) and problem.errno in _LOCAL and bool(problem.filename or problem.strerror)


def _logged_in() -> bool:
    from huggingface_hub import get_token

    return get_token() is not None


def odd_token() -> str:
    """What is said where the client cannot put the token into a request."""
    return f"the token of {token_source()} holds characters that no token has, perhaps of a text around it"


def token_source() -> str:
    """Where the token is from, for people."""
    return "HF_TOKEN" if os.environ.get("HF_TOKEN") else "hf auth login"


def _mirror() -> bool:
    return bool(os.environ.get("HF_ENDPOINT"))


def _no_folder(named: HubId) -> str:
    """What is to be said beside the Hub's answer where a path was perhaps mistyped."""
    return f"no folder {named} on this machine, so it is taken for an id on the Hub" if named.short else ""


def words_of(problem: BaseException) -> str:
    """The first line that tells something."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return unsigned(lines[0] if lines else type(problem).__name__)
