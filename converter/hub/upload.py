"""What is sent to a repository on the Hub: one commit with all of it, or a branch as it was.

huggingface_hub sends large files first, each by its digest, and what the Hub has already is not sent again; a commit
then names them. Of its releases 2.4.0 tries again where an upload is cut or the Hub is busy, 1.0.1 and 0.36 not in all
cases, and none where a repository, a branch or a commit is asked for: that is done here.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converter.checkpoint.reader import Stamp
from converter.errors import InputError, SendError
from converter.hub.ids import HubId, is_commit
from converter.hub.patience import patiently
from converter.hub.refusals import broken, endpoint, overloaded, status_of, transport_errors
from converter.hub.secrets import unsigned
from converter.hub.sending import (
    changed_meanwhile,
    left_out,
    moved,
    no_branch,
    no_card,
    no_right,
    no_token,
    offline,
    refusal,
    unanswered,
)
from converter.hub.snapshot import CARD, LIBRARY, Snapshot

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete
    from huggingface_hub.hf_api import ModelInfo


MAIN = "main"
_SMALL = 10 << 20  # bytes, below which a file is read once; the Hub keeps files of git no larger than that


@dataclass(frozen=True)
class Outgoing:
    """A file as it will be sent. Its digest is computed once, by the client, and is what the Hub will know it by."""

    name: str
    size: int
    operation: CommitOperationAdd
    path: Path | None = None
    seen: Stamp | None = None  # of the path, before it was read

    @property
    def sha256(self) -> str:
        """In hex; of a large file its LFS id."""
        return self.operation.upload_info.sha256.hex()

    def is_as(self, stored: Stored) -> bool:
        """Whether the repository has these very bytes."""
        if stored.sha256:
            return stored.sha256 == self.sha256
        data = self.operation.path_or_fileobj
        return isinstance(data, bytes) and stored.blob == hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass(frozen=True)
class Stored:
    """A file of the repository: what git calls it, and, of a large one, its SHA-256."""

    blob: str
    sha256: str
    size: int


@dataclass(frozen=True)
class There:
    """What a repository is at this moment.

    commit   head of the branch, or of the default one where there is no such branch; "" where there is no repository
    branch   whether the branch is there
    private  None where that is not known
    """

    named: HubId
    commit: str = ""
    branch: bool = False
    private: bool | None = None
    files: Mapping[str, Stored] = field(default_factory=dict)

    @property
    def exists(self) -> bool:
        return bool(self.commit)

    def read(self, file: str) -> bytes:
        """A small file of it. Raises SendError."""
        sizes = {name: stored.size for name, stored in self.files.items()}
        try:
            return Snapshot(self.named, self.commit, sizes).fetch(file).read_bytes()
        except InputError as problem:
            raise SendError(problem.finding) from problem


@dataclass(frozen=True)
class Sent:
    """url: of the commit, or of the pull request that was opened, whose ref is then the revision."""

    url: str
    commit: str
    revision: str


def outgoing(name: str, data: bytes | Path) -> Outgoing:
    """A file that will be sent under this name. Raises InputError F100 and OSError where it cannot be read."""
    from huggingface_hub import CommitOperationAdd

    if isinstance(data, Path):
        seen = Stamp.of(data)
        if seen.size > _SMALL:
            return Outgoing(name, seen.size, CommitOperationAdd(name, str(data)), data, seen)
        data = data.read_bytes()
    return Outgoing(name, len(data), CommitOperationAdd(name, data))


def check_may_send(named: HubId) -> None:
    """Raises SendError H440 where nothing is to be sent from here, H423 where there is no token."""
    from huggingface_hub import constants, get_token

    if constants.HF_HUB_OFFLINE:
        raise offline(named)
    if get_token() is None:
        raise no_token(named)


def look_there(named: HubId) -> There:
    """Ask the Hub. Raises SendError H403 (a pull request that is not there), H423, H425."""
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    check_may_send(named)
    with _explained(named):
        try:
            info = _info(named, named.revision or MAIN)
            branch = True
        except RepositoryNotFoundError as problem:
            if status_of(problem) == 401:
                raise
            return There(named)
        except RevisionNotFoundError as problem:
            if named.revision.startswith("refs/") or named.is_commit:
                raise no_branch(named) from problem
            info, branch = _info(named, MAIN), False
        commit = info.sha
        if not is_commit(commit):
            raise ValueError("it names no commit")
    files = {
        f.rfilename: Stored(f.blob_id or "", f.lfs.sha256 if f.lfs else "", f.size or 0) for f in info.siblings or ()
    }
    return There(named, commit, branch, info.private, files)


def send(
    there: There, files: Sequence[Outgoing], gone: Sequence[str], message: str, private: bool, create_pr: bool
) -> Sent:
    """Commit `files` and the removal of `gone` on what `there` says is the head, or as a pull request to it.

    A repository and a branch that are not there are created. Raises SendError H423 to H426, H442, H445: the branch is
    then as it was.
    """
    named = there.named
    with _quietly(), _explained(named, propose=there.exists and not create_pr) as state:
        for file in files:
            if file.name == CARD:
                _check_card(named, file)
        if not there.exists:
            _create(named, private)
            state.append(f"{named.repo} was created, and is empty")
            there = replace(look_there(HubId(named.repo)), named=named, branch=not named.revision)
            if not there.exists:  # it was there already, and this token does not see it
                raise no_right(named)
        revision = named.revision or MAIN
        base = revision if there.branch else MAIN
        additions = [file.operation for file in files]
        try:
            patiently(lambda: _upload(named, additions, base, create_pr), _cut)
        finally:  # the Hub refuses what has another digest, and has no word for why
            for file in files:
                if file.path is not None and Stamp.of(file.path) != file.seen:
                    raise changed_meanwhile(named, file.path)
        # By the repository's .gitignore the client leaves files out of a commit, and does not say so.
        ignored = [file.name for file in files if getattr(file.operation, "_should_ignore", False)]
        if ignored:
            raise left_out(named, ignored)
        if not create_pr and not there.branch:
            _branch(named, revision, there.commit)
            state.append(f"the branch {revision} was created, and is as {MAIN}")
        if not files and not gone:
            return Sent(f"{endpoint()}/{named.repo}/tree/{revision}", there.commit, revision)
        return _commit(there, revision, files, gone, message, create_pr)


# --- requests -----------------------------------------------------------------------------------------------


def _info(named: HubId, revision: str) -> ModelInfo:
    from huggingface_hub import HfApi

    api = HfApi(**LIBRARY)
    return patiently(lambda: api.model_info(named.repo, revision=revision, files_metadata=True, timeout=30.0), _passing)


def _check_card(named: HubId, card: Outgoing) -> None:
    """The Hub refuses a commit whose card has other metadata than it knows; ask before anything else is sent."""
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status  # type: ignore[attr-defined]

    with card.operation.as_file() as file:
        content = file.read().decode("utf-8", "replace")

    def ask() -> None:
        url = f"{constants.ENDPOINT}/api/validate-yaml"
        answer = get_session().post(
            url, json={"content": content, "repoType": "model"}, headers=build_hf_headers(**LIBRARY)
        )
        if answer.status_code == 400:
            said = answer.json().get("errors", [])
            raise no_card(named, unsigned("; ".join(str(e.get("message", "")) for e in said if isinstance(e, dict))))
        hf_raise_for_status(answer)

    patiently(ask, _passing)


def _create(named: HubId, private: bool) -> None:
    from huggingface_hub import HfApi

    more: dict[str, Any] = {"private": True} if private else {}
    patiently(lambda: HfApi(**LIBRARY).create_repo(named.repo, exist_ok=True, **more), _passing)


def _branch(named: HubId, branch: str, commit: str) -> None:
    from huggingface_hub import HfApi

    patiently(
        lambda: HfApi(**LIBRARY).create_branch(named.repo, branch=branch, revision=commit, exist_ok=True), _passing
    )


def _upload(named: HubId, additions: Sequence[CommitOperationAdd], revision: str, create_pr: bool) -> None:
    from huggingface_hub import HfApi

    try:
        HfApi(**LIBRARY).preupload_lfs_files(
            named.repo, additions, revision=revision, create_pr=create_pr, free_memory=False
        )
    except RuntimeError as problem:  # of a thread, about the file that it was sending
        if isinstance(problem.__cause__, transport_errors()):
            raise problem.__cause__ from problem
        raise


def _commit(
    there: There, revision: str, files: Sequence[Outgoing], gone: Sequence[str], message: str, create_pr: bool
) -> Sent:
    from huggingface_hub import CommitOperationDelete, HfApi

    named, parent = there.named, there.commit
    operations: list[CommitOperationAdd | CommitOperationDelete] = [
        *(CommitOperationDelete(name, is_folder=False) for name in gone),
        *(file.operation for file in files),
    ]
    lost = False  # an answer: it may have been made

    def commit() -> Sent:
        nonlocal lost
        try:
            info = HfApi(**LIBRARY).create_commit(
                named.repo,
                operations,
                commit_message=message,
                revision=revision,
                parent_commit=parent,
                create_pr=create_pr,
            )
        except transport_errors() as problem:
            status = status_of(problem)
            lost = lost or not status or (status >= 500 and not _busy(problem))
            raise
        return Sent(info.pr_url or info.commit_url, info.oid, info.pr_revision or revision)

    try:
        # A pull request would be opened twice where the answer to the first attempt was lost.
        return patiently(commit, _busy if create_pr else _passing)
    except transport_errors() as problem:
        if not lost and status_of(problem) not in (409, 412):
            raise
        if create_pr:
            raise unanswered(named, problem, create_pr) from problem
        try:
            now = look_there(named)
        except SendError:
            raise unanswered(named, problem, create_pr) from problem
        if now.commit == parent:
            raise
        if lost and _is(now, files, gone):
            return Sent(f"{endpoint()}/{named.repo}/commit/{now.commit}", now.commit, revision)
        raise moved(named, parent, now.commit, problem) from problem


def _is(there: There, files: Sequence[Outgoing], gone: Sequence[str]) -> bool:
    same = all(file.name in there.files and file.is_as(there.files[file.name]) for file in files)
    return same and not set(gone) & set(there.files)


# --- how they fail ------------------------------------------------------------------------------------------


def _busy(problem: BaseException) -> bool:
    """The Hub has not looked at the request."""
    return status_of(problem) in (429, 503)


def _cut(problem: BaseException) -> bool:
    """What the client does not try again in all of its releases, where it is an upload."""
    return _busy(problem) or broken(problem)


def _passing(problem: BaseException) -> bool:
    """Whether the same request may succeed a little later, though it may have been carried out."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    if status_of(problem):
        return overloaded(problem)
    return not isinstance(problem, OfflineModeIsEnabled) and not getattr(problem, "filename", None)


