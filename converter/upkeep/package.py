"""A released package as text: a wheel, or what is installed, without importing or unpacking it."""

from __future__ import annotations

import email.parser
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath

from converter.errors import Eagle3Error, UsageError

_LARGEST = 8 * 2**20  # bytes; the largest source file of an engine has 0.5 MB
# RuntimeError: zipfile of what is encrypted, or packed in a way that it does not know.
_UNREADABLE = (OSError, zipfile.BadZipFile, zlib.error, RuntimeError, EOFError)


class PackageError(Eagle3Error):
    """The package is missing or damaged: the message names it and says what was expected."""

    exit_code = 3


@dataclass(frozen=True)
class Package:
    """The Python files of one release.

    name      as the index knows it ("sglang")
    release   as its metadata states it
    origin    what the user named: a wheel, or the folder of the installed package
    sizes     path -> bytes, of every .py file under the folder `name`, as in the wheel
    changed   path -> text that stands in place of the file's
    """

    name: str
    release: str
    origin: str
    sizes: Mapping[str, int]
    _read: Callable[[str], bytes] = field(repr=False)
    changed: Mapping[str, str] = field(default_factory=dict, repr=False)

    @cached_property
    def paths(self) -> frozenset[str]:
        return frozenset(self.sizes) | frozenset(self.changed)

    def text(self, path: str) -> str:
        """One file. Raises PackageError: damaged, not UTF-8, or larger than any source file is."""
        if path in self.changed:
            return self.changed[path]
        if self.sizes[path] > _LARGEST:
            raise PackageError(
                f"{self.origin}: {path} has {self.sizes[path]:,} bytes; source files have up to {_LARGEST:,}"
            )
        try:
            return self._read(path).decode("utf-8-sig")
        except UnicodeDecodeError as problem:
            raise PackageError(f"{self.origin}: {path} is not UTF-8") from problem
        except _UNREADABLE as problem:
            raise PackageError(f"{self.origin}: cannot read {path}: {problem}") from problem

    def with_changes(self, files: Mapping[str, str]) -> Package:
        """The same package with other text in some files."""
        return replace(self, changed={**self.changed, **files})


def open_wheel(path: Path) -> Package:
    """Raises PackageError: not there, no wheel, or without name and release in its METADATA."""
    try:
        archive = zipfile.ZipFile(path)
        members = {m.filename: m for m in archive.infolist()}
    except (OSError, zipfile.BadZipFile) as problem:
        why = problem.strerror if isinstance(problem, OSError) else problem
        raise PackageError(
            f"--wheel {path}: {why}; expected a wheel, such as `pip download --no-deps` fetches"
        ) from problem
    stated = [n for n in members if len(PurePosixPath(n).parts) == 2 and n.endswith(".dist-info/METADATA")]
    if len(stated) != 1 or members[stated[0]].file_size > _LARGEST:
        raise PackageError(f"--wheel {path}: found {len(stated)} *.dist-info/METADATA, expected one; is it a wheel?")
    try:
        metadata = archive.read(stated[0])
    except _UNREADABLE as problem:
        raise PackageError(f"--wheel {path}: cannot read {stated[0]}: {problem}") from problem
    stated_in = email.parser.Parser().parsestr(metadata.decode("utf-8", "replace"), headersonly=True)
    name, release = stated_in.get("Name", ""), stated_in.get("Version", "")
    if not name or not release:
        raise PackageError(f"--wheel {path}: {stated[0]} states no Name and Version")
    name = _normal(name)
    sizes = {n: m.file_size for n, m in members.items() if _is_source(n, name)}
    if not sizes:
        raise PackageError(f"--wheel {path}: no Python file under {name}/")
    return Package(name, release, str(path), sizes, archive.read)


def is_installed(name: str) -> bool:
    """Whether the running Python has a package, without importing it."""
    import importlib.util

    return importlib.util.find_spec(name) is not None


def open_installed(name: str) -> Package:
    """The package of the running environment. Raises UsageError where there is none."""
    import importlib.metadata
    import importlib.util

    try:
        release = importlib.metadata.version(name)
        found = importlib.util.find_spec(name)  # of a top-level name: looks for files and imports nothing
    except (importlib.metadata.PackageNotFoundError, ValueError, ImportError):
        found = None
    if found is None or not found.submodule_search_locations:
        raise UsageError(f"--installed: this Python has no {name}; use the engine's own Python, or --wheel FILE")
    folder = Path(next(iter(found.submodule_search_locations)))
    try:
        files = {f"{name}/{p.relative_to(folder).as_posix()}": p for p in folder.rglob("*.py")}
        sizes = {path: p.stat().st_size for path, p in files.items()}
    except OSError as problem:
        raise PackageError(f"{problem.filename}: {problem.strerror}") from problem
    return Package(name, release, str(folder), sizes, lambda path: files[path].read_bytes())


def _is_source(path: str, name: str) -> bool:
    return path.startswith(f"{name}/") and path.endswith(".py")


def _normal(name: str) -> str:
    """As in PEP 503, but with the underscores that a folder has."""
    import re

    return re.sub(r"[-_.]+", "_", name).lower()
