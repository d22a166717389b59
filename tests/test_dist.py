"""What is published: built from the files that git knows, installed outside the tree, and the README walked there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import DRAFTERS, ROOT, SAMPLE, TARGET

pytestmark = pytest.mark.dist

TORCH = os.environ.get("TORCH", "torch==2.13.0")  # as in the Makefile
DATA = {"mappings": "converter/mappings", "schemas": "converter/schemas"}
# What the README calls its inputs, and what stands in for them here.
STANDS_FOR = {
    "checkpoints/9": DRAFTERS / "g_aux024",
    "/models/Llama-3.1-8B-Instruct": TARGET,
    "meta-llama/Llama-3.1-8B-Instruct": TARGET,
    "sample.safetensors": SAMPLE,
    "out/": "out",
}

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]


def run(*words: object, cwd: Path | None = None) -> Done:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, cwd=cwd, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def tracked() -> list[str]:
    return run("git", "ls-files", "-z", cwd=ROOT).stdout.strip("\0").split("\0")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that git knows, so that nothing of this checkout alone gets into what is built."""
    folder = tmp_path_factory.mktemp("tree")
    for name in tracked():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def built(tree: Path) -> tuple[Path, Path]:
    """Wheel and sdist; `python -m build` makes the wheel out of the sdist, so that holds all that is needed."""
    run(sys.executable, "-m", "build", "--outdir", tree / "dist", tree)
    [wheel], [sdist] = (tree / "dist").glob("*.whl"), (tree / "dist").glob("*.tar.gz")
    return wheel, sdist


def test_the_wheel_holds_the_package_and_its_data_alone(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        there = {name for name in wheel.namelist() if ".dist-info/" not in name}
        [metadata] = [wheel.read(name).decode() for name in wheel.namelist() if name.endswith("/METADATA")]
        assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())
    wanted = {name for name in tracked() if name.startswith("converter/")}
    wanted |= {DATA[top] + name[len(top) :] for name in tracked() if (top := name.partition("/")[0]) in DATA}
    assert there == wanted
    assert {"converter/py.typed", "converter/report/html/style.css", "converter/mappings/findings.yaml"} <= there
    always = [line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line]
    assert always and not any("torch" in line or "transformers" in line for line in always)


def test_the_sdist_holds_what_git_knows(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as sdist:
        there = {m.name.partition("/")[2] for m in sdist.getmembers() if m.isfile()}
    missing = {name for name in tracked() if not name.startswith(".")} - there
    assert missing == set()
    more = {name for name in there - set(tracked()) if ".egg-info/" not in name}
    assert more == {"PKG-INFO", "setup.cfg"}


def environment(folder: Path, *requirements: object) -> Path:
    """The scripts' folder of a fresh environment."""
    run(sys.executable, "-m", "venv", folder)
    run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements)
    return folder / "bin"


def commands_of_the_readme() -> list[list[str]]:
    """What stands in its fenced blocks and can be typed."""
    blocks = re.findall(r"^```\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S | re.M)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("eagle3")]
    assert len(lines) >= 2
    return [shlex.split(line, comments=True) for line in lines]


def walk(scripts: Path, folder: Path, torch: bool) -> None:
    """Type what the README shows, in a folder of its own, and the commands that need no file."""
    for words in commands_of_the_readme():
        needs_torch = "--sample" in words
        program, *rest = (str(STANDS_FOR.get(word, word)) for word in words)
        shutil.rmtree(folder / "out", ignore_errors=True)
        if needs_torch and not torch:
            done = subprocess.run([scripts / program, *rest], capture_output=True, text=True, cwd=folder, check=False)
            assert (done.returncode, "pip install" in done.stderr) == (2, True), done.stderr
            assert not (folder / "out").exists()
            continue
        done = run(scripts / program, *rest, cwd=folder)
        assert ("anchored" if needs_torch else "Converted") in done.stdout
        assert "as it lies" in run(scripts / "eagle3-validate", "out", cwd=folder).stdout
    for words in (
        ("eagle3", "explain", "K103"),
        ("eagle3", "engines", "list", "sglang==0.5.9"),
        ("eagle3", "dialects"),
        ("eagle3", "inspect", DRAFTERS / "g_aux024"),
        ("eagle3", "diff", DRAFTERS / "g_aux024", "out"),
        ("eagle3", "convert", "--help"),
        ("eagle3-convert", "--version"),
        ("eagle3-validate", DRAFTERS / "g_aux024", "--report", folder / "report.html"),
        ("python", "-m", "converter", "--help"),
    ):
        assert run(scripts / words[0], *words[1:], cwd=folder).stdout
    assert "<style" in (folder / "report.html").read_text(encoding="utf-8")
    where = run(scripts / "python", "-c", "import converter; print(converter.__file__)", cwd=folder).stdout
    assert Path(where.strip()).is_relative_to(scripts.parent)


def test_the_wheel_without_torch(built: tuple[Path, Path], tmp_path: Path) -> None:
    scripts = environment(tmp_path / "venv", built[0])
    installed = run(scripts / "python", "-m", "pip", "list", "--format=freeze").stdout.lower()
    assert "eagle3" in installed
    assert not {"torch", "transformers", "nvidia"} & set(re.split(r"[=\n]", installed))
    (tmp_path / "away").mkdir()
    walk(scripts, tmp_path / "away", torch=False)


def test_the_sdist_with_torch(built: tuple[Path, Path], tmp_path: Path) -> None:
    scripts = environment(tmp_path / "venv", *shlex.split(TORCH))
    run(scripts / "python", "-m", "pip", "install", "--quiet", f"{built[1]}[torch]")
    (tmp_path / "away").mkdir()
    walk(scripts, tmp_path / "away", torch=True)
