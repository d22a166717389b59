"""What `eagle3 engines check` found, as text and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from converter.report.words import clean
from converter.rules.loading import known_releases
from converter.upkeep.compare import DIFFERENT, Comparison, Entry
from converter.upkeep.write import Renewal

_MEANS = {
    "new": "in the package and not in the mapping",
    "gone": "in the mapping and not in the package",
    "changed": "the package does otherwise than the mapping says",
    "cannot tell": "the code is not followed: look at the file and line",
    "open": "the mapping does not say either",
    "same": "the package does what the mapping says",
}
_NAMES = 4  # of a longer list of the same


def comparison_json(found: Comparison) -> dict[str, Any]:
    """Everything that was compared: what `eagle3 engines check --json` prints."""
    return {
        "engine": found.engine,
        "release": found.release,
        "compared_with": found.against,
        "known": found.release in known_releases(found.engine),
        "package": found.reading.package.origin,
        "counts": {kind: _counts(found)[kind] for kind in _MEANS},
        "entries": [asdict(entry) for entry in found.entries],
    }


def comparison_text(found: Comparison, verbose: bool) -> str:
    """The verdict, then differences of one cause together; with `verbose` everything else too."""
    counts = _counts(found)
    lines = [f"{found.engine} {found.release}  {found.reading.package.origin}"]
    if found.release != found.against:
        newest = found.against == known_releases(found.engine)[-1]
        which = "the newest known" if newest else "the nearest known before it"
        lines.append(f"This release is not known: compared with the rules of {found.against}, {which}.")
    told = ", ".join(f"{counts[kind]} {kind}" for kind in _MEANS if counts[kind])
    verdict = "as the mapping says"
    if found.different:
        untold = {entry.kind for entry in found.different} == {"cannot tell"}
        verdict = "not all could be told" if untold else "differs from the mapping"
    lines += [f"{verdict}: {told}", ""]
    for kind in (k for k in _MEANS if k in DIFFERENT or verbose):
        entries = [e for e in found.entries if e.kind == kind]
        if entries:
            lines += [f"{kind}  ({_MEANS[kind]})", *(f"  {line}" for line in _grouped(entries, verbose)), ""]
    return clean("\n".join(lines).rstrip())


def _counts(found: Comparison) -> Counter[str]:
    return Counter(entry.kind for entry in found.entries)


def _grouped(entries: Sequence[Entry], verbose: bool) -> list[str]:
    """One paragraph for what has the same values, place and note."""
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.area, *_values(entry), entry.place, entry.note), []).append(entry)
    lines = []
    for (area, mapping, package, place, note), members in groups.items():
        names = [m.name for m in members]
        shown = names if verbose or len(names) <= _NAMES else [*names[:_NAMES], f"... ({len(names)} in all)"]
        lines.append(f"{area}  {', '.join(shown)}")
        values = f"mapping: {mapping or '-'}   package: {package or '-'}" if mapping or package else ""
        lines += [f"    {line}" for line in (values, place, note) if line]
    return lines


def _values(entry: Entry) -> tuple[str, str]:
    return ("", "") if entry.kind == "cannot tell" else (entry.mapping, entry.package)


def renewal_text(found: Renewal, written: Sequence[str]) -> str:
    """What a package renewed in the tables, the files that were written, and what is left to do by hand."""
    lines = []
    for row in found.rows:
        lines.append(f"row of {row['architecture']}  {row['releases']}  {row['id_rule']}")
    lines += [
        f"{a} ends before {found.release}" for a in found.ends if a not in {r["architecture"] for r in found.rows}
    ]
    if found.known:
        lines.append(f"{found.release} is known")
    lines += [f"wrote {path}" for path in written] or ["nothing to write"]
    if found.left:
        lines += [f"left to you, {len(found.left)}:", *(f"  {line}" for line in found.left)]
        if found.release not in known_releases(found.engine):
            lines.append(f"then add {found.release} to `known` in mappings/engines/{found.engine}.yaml")
    return clean("\n".join(lines))
