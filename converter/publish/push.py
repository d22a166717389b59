"""A drafter on its way to the Hub: what may go, what will, and what became of it.

Everything that speaks against it is known before the first request: the seal, the files by their digests, the level of
proof, and the checks of this moment where they were asked for.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from converter import gate, seal
from converter.checkpoint.jsonfile import dumped, parse, read_bounded, read_config, reading
from converter.checkpoint.pickled import ENDINGS
from converter.checkpoint.pickled import INDEX as PICKLE_INDEX
from converter.checkpoint.reader import INDEX
from converter.checks.carried import leads_out
from converter.errors import InputError
from converter.findings import Finding, Level, counts, error, judge, some_of, stops
from converter.hub.ids import HubId
from converter.hub.secrets import masked
from converter.hub.sending import changed_meanwhile
from converter.hub.snapshot import CARD, CONFIG
from converter.hub.upload import MAIN, Outgoing, Sent, There, look_there, outgoing, send
from converter.proving import proof_json
from converter.publish.card import card_text, existing_card, link_out
from converter.report.verdict import of_engine
from converter.run import Report
from converter.source import SIGNATURE, carried_files, open_source
from converter.version import __version__

SCHEMA = "eagle3-convert/push/1"


@dataclass(frozen=True)
class Asked:
    """The options of the same names. to: with the branch as its revision, "" for the default one."""

    folder: Path
    to: HubId
    private: bool = False
    create_pr: bool = False
    message: str = ""
    require: Level = "sample"
    allow: tuple[str, ...] = ()


@dataclass
class Push:
    """What is known of a push, in whatever state it ended.

    outcome   refused, planned, unchanged (the repository has all of it) or pushed
    level     of proof, and `checked`: whether it was reached by checks of this moment, or is the seal's
    sealed    the seal that goes; empty of a folder that has none
    states    file: new, changed or unchanged; gone: files of the repository that will be deleted
    left      what lies in the folder and stays there
    """

    asked: Asked
    outcome: str = "refused"
    level: Level = "none"
    checked: bool = False
    sealed: Mapping[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    files: list[Outgoing] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    there: There | None = None
    sent: Sent | None = None

    @property
    def to_send(self) -> list[Outgoing]:
        """Files that the branch has not, or not so."""
        return [file for file in self.files if self.states.get(file.name) != "unchanged"]

    @property
    def branch(self) -> str:
        """Where it goes, or what a pull request is for."""
        return self.asked.to.revision or MAIN

    @property
    def address(self) -> str:
        """What names the drafter once it is pushed."""
        revision = self.sent.revision if self.sent is not None else self.branch
        return str(replace(self.asked.to, revision="" if revision == MAIN else revision))

    def add(self, findings: Sequence[Finding]) -> None:
        """What --allow takes off: of the codes of a push itself one alone; those of the checks were judged there."""
        self.findings = judge([*self.findings, *findings], {"H441"} & set(self.asked.allow))

    def as_json(self) -> dict[str, Any]:
        """The published form (schemas/push.schema.json)."""
        there, sent = self.there, self.sent
        return {
            "schema": SCHEMA,
            "tool": {"name": "eagle3-convert", "version": __version__},
            "outcome": self.outcome,
            "folder": str(self.asked.folder),
            "repository": {
                "id": self.asked.to.repo,
                "branch": self.branch,
                "existed": there.exists if there is not None else None,
                "private": self.private,
            },
            "proof": {"level": self.level, "required": self.asked.require, "checked_now": self.checked},
            "files": [
                {"name": f.name, "size": f.size, "sha256": f.sha256, "state": self.states.get(f.name, "")}
                for f in self.files
            ],
            "deleted": self.gone,
            "left": self.left,
            "findings": [f.as_json() for f in self.findings],
            "commit": self.commit,
            "url": sent.url if sent is not None else "",
            "pull_request": sent.revision if sent is not None and self.asked.create_pr else "",
        }

    @property
    def commit(self) -> str:
        """The one that has all of it; "" where there is none."""
        if self.sent is not None:
            return self.sent.commit
        return self.there.commit if self.there is not None and self.outcome == "unchanged" else ""

    @property
    def private(self) -> bool | None:
        """Whether it will be; None where nobody said."""
        there = self.there
        return there.private if there is not None and there.exists else self.asked.private or None


# --- what may go --------------------------------------------------------------------------------------------


def gather(asked: Asked, checked: Report | None = None) -> Push:
    """Hold the folder against its seal, its proof and `checked`, what `validate` says of it at this moment.

    Raises InputError where there is no drafter, or a file cannot be read, H415 of a damaged seal among them.
    """
    with reading(asked.folder):
        return _gather(asked, checked)


def _gather(asked: Asked, checked: Report | None) -> Push:
    folder = asked.folder
    if not folder.is_dir():
        fix = ("name the folder that eagle3-convert wrote",)
        raise InputError(error("F100", f"{folder} is no folder", where=str(folder), fix=fix))
    document, where = seal.sound_seal_of(folder), str(folder)
    names = _sealed(document) if document is not None else _unsealed(folder)
    push = Push(asked, checked=checked is not None, sealed=document or {})
    foreign = [folder / name for name in _untold(document, names) if leads_out(folder / name)]
    if foreign:  # not one of them is read
        push.add([link_out(file) for file in foreign])
        return push
    push.files = [outgoing(name, folder / name) for name in names if (folder / name).is_file()]
    if checked is None:
        push.level = gate.level_of(push.sealed)
    else:
        push.level = checked.proof.level if checked.proof is not None else "none"
        push.add(_spoken_against(checked, where))
    stated = {**push.sealed, "proof": {"level": push.level}}
    if document is None and checked is not None:
        push.add(gate.too_little_proof(stated, where, asked.require))
    else:
        push.add(_held(None if document is None else stated, push))
    if document is not None:
        push.add(_weaknesses(document, push))
        push.files.append(_seal_to_send(push, document, checked))
    here = {p.name + "/" * p.is_dir() for p in folder.iterdir()}
    push.left = sorted(here - {f.name for f in push.files} - {CARD})
    push.outcome = "refused" if stops(push.findings) else "planned"
    return push


def _held(document: Mapping[str, Any] | None, push: Push) -> list[Finding]:
    """What the gate says of the files that would go; others stay here, so none of them counts."""
    here = seal.listing(push.asked.folder)
    files = {CONFIG: here[CONFIG]} if CONFIG in here else {}  # which a seal must list
    files |= {f.name: seal.Listed(f.size, partial(getattr, f, "sha256")) for f in push.files}
    found = gate.may_leave(document, files, str(push.asked.folder), push.asked.require)
    if not push.checked:
        now = f"or run the checks now: {_with_a_sample(push.asked)}"
        found = [replace(f, fix=(*f.fix[:1], now, *f.fix[1:])) if f.code in ("H413", "H414") else f for f in found]
    if push.asked.require != "none":
        return found
    return [replace(f, severity="warning") if f.code == "H413" else f for f in found]


def _with_a_sample(asked: Asked) -> str:
    return f"{shlex.join(['eagle3', 'push', str(asked.folder), str(asked.to)])} --target TARGET --sample SAMPLE"


def _weaknesses(document: Mapping[str, Any], push: Push) -> list[Finding]:
    """What a seal itself says against the drafter."""
    folder, made_from = push.asked.folder, seal.text_at(document, "source.given") or "CHECKPOINT"
    where, found = f"{folder}/{seal.NAME}", []
    bare = _without_digest(document)
    if bare and not push.checked and push.asked.require != "none":
        found.append(
            error(
                "H420",
                f"{folder} was sealed without digests: whether its files are those that were proved cannot be told",
                where=where,
                found=f"{len(bare)} files told by their size alone (--no-digest)",
                fix=(
                    f"convert again, without --no-digest: {shlex.join(['eagle3-convert', made_from])} OUT",
                    f"or run the checks now: {_with_a_sample(push.asked)}",
                ),
            )
        )
    errors = {f["code"] for f in document["findings"] if f["severity"] == "error" and f["allowed"]}
    unsaid = sorted(errors - set(push.asked.allow))
    if unsaid:
        named = " ".join(f"--allow {code}" for code in unsaid)
        found.append(
            error(
                "H421",
                f"{folder} was written with {', '.join(unsaid)} allowed",
                where=where,
                why="it is not the drafter that was trained: who takes it from the Hub must want that, too",
                fix=(f"to push it all the same, {named}; its card tells what was let through",),
            )
        )
    return found


def _spoken_against(report: Report, where: str) -> list[Finding]:
    """What the checks of this moment found, and the engines that do not serve the folder as it lies."""
    verdicts = {e.requirement: of_engine(report, e) for e in report.engines}
    unable = {name: verdict for name, verdict in verdicts.items() if verdict.word != "works"}
    found = [f for f in report.findings if counts(f)]
    # Where nobody said which engine it is for, one that serves it will do.
    if not unable or (not report.request.engines and len(unable) < len(verdicts)):
        return found
    reasons = [f"{name}: {verdict.word}" + (f" ({verdict.why})" if verdict.why else "")
               for name, verdict in unable.items()]  # fmt: skip
    return [
        *found,
        error(
            "H422",
            f"{where} is not served as it lies by {', '.join(unable)}",
            where=where,
            found="; ".join(reasons),
            expected="works, for every engine that it is for",
            fix=(f"{shlex.join(['eagle3-validate', where])} ...    says more",),
        ),
    ]


def _sealed(document: Mapping[str, Any]) -> list[str]:
    """Names that the seal lists, and of the signature; none that would lead elsewhere or hide."""
    named = [*seal.texts_at(document, "files", "name"), SIGNATURE]
    return [n for n in named if seal.plain_name(n) and not n.startswith(".") and n not in (seal.NAME, CARD)]


def _unsealed(folder: Path) -> list[str]:
    """What a folder without a seal has of a drafter."""
    source = open_source(str(folder.absolute()))
    beside = [p.name for p in carried_files(folder)]
    pickled = source.weights[0].suffix in ENDINGS
    index = PICKLE_INDEX if pickled else INDEX if source.checkpoint.sharded else ""
    indices = [index] if index and (folder / index).is_file() else []
    return [*(p.name for p in source.weights), *indices, CONFIG, *beside]


def _untold(document: Mapping[str, Any] | None, names: Sequence[str]) -> list[str]:
    """Names of the files that go without a digest in the seal that tells what must be in them."""
    told = {row["name"] for row in (document or {"files": ()})["files"] if row["sha256"]}
    return [name for name in dict.fromkeys((*names, seal.NAME, CARD)) if name not in told]


def _seal_to_send(push: Push, document: Mapping[str, Any], checked: Report | None) -> Outgoing:
    """The seal as it lies there; with the proof of now where that goes further and no signature vouches for the old."""
    data = (push.asked.folder / seal.NAME).read_bytes()
    if _object(data) != document:
        raise changed_meanwhile(push.asked.to, push.asked.folder / seal.NAME)
    signed = any(f.name == SIGNATURE for f in push.files)
    further = gate.too_little_proof(document, "", push.level) or _without_digest(document)
    if checked is None or signed or not further:
        return outgoing(seal.NAME, data)
    digests = {f.name: f.sha256 for f in push.files}
    rows = [{**f, "sha256": digests.get(f["name"], f["sha256"])} for f in document["files"]]
    push.sealed = {**document, "files": rows, "proof": masked(proof_json(checked, digest=True))}
    return outgoing(seal.NAME, dumped(push.sealed).encode())


def _without_digest(document: Mapping[str, Any]) -> list[str]:
    """Names of the files that the seal tells by their size alone."""
    return [row["name"] for row in document["files"] if not row["sha256"]]


# --- what will go -------------------------------------------------------------------------------------------


def plan(push: Push) -> None:
    """Ask the Hub what is there, and say what a commit would change.

    Raises SendError where it cannot be asked.
    """
    asked = push.asked
    push.there = there = look_there(asked.to)
    if asked.private and there.private is False:
        push.add([_public(asked.to)])
    card = _card(push, there)
    if card is not None:
        push.files.append(outgoing(CARD, card))
    for file in push.files:
        stored = there.files.get(file.name)
        push.states[file.name] = "new" if stored is None else "unchanged" if file.is_as(stored) else "changed"
    former = _former(there)
    push.gone = sorted(n for n in former & there.files.keys() - push.states.keys() if not n.startswith("."))
    strays = sorted(n for n in there.files.keys() - push.states.keys() - set(push.gone) if _is_weights(n))
    if strays:
        push.add([_strays(asked.to, strays)])
    changes = push.to_send or push.gone or (not there.branch and not asked.create_pr)
    push.outcome = "refused" if stops(push.findings) else "planned" if changes else "unchanged"


def carry_out(push: Push) -> None:
    """Send what was planned. Raises SendError: the branch is then as it was."""
    assert push.there is not None
    message = push.asked.message or f"Push the drafter with eagle3-convert {__version__}"
    push.sent = send(push.there, push.to_send, push.gone, message, push.asked.private, push.asked.create_pr)
    push.outcome = "pushed"


def _card(push: Push, there: There) -> bytes | None:
    """The card of a sealed drafter, around what its owner wrote; of another the user's own, if there is one."""
    folder = push.asked.folder
    if not push.sealed:
        return read_bounded(folder / CARD) if (folder / CARD).is_file() else None
    existing = existing_card(folder)
    if existing is None and CARD in there.files:
        existing = there.read(CARD).decode("utf-8", "replace")
    return card_text(push.sealed, existing, push.asked.to.repo, read_config(folder / CONFIG)).encode()


