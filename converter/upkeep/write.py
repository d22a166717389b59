"""Renews the tables of an engine for a release that was compared: what a machine can tell, and nothing else.

Rows of target classes are written where everything about the class was told; the release is added to `known` where
nothing else differs. The rest is for a person, and comes back as a list of what to do.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from converter.checkpoint.whole import write_output
from converter.errors import OutputError, UsageError
from converter.rules import loading
from converter.rules.loading import known_releases
from converter.rules.targets import architectures, target_rule
from converter.upkeep.compare import Comparison
from converter.upkeep.targets import UNTOLD, TargetReading

_WIDTH = 120


@dataclass(frozen=True)
class Renewal:
    """What is to be written, and what is left to a person.

    rows     new rows of the target table
    ends     architectures whose present row ends before this release
    known    the release is to be added to `known`
    left     one line each: what was found and is not written
    """

    engine: str
    release: str
    rows: tuple[dict[str, Any], ...]
    ends: tuple[str, ...]
    known: bool
    left: tuple[str, ...]


def renewal(comparison: Comparison) -> Renewal:
    """Raises UsageError: the tables of an older release than the newest known are history, and not renewed."""
    from packaging.version import Version

    engine, release = comparison.engine, comparison.release
    known = known_releases(engine)
    if Version(release) < Version(known[-1]):
        raise UsageError(
            f"{engine} {release} is older than the newest known, {known[-1]}: its tables are mended by hand, "
            "with the file and line of each difference"
        )
    rows, ends = [], []
    stands = set(architectures(engine, comparison.against))
    for architecture in dict.fromkeys(e.name.split(" ")[0] for e in comparison.different if e.area == "target class"):
        target = comparison.reading.targets.get(architecture)
        if target is None:
            ends.append(architecture)
        elif all(fact.value != UNTOLD for fact in target.facts.values()):
            rows.append(_row(target, release))
            ends += [architecture] if architecture in stands else []
    done = {row["architecture"] for row in rows} | set(ends)
    left = [e for e in comparison.different if e.area != "target class" or e.name.split(" ")[0] not in done]
    told = tuple(f"{e.kind}: {e.area} {e.name}{f' ({e.place})' if e.place else ''}" for e in left)
    return Renewal(engine, release, tuple(rows), tuple(ends), not left and release not in known, told)


def _row(target: TargetReading, release: str) -> dict[str, Any]:
    values = {column: fact.value for column, fact in target.facts.items()}
    captures = {"embedding": target.embedding, "inner": target.inner, "last": target.last}
    reasons = [f"{name}: {fact.why}" for name, fact in captures.items() if fact.value != "works" and fact.why]
    places = dict.fromkeys(fact.place for fact in (target.inner, target.id_rule, target.default_points))
    return {
        "architecture": target.architecture,
        "releases": f">={release}",
        **values,
        "detail": "; ".join(reasons),
        "source": "; ".join(f"{place} @ {release}" for place in places) + " (read by eagle3 engines check)",
    }


# --- into a source checkout -------------------------------------------------------------------------------------


def checkout() -> Path:
    """mappings/engines of the checkout that this runs from. Raises UsageError where it is no writable checkout."""
    folder = Path(str(loading.rules_folder("engines")))
    if not (folder.parent.parent / "pyproject.toml").is_file() or not os.access(folder, os.W_OK):
        raise UsageError(
            "--write: these rules are installed, not a checkout; use --write-to FILE.yaml and --mapping FILE.yaml"
        )
    return folder


def write_checkout(found: Renewal, folder: Path) -> list[Path]:
    """Renew NAME.targets.json and the `known` list of NAME.yaml; both are written whole or not at all."""
    table, rules = folder / f"{found.engine}.targets.json", folder / f"{found.engine}.yaml"
    written = []
    if found.rows or found.ends:
        document = json.loads(table.read_bytes())
        document["targets"] = _renewed(document["targets"], found)
        write_output(table, table_text(document))
        written.append(table)
    if found.known:
        write_output(rules, with_known(rules.read_text(encoding="utf-8"), found.release))
        written.append(rules)
    loading.forget()
    return written


def _renewed(rows: Sequence[Mapping[str, Any]], found: Renewal) -> list[dict[str, Any]]:
    """The rows with those of this release beside the ones that they follow, in order of architecture."""
    result = [dict(row) for row in rows]
    for row in result:
        if row["architecture"] in found.ends and loading.covers(row["releases"], found.release):
            if row["releases"] == f">={found.release}":
                row["releases"] = ""  # begins here itself: the new row takes its place
            else:
                row["releases"] = ",".join(
                    [r for r in row["releases"].split(",") if r[0] == ">"] + [f"<{found.release}"]
                )
    return sorted([r for r in result if r["releases"]] + list(found.rows), key=lambda r: r["architecture"])


def table_text(document: Mapping[str, Any]) -> str:
    """A target table as it lies in the checkout: one row a line."""
    head = ",\n".join(
        f" {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in document.items() if k != "targets"
    )
    rows = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in document["targets"])
    return f'{{\n{head},\n "targets": [\n{rows}\n ]\n}}\n'


def with_known(text: str, release: str) -> str:
    """A rule file's text with one release more in `known: [...]`; everything else stays as it is, comments too."""
    found = re.search(r"^known: \[[^\]]*\]", text, re.MULTILINE)
    if found is None:
        raise OutputError("no `known: [...]` to add the release to; add it by hand")
    lines = found.group()[:-1].split("\n")
    if len(lines[-1]) + len(release) + 3 <= _WIDTH:
        lines[-1] += f", {release}]"
    else:
        lines[-1] += ","
        lines.append(f"{' ' * len('known: [')}{release}]")
    return text[: found.start()] + "\n".join(lines) + text[found.end() :]


# --- into a file for --mapping ----------------------------------------------------------------------------------


def write_mapping(found: Renewal, path: Path) -> None:
    """The same as a file that `--mapping` takes. Raises UsageError: it exists; OutputError: it cannot be written."""
    if path.exists():
        raise UsageError(f"--write-to {path}: this file exists; name a new one")
    known = [*known_releases(found.engine), *([found.release] if found.known else ())]
    ended = [_ended(found, a) for a in found.ends if a not in {row["architecture"] for row in found.rows}]
    lines = [
        f"# What {found.engine} {found.release} does otherwise than the rules that are built in: --mapping {path.name}",
        f"engine: {found.engine}",
        f"known: {json.dumps(known)}",
        *(["targets:"] if found.rows or ended else []),
        *(f"  - {json.dumps(row, ensure_ascii=False)}" for row in (*found.rows, *ended)),
    ]
    write_output(path, "\n".join(lines) + "\n")
    loading.add(path)  # so that what was written is known to be taken


def _ended(found: Renewal, architecture: str) -> dict[str, Any]:
    """A class that is gone, as a row that wins over its old one: nothing is captured."""
    row = target_rule(found.engine, known_releases(found.engine)[-1], architecture)
    assert row is not None
    never = dict.fromkeys(("embedding", "inner", "last"), "never_captured")
    return {
        "architecture": architecture,
        "releases": f">={found.release}",
        "id_rule": row.id_rule,
        "default_points": row.default_points,
        **never,
        "detail": "the package has no such target class any more",
        "source": f"not in the package @ {found.release} (read by eagle3 engines check)",
    }
