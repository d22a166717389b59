"""What the Hub or the network answer instead of taking a commit, in words that say what is there now and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from converter.errors import OutputError, SendError
from converter.findings import error
from converter.hub.ids import HubId
from converter.hub.refusals import (
    endpoint,
    no_answer,
    odd_token,
    overloaded,
    status_of,
    token_source,
    transport_errors,
    words_of,
)
from converter.hub.secrets import unsigned

_LOGIN = "hf auth login    (or set HF_TOKEN to a token with the role write)"
_AGAIN = "the same command again: what the Hub has of the large files is not sent twice"


def no_token(named: HubId) -> SendError:
    """H423, before anything is asked."""
    return _error(named, "H423", f"nothing can be pushed to {named.repo} without a token", fix=(_LOGIN,))


def no_right(named: HubId) -> SendError:
    """H423 of a repository that could not be created, and is not to be seen."""
    message = f"{named.repo} is there, and the token may not see it"
    return _error(named, "H423", message, found=f"404 with the token of {token_source()}", fix=(_LOGIN,))


def offline(named: HubId) -> SendError:
    """H440."""
    message = f"nothing can be pushed to {named.repo}: HF_HUB_OFFLINE is set"
    return _error(named, "H440", message, fix=("unset HF_HUB_OFFLINE",))


def no_branch(named: HubId) -> SendError:
    """H403."""
    return _error(
        named,
        "H403",
        f"{named.repo} has no revision {named.revision}, and none of that name can be created",
        expected="a branch, or the ref of a pull request that is open",
        fix=("to open a pull request: --create-pr, without --revision",),
    )


def no_card(named: HubId, words: str) -> SendError:
    """H442; `words` are the Hub's."""
    return _error(
        named,
        "H442",
        "the Hub does not take the metadata of the card, README.md",
        found=words,
        fix=("mend what stands between the first two lines of --- in README.md",),
    )


def left_out(named: HubId, names: Sequence[str]) -> SendError:
    """H445."""
    return _error(
        named,
        "H445",
        f"the .gitignore of {named.repo} leaves out {', '.join(names[:4])}{', ...' if len(names) > 4 else ''}",
        why="the drafter would be there in part, so no commit was made",
        fix=(
            f"remove it, or these names from it: {endpoint()}/{named.repo}/blob/{named.revision or 'main'}/.gitignore",
        ),
    )


def changed_meanwhile(named: HubId, path: Path) -> SendError:
    """H426."""
    return _error(
        named,
        "H426",
        f"{path} was written to while it was sent",
        why="what was sent is not what was checked, so no commit was made",
        fix=(_AGAIN,),
    )


def moved(named: HubId, before: str, now: str, problem: BaseException) -> SendError:
    """H424: somebody committed in between."""
    return _error(
        named,
        "H424",
        f"{named} was committed to by somebody else meanwhile: {_server_words(problem)}",
        found=f"commit {now[:12]}",
        expected=f"commit {before[:12]}, on which this push was planned",
        why="nothing was committed; what they did is whole",
        fix=(f"see {endpoint()}/{named.repo}/commits/{named.revision or 'main'}", _AGAIN),
    )


def unanswered(named: HubId, problem: BaseException, create_pr: bool) -> SendError:
    """H425: what was sent last may have been carried out."""
    what, where = ("the pull request was opened", "discussions") if create_pr else ("it was made", "commits")
    return _error(
        named,
        "H425",
        f"{named.repo}: {endpoint()} did not answer the commit: {_server_words(problem)}",
        why=f"whether {what} is not known; the branch is as it was, or has all of it",
        fix=(f"see {endpoint()}/{named.repo}/{where}", _AGAIN),
    )


