"""What a card says of a drafter: its seal, and its config read as the engines of the seal read it.

Paths of the machine that made it stay out: a name on the Hub is told as it is, of a path the last part alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from converter import seal
from converter.drafter.drafter import Provenance
from converter.drafter.points import describe_points
from converter.drafter.spec import DrafterSpec
from converter.drafter.target import Target
from converter.errors import UsageError
from converter.hub.ids import also_an_id
from converter.proving import DEFAULT_STEPS
from converter.report.document import launch_line
from converter.report.words import one_line
from converter.rules.engine import EngineRelease
from converter.rules.forms import reading_engine, trainer_form

TARGET = "TARGET"  # in a command, for a target that has no name on the Hub
DRAFTER = "DRAFTER"  # and for a drafter that has none


@dataclass(frozen=True)
class Facts:
    """document     the seal, valid by its schema
    repo         org/name of the drafter, or ""
    base_model   the target's id on the Hub, or ""
    target_name  what else it may be called in public, or ""
    spec         None where no rules are known that read the config
    points       its capture points in words; "" where no rules say what its ids mean
    launch       a command for each engine whose rules are known (`launch` of a report)
    unknown      engines of the seal whose rules are not
    """

    document: Mapping[str, Any]
    repo: str
    base_model: str
    target_name: str
    spec: DrafterSpec | None
    points: str
    launch: tuple[Mapping[str, Any], ...]
    unknown: tuple[str, ...]

    @property
    def proof(self) -> Mapping[str, Any]:
        proof: Mapping[str, Any] = self.document["proof"]
        return proof

    @property
    def title(self) -> str:
        """The heading of a new card."""
        return self.repo.rpartition("/")[2] or "EAGLE-3 draft model"

    @property
    def engine_names(self) -> list[str]:
        """Without their releases, once each."""
        names = (one_line(e["engine"].partition("==")[0]) for e in self.document["engines"])
        return list(dict.fromkeys(names))

    @property
    def steps(self) -> int:
        """How many tokens the launch commands have a server draft at a time."""
        return _steps(self.document)

    @property
    def sample_name(self) -> str:
        """Of a proof with a sample: what it may be called in public."""
        return _last_part(self.proof["sample"]["path"]) or "a sample"

    @property
    def acceptance(self) -> Mapping[str, Any] | None:
        """That of chains as long as the launch command drafts, else of the longest that were run."""
        scores = self.proof["scores"]
        rows = list((scores or {}).get("acceptance") or [])
        rows.sort(key=lambda row: (row["chain"] == self.steps, row["chain"]))
        return rows[-1] if rows else None


def facts_of(document: Mapping[str, Any], config: Mapping[str, Any], repo: str) -> Facts:
    """`document` is valid by seal.schema.json; `config` is the config.json beside it."""
    base = _base_model(document)
    target = replace(
        seal.target_of(document),
        name=base or TARGET,
        max_position_embeddings=seal.count_at(document, "serving.target_positions"),
    )
    spec, points, lines, unknown = None, "", [], []
    for requirement in seal.texts_at(document, "engines", "engine"):
        read = _read(requirement, document, config, target)
        if read is None:
            unknown.append(requirement)
            continue
        engine, seen = read
        lines.append(launch_line(engine, target, repo or DRAFTER, _steps(document), seen))
        spec = spec or seen
        if not points and engine.target(target.architecture) is not None:
            points = describe_points(seen.capture_points)
    to = seal.text_at(document, "to")
    if to:
        spec = _trained(to, config, target)
        points = describe_points(spec.capture_points) if spec is not None else ""
    return Facts(
        document=document,
        repo=repo,
        base_model=base,
        target_name=base or _last_part(seal.text_at(document, "target.name")),
        spec=spec,
        points=points,
        launch=tuple(lines),
        unknown=tuple(unknown),
    )


def _last_part(path: str) -> str:
    """Of a path on whatever system, or of a name."""
    last = re.split(r"[\\/]", path.rstrip("\\/"))[-1]
    return "" if last in (".", "..") else one_line(last)


def source_name(document: Mapping[str, Any]) -> str:
    """What a drafter was made from: its id where it came from the Hub, else the last part of its path."""
    given = seal.text_at(document, "source.given")
    return given if seal.text_at(document, "source.commit") else _last_part(given)


def _steps(document: Mapping[str, Any]) -> int:
    return seal.count_at(document, "serving.draft_steps") or DEFAULT_STEPS


def _base_model(document: Mapping[str, Any]) -> str:
    """The target's id on the Hub, or "". A seal of before this was recorded knows it of targets read from there."""
    read_there = seal.text_at(document, "target.name") if seal.text_at(document, "target.commit") else ""
    named = also_an_id(seal.text_at(document, "serving.target") or read_there)
    return named.repo if named is not None and not named.revision else ""


def _read(
    requirement: str, document: Mapping[str, Any], config: Mapping[str, Any], target: Target
) -> tuple[EngineRelease, DrafterSpec] | None:
    """What a release makes of the config; None where it is of rules that are not here (--mapping), or reads it not."""
    try:
        engine, flat = reading_engine(requirement, config)
    except UsageError:
        return None
    spec = engine.read_config(flat, target, seal.launch_of(document)).spec
    return None if spec is None else (engine, spec)


def _trained(to: str, config: Mapping[str, Any], target: Target) -> DrafterSpec | None:
    """What the trainer makes of it whose form was written (--to)."""
    try:
        form = trainer_form(to.partition("==")[0], Provenance("", ""), target)
    except UsageError:
        return None
    return form.read_config(config, target, {}).spec
