"""llama.cpp for the tests: its converter, out of the sdist of llama-cpp-python, and its library where one is at hand.

The sdist has llama.cpp's repository at the commit of build b11312 (its CHANGELOG names it). The converter needs no
compiler and runs in the engine environment. The library has to be compiled:

    pip install --no-deps --target FOLDER llama-cpp-python==0.3.36
    EAGLE3_LLAMA_CPP=FOLDER python -m pytest -m engines tests/engines/test_llamacpp.py

takes some minutes, a C++ compiler and cmake. Without that variable the tests of the library are skipped.
"""

from __future__ import annotations

import os
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import environment, runner

RELEASE = "llama-cpp-python==0.3.36"
BUILD = "11312"
LIBRARY = "EAGLE3_LLAMA_CPP"

#: What of the sdist the converter consists of.
PARTS = ("convert_hf_to_gguf.py", "conversion/", "gguf-py/gguf/")

Results = dict[str, dict[str, Any]]


def converter() -> Path:
    """The folder with convert_hf_to_gguf.py, fetched on first use (77 MB, of which 3 are kept)."""
    cache = environment.cache_folder()
    folder = cache / RELEASE.replace("==", "-")
    cache.mkdir(parents=True, exist_ok=True)
    with environment.locked(cache / "llama.cpp.lock"):
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=cache) as download:
                unpacked = _unpack(Path(download))
                unpacked.rename(folder)
    return folder


def _unpack(download: Path) -> Path:
    arguments = ("download", "--no-deps", "--no-binary", ":all:", "--dest", download, RELEASE)
    environment.pip(Path(sys.executable), *arguments)
    (sdist,) = download.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        for member in archive:
            inside = member.name.partition("/vendor/llama.cpp/")[2]
            if member.isfile() and inside.startswith(PARTS):
                member.name = inside
                archive.extract(member, download / "converter", filter="data")
    return download / "converter"


def convert(engines: environment.EngineEnvironment, jobs: Sequence[dict[str, Any]]) -> Results:
    """Make GGUF files of folders: see harness/convert_llamacpp.py."""
    folder = converter()
    path = os.pathsep.join(map(str, (folder, folder / "gguf-py")))
    return runner.run_script(engines, path, "convert_llamacpp.py", jobs, f"llama.cpp b{BUILD}")


def run(engines: environment.EngineEnvironment, jobs: Sequence[dict[str, Any]]) -> Results:
    """Run target and drafter with the library: see harness/run_llamacpp.py."""
    return runner.run_script(engines, os.environ[LIBRARY], "run_llamacpp.py", jobs, f"llama.cpp b{BUILD}")
