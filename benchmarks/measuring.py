"""Commands and what they take, where they run, and what every table begins with.

Standard library only, and no large buffers: the peak memory that the kernel reports for a child is never less than what
its parent had.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NOT_HERE = 77  # the exit code of a script that needs what is not on this machine
PACKAGES = ("eagle3-convert", "numpy", "xxhash", "click", "rich", "torch", "safetensors")

# Compiled modules are kept, as an installed package has them.
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


@dataclass
class Measured:
    """A command (`shown` in a table so) and what each of its runs took: seconds, and bytes of memory at the peak."""

    title: str
    command: Sequence[str] = field(repr=False)
    shown: str = ""
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    peak: int = 0

    def run(self) -> None:
        started = time.perf_counter()
        child = subprocess.Popen(
            self.command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.DEVNULL, start_new_session=True
        )
        try:
            _, status, usage = os.wait4(child.pid, 0)
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)  # with whatever it started
            child.wait()
            raise
        wall = time.perf_counter() - started
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            sys.exit(f"failed with exit code {child.returncode}: {' '.join(self.command)}")
        self.wall.append(wall)
        self.cpu.append(usage.ru_utime + usage.ru_stime)
        self.peak = max(self.peak, _rss(usage))


def _rss(usage: resource.struct_rusage) -> int:
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure_in_turn(all_commands: Mapping[str, Measured], rounds: int) -> None:
    """Run each command `rounds` times in turn, once before that unmeasured: it compiles what is not yet compiled."""
    for measured in all_commands.values():
        subprocess.run(measured.command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.DEVNULL, check=True)
    for number in range(rounds):
        for measured in all_commands.values():
            measured.run()
        say(f"round {number + 1} of {rounds}: {', '.join(f'{m.wall[-1]:.2f} s' for m in all_commands.values())}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- where ------------------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    model = platform.processor() or platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
    }


def version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def peak_of_this() -> int:
    """Resident bytes of this process at its peak: less is not seen of a child."""
    return _rss(resource.getrusage(resource.RUSAGE_SELF))


def circumstances(load: float) -> dict[str, Any]:
    """When and where this runs, with what; `load` is the load average from before it began."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": machine(),
        "load_average": {"before": load, "after": os.getloadavg()[0]},
        "python": platform.python_version(),
        "packages": {package: version_of(package) for package in PACKAGES},
    }


def header_lines(there: Mapping[str, Any], *more: str) -> list[str]:
    """Two lines, as every table here begins, of `circumstances`; `more` goes with the machine."""
    where, load = there["machine"], there["load_average"]
    on = ", ".join([where["cpu"], f"{where['cores']} cores", f"{where['memory_gib']} GiB", where["system"], *more])
    packages = ", ".join(f"{name} {release}" for name, release in there["packages"].items() if release)
    return [
        f"- {there['date']}, {on}; load average {load['before']:.1f} before, {load['after']:.1f} after",
        f"- Python {there['python']}, {packages}",
    ]


def filesystem(folder: Path) -> str:
    """The type of the file system that holds `folder`, where the system tells."""
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        ran = subprocess.run(["df", "--output=fstype", str(folder)], capture_output=True, text=True, check=True)
        return ran.stdout.split()[-1]
    return "unknown file system"


@contextlib.contextmanager
def workplace(parent: Path, size: int, times: int = 3) -> Iterator[Path]:
    """A temporary folder that is removed however the run ends; refuses where `times` the size does not fit: an input,
    and twice that where --dtype float32 writes it.
    """
    needed = times * size + (1 << 30)
    free = shutil.disk_usage(parent).free
    if free < needed:
        say(f"{parent} has {free / 1e9:.1f} GB free, {needed / 1e9:.1f} GB are needed: name another with --folder")
        sys.exit(NOT_HERE)

    def stop(*_: object) -> None:
        sys.exit(143)

    before: Callable[..., Any] | int | None = signal.signal(signal.SIGTERM, stop)
    try:
        with tempfile.TemporaryDirectory(prefix="eagle3-bench-", dir=parent) as folder:
            yield Path(folder)
    finally:
        signal.signal(signal.SIGTERM, before)
