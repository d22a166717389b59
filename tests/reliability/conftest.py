"""What the tests here share, and the table of their figures at the end (docs/reliability.md)."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tests.reliability.rooms import Command
from tests.support import DRAFTERS
from tests.test_signing import write_key

# Of random faults (make soak): the same seed draws the same ones.
SEED = os.environ.get("SOAK_SEED", "2026")


@pytest.fixture(scope="session")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    folder = tmp_path_factory.mktemp("command")
    report, keys = folder / "report.json", write_key(folder / "key.pem", ec.generate_private_key(ec.SECP256R1()))
    started = Command(
        folder,
        ["convert", DRAFTERS / "a_plain", folder / "out", "--sign", keys.private],
        ["seal", "sign", folder / "out", "--key", keys.private, "--force"],
        ["validate", DRAFTERS / "a_plain", "--report", report, "-q"],
        ["report", report, "-o", folder / "page.html"],
    )
    yield started
    started.close()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Rows of Markdown: what was done, over all forms of the drafter, and how OUT was found afterwards."""
    rows: dict[str, Counter[str]] = {}
    stats = terminalreporter.stats
    failed = {report.nodeid for report in stats.get("failed", [])}
    # What a test and its fixtures told is known when both are over.
    for report in (r for reports in stats.values() for r in reports if getattr(r, "when", "") == "teardown"):
        for what, figures in (value for name, value in report.user_properties if name == "figures"):
            rows.setdefault(what, Counter()).update(figures)
            rows[what]["failed"] += report.nodeid in failed
    if not rows:
        return
    say = terminalreporter.write_line
    seed = f", SOAK_SEED={SEED}" if any("random" in what for what in rows) else ""
    system, load = f"{platform.system()} {platform.release()}", f"load {os.getloadavg()[1]:.1f}"
    say(f"\n{date.today()}, {system}, {os.cpu_count()} cores, {load}, {_file_system()}{seed}")
    say("| what | runs | OUT absent | old | new | torn |\n|---|---|---|---|---|---|")
    for what, found in sorted(rows.items()):
        states = [found[s] for s in ("absent", "old", "new")]
        failed = f" ({found['failed']} tests FAILED)" if found["failed"] else ""
        say(f"| {what}{failed} | {' | '.join(f'{n:,}' for n in (sum(states), *states, found['torn']))} |")


def _file_system() -> str:
    """Of the folder for temporary files."""
    import tempfile

    place = Path(tempfile.gettempdir()).resolve()
    found = ("", "unknown")
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind = line.split()[:3]
        if (place == Path(mount) or Path(mount) in place.parents) and len(mount) > len(found[0]):
            found = (mount, kind)
    return found[1]