def _former(there: There) -> set[str]:
    """Files that the seal in the repository lists: of the drafter that was pushed before, and its signature."""
    if seal.NAME not in there.files:
        return set()
    document = _object(there.read(seal.NAME))
    return set(_sealed(document)) if document.get("schema") == seal.SCHEMA else set()


def _object(text: bytes) -> dict[str, Any]:
    """The JSON object in a text; empty where it holds none."""
    try:
        document = parse(text)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _is_weights(name: str) -> bool:
    return "/" not in name and (name.endswith(".safetensors") or name == INDEX)


def _strays(to: HubId, names: Sequence[str]) -> Finding:
    return error(
        "H441",
        f"{to} holds weights that are not of this drafter: {some_of(names)}",
        where=str(to),
        why="eagle3-convert did not push them, so it does not delete them; an engine loads them beside the drafter's",
        fix=(f"delete them: {shlex.join(['hf', 'repos', 'delete-files', to.repo, *names[:4]])}",
             "or push to another repository, or another branch"),
    )  # fmt: skip


def _public(to: HubId) -> Finding:
    return error(
        "H443",
        f"{to.repo} is public, and --private was asked for",
        where=str(to),
        why="--private says how a repository is created; this one is there",
        fix=("make it private in its settings, or leave out --private",),
    )
