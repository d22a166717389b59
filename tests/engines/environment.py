"""Makes and caches the environment in which the real engines run.

    python -m tests.engines.environment

prints the folder, making it first if it is not there yet (three to five minutes, 1.6 GB).

The environment is a virtual environment with torch and what the engines import, and beside it
the Python sources of each engine release, taken out of its wheel. The wheels are not installed:
their requirements and compiled parts need CUDA, and one environment has to hold several
releases. Which release is imported is decided by PYTHONPATH, see `EngineEnvironment.pythonpath`.

The folder is `$EAGLE3_ENGINE_CACHE`, else `~/.cache/eagle3-convert/engines`, and in it one folder
for each digest of everything that decides what is installed. pip is used with whatever
configuration the user has.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TORCH = "torch==2.13.0"
REQUIREMENTS = Path(__file__).with_name("requirements-engines.txt")

#: Raise when the way of building below changes, so that cached environments are built anew.
RECIPE = 1


@dataclass(frozen=True)
class Release:
    """One release of an engine, and what it needs beyond the common requirements."""

    package: str
    version: str
    #: Requirements which this release needs in another version than `requirements-engines.txt`.
    overrides: tuple[str, ...] = ()
    #: Folders that the release looks for when it is imported, though nothing in them is used.
    empty_folders: tuple[str, ...] = ()

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"

    @property
    def folder(self) -> str:
        return f"{self.package}-{self.version}"


RELEASES = (
    Release(
        "sglang",
        "0.5.23",
        empty_folders=("sglang/kernels/jit/include", "sglang/kernels/jit/csrc"),
    ),
    Release(
        "sglang",
        "0.5.9",
        overrides=("transformers==4.57.1", "tokenizers==0.22.2", "huggingface_hub==0.36.2"),
        empty_folders=("sglang/jit_kernel/include", "sglang/jit_kernel/csrc"),
    ),
    Release("vllm", "0.33.0"),
    # Trainers, which open what `--to` wrote.
    Release("speculators", "0.9.0"),
    Release("specforge", "0.2.0"),
)

#: Releases that are read and never run (test_upkeep.py), beside those above.
READ = (
    Release("sglang", "0.5.12"),
    Release("sglang", "0.5.17"),
    Release("vllm", "0.18.0"),
    Release("vllm", "0.24.0"),
)


class EnvironmentFailure(Exception):
    """The environment could not be made; the message holds what the failing command printed."""


@dataclass(frozen=True)
class EngineEnvironment:
    """A complete environment on disk."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    def pythonpath(self, requirement: str) -> str:
        """The PYTHONPATH under which this release, such as `sglang==0.5.9`, is imported."""
        for release in RELEASES:
            if release.requirement == requirement:
                folders = [self.folder / "src" / release.folder]
                if release.overrides:
                    folders.insert(0, self.folder / "overrides" / release.folder)
                return os.pathsep.join(map(str, folders))
        known = ", ".join(release.requirement for release in RELEASES)
        raise KeyError(f"{requirement} is not one of the releases here: {known}")


def ensure() -> EngineEnvironment:
    """Return the environment, building it first if it is not in the cache."""
    cache = cache_folder()
    environment = EngineEnvironment(cache / _digest())
    if environment.folder.exists():
        return environment
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache / "lock"):
        if environment.folder.exists():  # another process built it while this one waited
            return environment
        # Whatever is called "building-*" now was left by a build that was killed.
        for leftover in cache.glob("building-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        building = Path(tempfile.mkdtemp(prefix="building-", dir=cache))
        try:
            _build(building)
            building.rename(environment.folder)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return environment


def sources(requirement: str) -> Path:
    """The folder with the Python files and metadata of a release, fetched first if it is not in the cache."""
    release = next(r for r in (*RELEASES, *READ) if r.requirement == requirement)
    if release in RELEASES:
        return ensure().folder / "src" / release.folder
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / "read" / release.folder
    with locked(cache / "lock"):
        if not folder.exists():
            folder.parent.mkdir(exist_ok=True)
            fetching = Path(tempfile.mkdtemp(prefix="fetching-", dir=folder.parent))
            try:
                _unpack_sources(Path(sys.executable), release, fetching / "src")
                (fetching / "src").rename(folder)
            finally:
                shutil.rmtree(fetching, ignore_errors=True)
    return folder


def cache_folder() -> Path:
    chosen = os.environ.get("EAGLE3_ENGINE_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "eagle3-convert" / "engines"


def _digest() -> str:
    """Digest of everything that decides what the environment holds."""
    parts = (
        REQUIREMENTS.read_text(),
        TORCH,
        repr(RELEASES),
        str(RECIPE),
        f"{platform.python_implementation()} {platform.python_version()} {platform.machine()}",
        str(Path(sys.executable).resolve()),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`; the system lets go of it if this process is killed."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _build(folder: Path) -> None:
    venv = folder / "venv"
    python = venv / "bin" / "python"
    _run(sys.executable, "-m", "venv", venv)
    # torch with its dependencies, because a CUDA build does not import without them, held to
    # the versions that the requirements name.
    pip(python, "install", TORCH, "--constraint", REQUIREMENTS)
    pip(python, "install", "--no-deps", "--only-binary", ":all:", "--requirement", REQUIREMENTS)
    for release in RELEASES:
        if release.overrides:
            target = folder / "overrides" / release.folder
            pip(
                python,
                *("install", "--no-deps", "--only-binary", ":all:", "--target", target),
                *release.overrides,
            )
        _unpack_sources(python, release, folder / "src" / release.folder)


def _unpack_sources(python: Path, release: Release, destination: Path) -> None:
    """Fetch the wheel of a release and keep its Python files and metadata."""
    with tempfile.TemporaryDirectory(dir=destination.parents[1]) as download:
        pip(
            python,
            *("download", "--no-deps", "--only-binary", ":all:", "--dest", download),
            release.requirement,
        )
        (wheel,) = Path(download).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                if member.endswith((".py", ".json")) or ".dist-info/" in member:
                    archive.extract(member, destination)
    for name in release.empty_folders:
        (destination / name).mkdir(parents=True, exist_ok=True)


def pip(python: Path, command: str, *arguments: str | Path) -> None:
    _run(python, "-m", "pip", command, "--disable-pip-version-check", *arguments)


def _run(*command: str | Path) -> None:
    """Run a command, showing what it printed only when it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=clean_variables(),
    )
    if done.returncode:
        line = " ".join(map(str, command))
        raise EnvironmentFailure(f"exit status {done.returncode}: {line}\n{done.stdout}")


def clean_variables() -> dict[str, str]:
    """The environment variables without those that would mix this Python into the other one.

    The cached environment may always keep compiled Python files: an engine has thousands.
    """
    unwanted = {"PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE"}
    return {name: value for name, value in os.environ.items() if name not in unwanted}


if __name__ == "__main__":
    try:
        print(ensure().folder)
    except EnvironmentFailure as failure:
        sys.exit(str(failure))
