"""What a push publishes: the refs it moves, the commits that are new to the remote, the folders of drafters in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from converter.checkpoint import pickled, reader
from converter.errors import InputError, UsageError
from converter.hook.git import Entry, Git, Objects, broken
from converter.hook.policy import MAX_BYTES, Policy, parse_policy
from converter.hook.policy import NAME as POLICY
from converter.seal import NAME as SEAL

CONFIG = "config.json"
TOP = "."  # how the top folder of the repository is called


@dataclass(frozen=True)
class Ref:
    """One ref that a push moves.

    name     at the remote, e.g. refs/heads/main
    oid      of the object that it shall name: a commit, or a tag of one (or of a tree, or of a file)
    before   what it names at the remote as git knows it; "" where it is new
    """

    name: str
    oid: str
    before: str = ""


@dataclass(frozen=True)
class Folder:
    """A folder that holds a drafter, perhaps.

    path     from the top of the repository, "." for the top itself
    tree     the object that it is
    files    what lies in it itself, by name: files, links and submodules, no folders
    commit   the one in which it looks so; "" for a tag of a tree
    ref      that the push moves; tip: the folder is what this ref will show
    """

    path: str
    tree: str
    files: Mapping[str, Entry]
    commit: str
    ref: str
    tip: bool
    policy: Policy

    @property
    def sealed(self) -> bool:
        """Whether a seal lies in it, whatever that says."""
        return SEAL in self.files


def refs_of_git(text: str) -> list[Ref]:
    """The lines that git gives a pre-push hook: local ref, local object, remote ref, remote object. Deleted refs bring
    nothing and are left out. Raises UsageError for other lines.
    """
    refs = []
    for line in text.split("\n"):
        if not line.strip():
            continue
        words = line.rsplit(" ", 3)  # the first may be any expression that the user typed
        if len(words) != 4 or not all(_is_oid(words[i]) for i in (1, 3)):
            raise UsageError(f"expected the lines that git gives a pre-push hook, found {line!r:.120}")
        _, oid, name, before = words
        if not _nothing(oid):
            refs.append(Ref(name, oid, "" if _nothing(before) else before))
    return refs


def refs_of_pre_commit(environment: Mapping[str, str], git: Git) -> list[Ref]:
    """The one ref that the pre-commit framework speaks of; of a history that is pushed from its root on it gives the
    local branch alone. Raises UsageError where the variables are not there.
    """
    tip = environment.get("PRE_COMMIT_TO_REF") or environment.get("PRE_COMMIT_LOCAL_BRANCH")
    if not tip or "PRE_COMMIT_REMOTE_NAME" not in environment:
        raise UsageError("give REMOTE and URL as git does, or run it from pre-commit in the stage pre-push")
    oid = git.answer("rev-parse", "--verify", "--quiet", "--end-of-options", tip)
    before = environment.get("PRE_COMMIT_FROM_REF", "")
    if oid is None:
        raise UsageError(f"pre-commit speaks of {tip!r:.120}, which is not in this repository")
    return [Ref(environment.get("PRE_COMMIT_REMOTE_BRANCH", tip), oid, before)]


def _is_oid(word: str) -> bool:
    return len(word) in (40, 64) and not set(word) - set("0123456789abcdef")


def _nothing(oid: str) -> bool:
    return set(oid) == {"0"}


def folders(git: Git, objects: Objects, refs: Iterable[Ref], remote: str | None) -> Iterator[Folder]:
    """All that may be drafters: first in what each ref will show, whole; then in the commits that `remote` (None: not
    asked for) has not yet, oldest first, where a folder is as in no tip and in no commit that the remote has.

    Raises InputError: H427 for a policy, H429 for what cannot be read.
    """
    refs = list(refs)
    tips = []
    for ref in refs:
        root, commit = _root(objects, ref)
        if root:
            tips.append((ref, root, commit, _policy(objects, root, commit)))
    seen: set[str] = set()
    shown: set[tuple[str, str, Policy]] = set()  # one commit may be pushed to several refs
    for ref, root, commit, policy in tips:
        for path, tree, files in _candidates(objects, root):
            if (path, tree, policy) not in shown:
                shown.add((path, tree, policy))
                yield Folder(path, tree, files, commit, ref.name, True, policy)
        seen |= _trees(objects, root)
    if remote is None:
        return
    there = [ref.before for ref in refs if ref.before and objects.look(f"{ref.before}^{{commit}}") is not None]
    done: list[str] = []
    for ref, _, commit, policy in tips:
        if not commit or policy.commits == "tips":
            continue
        new, edge = _commits(git, commit, [*there, *done], remote)
        done.append(commit)
        for old in edge:
            seen |= _trees(objects, _tree_of(objects, old))
        for middle in new:
            for path, tree, files in _candidates(objects, _tree_of(objects, middle), seen):
                yield Folder(path, tree, files, middle, ref.name, False, policy)


def _root(objects: Objects, ref: Ref) -> tuple[str, str]:
    """The tree that a ref will show, and its commit; "" where there is none."""
    commit = objects.look(f"{ref.oid}^{{commit}}")
    tree = objects.look(f"{ref.oid}^{{tree}}")
    if tree is None and objects.look(ref.oid) is None:
        raise _lost(ref.oid)
    return tree.oid if tree is not None else "", commit.oid if commit is not None else ""


def _tree_of(objects: Objects, commit: str) -> str:
    tree = objects.look(f"{commit}^{{tree}}")
    if tree is None:
        raise _lost(commit)
    return tree.oid


def _lost(oid: str) -> InputError:
    return broken(f"the object {oid} is not in the repository")


def _policy(objects: Objects, root: str, commit: str) -> Policy:
    """Of the pushed commit: the working tree's may be another, and would let things out without a trace."""
    entry = next((e for e in objects.tree(root) if e.name == POLICY), None)
    if entry is None:
        return Policy()
    where = POLICY + (f" in commit {commit[:7]}" if commit else "")
    return parse_policy(objects.read(entry.oid, MAX_BYTES + 1) if entry.is_file else b"(no file)", where)