def refusal(
    named: HubId, problem: BaseException, state: Sequence[str], message: str = "", propose: bool = False
) -> OutputError:
    """The error that stands for one of the client's: H403, H423, H425 or H440; without a finding where a file here
    cannot be read.

    state     what is there by now that was not before
    propose   whether a pull request may do where the token may not write
    """
    from huggingface_hub.errors import OfflineModeIsEnabled, RepositoryNotFoundError, RevisionNotFoundError

    status, words = status_of(problem), _server_words(problem)
    now = "; ".join(state)
    if isinstance(problem, OfflineModeIsEnabled):
        return offline(named)
    if isinstance(problem, UnicodeEncodeError):
        return _error(named, "H423", odd_token(), why=_whole(now), fix=(_LOGIN,))
    if isinstance(problem, OSError) and problem.filename:
        return OutputError(f"cannot read {problem.filename}: {problem.strerror}; nothing was committed")
    if status in (401, 403) and not _of_the_hub(problem):
        gone = f"the storage that {endpoint()} names does not take a file ({status}): {words}"
        return _error(named, "H425", gone, why=_whole(now), fix=(_AGAIN,))
    if status == 401:
        return _error(
            named, "H423", f"the Hub does not accept the token for {named.repo}: {words}",
            found=f"401 with the token of {token_source()}", why=_whole(now),
            fix=("hf auth whoami    tells whose it is", _LOGIN),
        )  # fmt: skip
    if status == 403:
        return _error(
            named, "H423", f"the token may not write to {named.repo}: {words}",
            found=f"403 with the token of {token_source()}", why=_whole(now),
            fix=("give it the role write, or the right to write to this repository, in the token's settings",
                 f"or take another: {_LOGIN}", *["or propose it: --create-pr opens a pull request"] * propose),
        )  # fmt: skip
    if isinstance(problem, RevisionNotFoundError):
        return no_branch(named)
    if isinstance(problem, RepositoryNotFoundError):
        gone = f"{named.repo} is not there any more, or the token may not see it: {words}"
        return _error(named, "H425", gone, why=now, fix=(f"see {endpoint()}/{named.repo}",))
    if status:
        busy = overloaded(problem)
        fix = (_AGAIN,) if busy else (f"see {endpoint()}/{named.repo}", _AGAIN)
        answered = f"{endpoint()} answers {status}" if busy else f"{endpoint()} refuses it ({status})"
        return _error(named, "H425", message or f"{answered}: {words}", why=_whole(now), fix=fix)
    if isinstance(problem, transport_errors()):
        said = f"{named.repo}: {endpoint()} {no_answer(problem)}"
        return _error(named, "H425", said, found=words_of(problem), why=_whole(now),
                      fix=("check the network", _AGAIN))  # fmt: skip
    said = message or f"{endpoint()} does not take it: {words}"
    return _error(named, "H425", said, why=_whole(now), fix=(f"see {endpoint()}/{named.repo}", _AGAIN))


def _server_words(problem: BaseException) -> str:
    """What the Hub itself said, on one line; what the client makes of it where it said nothing."""
    said = getattr(problem, "server_message", None)
    if not said and not status_of(problem) and isinstance(problem, ValueError | RuntimeError):
        said = f"{problem} {problem.__cause__ or ''}"  # the client's own words, about an answer, perhaps in a thread
    return unsigned(" ".join(said.split())) if isinstance(said, str) and said.strip() else words_of(problem)


def _of_the_hub(problem: BaseException) -> bool:
    """Whether it is the Hub that answers, and not the storage, where a URL and no token is the right to write."""
    from huggingface_hub import constants

    url = getattr(getattr(problem, "response", None), "url", "")
    return str(url).startswith(constants.ENDPOINT)


def _whole(now: str) -> str:
    return f"nothing was committed; {now}" if now else "nothing was committed"


def _error(
    named: HubId,
    code: str,
    message: str,
    *,
    found: str = "",
    expected: str = "",
    why: str = "",
    fix: tuple[str, ...] = (),
) -> SendError:
    return SendError(error(code, message, where=str(named), found=found, expected=expected, why=why, fix=fix))
