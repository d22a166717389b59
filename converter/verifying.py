"""Whether a sealed folder is what was sealed: the seal itself, its files, which tensors changed, rules, signature."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from converter import gate, seal
from converter.checkpoint.header import read_header
from converter.checkpoint.held import tensor_digests
from converter.checkpoint.jsonfile import reading
from converter.errors import InputError
from converter.findings import SEVERITIES, Finding, note, some_of, stops, warning
from converter.hub.ids import HubId, hub_id
from converter.hub.snapshot import cached, look_up, two_meanings
from converter.signing import Trusted, check_signature
from converter.source import SIGNATURE, not_there


@dataclass(frozen=True)
class Tensors:
    """What became of the tensors of a weight file that changed, by their digests.

    changed, added  names; added: the seal has none of that name
    unchanged       how many are, byte for byte, those that were sealed
    unknown         how many were sealed without a digest
    unreadable      why nothing is known, "" where it is
    """

    changed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    unchanged: int = 0
    unknown: int = 0
    unreadable: str = ""


@dataclass(frozen=True)
class Verified:
    """What is known of a folder and its seal.

    given, where    as the user named it; the folder, or the id with its commit
    sealed          its seal, None where there is none
    tensors         of the weight files that changed, by file name
    gone            tensors that were sealed and are in no weight file any more
    rules           names of rule files that are others now
    signed          whether there is a signature; trusted: whose it has to be, None where nobody asked
    """

    given: str
    where: str
    commit: str
    sealed: Mapping[str, Any] | None
    files: tuple[seal.Compared, ...] = ()
    tensors: Mapping[str, Tensors] = field(default_factory=dict)
    gone: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    signed: bool = False
    trusted: Trusted | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def changed(self) -> list[seal.Compared]:
        """Files that are not what was sealed."""
        return [file for file in self.files if file.differs]

    @property
    def in_order(self) -> bool:
        """Whether nothing found is an error."""
        return not stops(self.findings)

    @property
    def signature_holds(self) -> bool | None:
        """None where nobody asked."""
        return None if self.trusted is None else not any(f.code in ("H434", "H435", "H436") for f in self.findings)


@dataclass(frozen=True)
class _Place:
    """A folder here, or a repository of which files are fetched when they are read."""

    where: str
    commit: str
    names: frozenset[str]
    listed: Callable[[str], seal.Listed]
    fetch: Callable[[str], Path]
    notes: tuple[Finding, ...]


def verify(given: str, trusted: Trusted | None = None) -> Verified:
    """Hold what lies in `given`, a folder or a name on the Hub, against its seal; `trusted`: who has to have signed it.

    Raises InputError F100 for a file and H415 for a seal that cannot be read, what the Hub answers, and OutputError.
    """
    with reading(Path(given)):
        return _verified(given, trusted)


def _verified(given: str, trusted: Trusted | None) -> Verified:
    named = hub_id(given)
    place = _here(given) if named is None else _on_the_hub(named)
    if seal.NAME not in place.names:
        findings = gate.may_leave(None, {}, given)
        return Verified(given, place.where, place.commit, None, findings=(*findings, *place.notes))
    document = seal.sound_seal(place.fetch(seal.NAME))
    present = {name: place.listed(name) for name in sorted(place.names - {seal.NAME})}
    files = tuple(seal.compared(document, present))
    findings = [*gate.changed_since(document, present, given), *_by_size(files)]
    tensors, gone = _tensors(document, files, place.fetch)
    rules = _changed_rules(document)
    findings += [*_other_rules(rules, given), *place.notes]
    signed = SIGNATURE in place.names
    if trusted is not None:
        for name in (*seal.must_be_signed(document), SIGNATURE):
            if name in place.names:
                place.fetch(name)
        findings += check_signature(place.fetch(seal.NAME).parent, seal.must_be_signed(document), trusted, given)
    findings.sort(key=lambda f: SEVERITIES.index(f.severity))
    return Verified(
        given, place.where, place.commit, document, files, tensors, gone, tuple(rules), signed, trusted, tuple(findings)
    )


# --- the folder -----------------------------------------------------------------------------------------------


def _here(given: str) -> _Place:
    path = Path(given)
    folder = path.parent if path.name == seal.NAME else path
    if not folder.is_dir():
        raise not_there(given)
    listing = seal.listing(folder)
    names = frozenset(listing) | ({seal.NAME} if (folder / seal.NAME).is_file() else frozenset())
    return _Place(str(folder), "", names, listing.__getitem__, folder.joinpath, two_meanings(given))


def _on_the_hub(named: HubId) -> _Place:
    at = look_up(named, named.file(seal.NAME))
    fetch = cache(lambda name: at.fetch(named.file(name)))

    def listed(name: str) -> seal.Listed:
        size = (at.files or {}).get(named.file(name))
        digest = cache(lambda: seal.sha256_of(fetch(name)))
        return seal.Listed(fetch(name).stat().st_size if size is None else size, digest)

    if at.files is not None:
        names = {name for name in map(named.within, at.files) if name}
    else:  # only the cache can be asked: what is sealed has to be there
        document = seal.sound_seal(fetch(seal.NAME))
        names = set(seal.must_be_signed(document))
        if cached(named.at(at.commit), named.file(SIGNATURE)) is not None:
            names.add(SIGNATURE)
    return _Place(str(named.at(at.commit)), at.commit, frozenset(names), listed, fetch, at.notes)


# --- what changed ---------------------------------------------------------------------------------------------


def _tensors(
    document: Mapping[str, Any], files: Sequence[seal.Compared], fetch: Callable[[str], Path]
) -> tuple[dict[str, Tensors], tuple[str, ...]]:
    """Of the weight files that changed or came later, and the tensors that are nowhere any more."""
    other = [f for f in files if f.differs and f.name.endswith(".safetensors") and seal.plain_name(f.name)]
    if not other:
        return {}, ()
    sealed = {row["name"]: row["xxh3_128"] for row in document["tensors"]}
    found: dict[str, Tensors] = {}
    seen: set[str] = set()
    for file in files:
        if not file.name.endswith(".safetensors") or file.size is None:
            continue
        try:
            now = tensor_digests(fetch(file.name)) if file.differs else _names(fetch(file.name))
        except InputError as problem:
            found[file.name] = Tensors(unreadable=problem.finding.message)
            continue
        seen |= now.keys()
        if file.differs:
            found[file.name] = _held_against(sealed, now)
    whole = not any(t.unreadable for t in found.values())
    return found, tuple(name for name in sealed if name not in seen) if whole else ()


def _changed_rules(document: Mapping[str, Any]) -> list[str]:
    """Names of the rule files that the seal names and that are others now, or gone. Those of engines that it was not
    converted for are left out, and the user's own, which are not here.
    """
    engines = {name.partition("==")[0] for name in seal.texts_at(document, "engines", "engine")}
    now, found = seal.rule_digests(), []
    for name, digest in sorted(document["rules"].items()):
        kind, _, file = name.rpartition("/")
        concerns = kind != "engines" or file.partition(".")[0] in engines
        if concerns and not name.endswith("(--mapping)") and now.get(name) != digest:
            found.append(name)
    return found


def _names(path: Path) -> dict[str, str]:
    return dict.fromkeys(read_header(path).tensors, "")


def _held_against(sealed: Mapping[str, str], now: Mapping[str, str]) -> Tensors:
    known = {name: digest for name, digest in now.items() if sealed.get(name)}
    same = sum(sealed[name] == digest for name, digest in known.items())
    return Tensors(
        tuple(name for name, digest in known.items() if sealed[name] != digest),
        tuple(name for name in now if name not in sealed),
        same,
        sum(name in sealed and not sealed[name] for name in now),
    )


# --- findings -------------------------------------------------------------------------------------------------


def _by_size(files: Sequence[seal.Compared]) -> list[Finding]:
    names = [file.name for file in files if file.state == "same size"]
    if not names:
        return []
    return [
        warning(
            "H416",
            f"told by size only: {some_of(names)}",
            where=seal.NAME,
            why="they were sealed without digests (--no-digest), so that other bytes of the same number go unseen",
            fix=("convert again without --no-digest",),
        )
    ]


def _other_rules(names: Sequence[str], given: str) -> list[Finding]:
    if not names:
        return []
    return [
        note(
            "H417",
            f"sealed by other rules than this release has: {some_of(names)}",
            where=seal.NAME,
            why="what was proved then was proved by those rules",
            fix=(f"check it by the rules of this release: {shlex.join(['eagle3-validate', given])}",),
        )
    ]