@contextmanager
def _explained(named: HubId, propose: bool = False) -> Iterator[list[str]]:
    """Raises SendError for the client's errors. What is put into the list is said of what is there by then; `propose`:
    whether a pull request is a way.
    """
    from huggingface_hub.errors import HFValidationError

    state: list[str] = []
    try:
        yield state
    except SendError as problem:
        if not state:
            raise
        why = "; ".join(filter(None, (problem.finding.why, *state)))
        raise SendError(replace(problem.finding, why=why)) from problem
    except HFValidationError as problem:
        raise refusal(named, problem, state, f"no repository can be named {named.repo}") from problem
    except transport_errors() as problem:
        raise refusal(named, problem, state, propose=propose) from problem
    # An answer that is none, or errors in one.
    except (ValueError, RuntimeError, LookupError, TypeError, AttributeError) as problem:
        raise refusal(named, problem, state) from problem


class _Unsigned(logging.Filter):
    """The client's words of a request that is made again hold the URL of the storage, which is a right to write."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = unsigned(record.getMessage()), ()
        return True


@contextmanager
def _quietly() -> Iterator[None]:
    """The client's own words without what signs a URL; no bars where nobody looks; no words on the card, which has been
    looked at.
    """
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    without, handlers = _Unsigned(), logging.getLogger("huggingface_hub").handlers
    for handler in handlers:
        handler.addFilter(without)
    hidden = not sys.stderr.isatty() and not are_progress_bars_disabled()
    if hidden:
        disable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(without)
        if hidden:
            enable_progress_bars()