def _commits(git: Git, tip: str, without: Sequence[str], remote: str) -> tuple[list[str], set[str]]:
    """Commits that the remote has not, oldest first, and those that it has which they follow on."""
    revisions = "".join(f"{line}\n" for line in (tip, *(f"^{oid}" for oid in without)))
    # A remote that was given as a URL has no refs here: then all that `without` does not exclude is new.
    known = ["--not", f"--remotes={remote}"] if remote else []
    words = ["rev-list", "--topo-order", "--reverse", "--parents", "--stdin", *known]
    rows = [row.split() for row in git.output(*words, given=revisions.encode()).decode().splitlines()]
    new = [row[0] for row in rows]
    return new, {parent for row in rows for parent in row[1:]} - set(new)


def _trees(objects: Objects, root: str) -> set[str]:
    """A tree and all below it."""
    found, left = set(), [root]
    while left:
        oid = left.pop()
        if oid not in found:
            found.add(oid)
            left += [e.oid for e in objects.tree(oid) if e.is_folder]
    return found


def _candidates(
    objects: Objects, root: str, seen: set[str] | None = None
) -> Iterator[tuple[str, str, Mapping[str, Entry]]]:
    """Path, tree and files of what may be drafters at and below `root`, top first; trees in `seen` are passed over, and
    those that were looked at are added.
    """
    left = [(TOP, root)]
    while left:
        path, oid = left.pop()
        if seen is not None:
            if oid in seen:
                continue
            seen.add(oid)
        entries = objects.tree(oid)
        files = {e.name: e for e in entries if not e.is_folder}
        if SEAL in files or (CONFIG in files and weights_in(files)):
            yield path, oid, files
        inside = "" if path == TOP else f"{path}/"
        left += [(inside + e.name, e.oid) for e in reversed(entries) if e.is_folder]


def weights_in(names: Iterable[str]) -> set[str]:
    """Files that are read as weights: pickles only where there are no safetensors."""
    names = set(names)
    safe = {n for n in names if n.endswith(".safetensors") or n == reader.INDEX}
    return safe or {n for n in names if n.endswith(pickled.ENDINGS) or n == pickled.INDEX}
