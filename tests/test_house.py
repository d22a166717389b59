"""The rules of the house that a machine can check."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import yaml

from tests import mutants
from tests.support import ROOT

PACKAGE = ROOT / "converter"

# docs/design.md, "Rooms", from the ground up: a module imports only from its own room and those below.
FLOORS = [
    {"sglang_plugin"},
    {"version", "errors", "findings", "workers", "signals", "threads"},
    {"checkpoint"},
    {"drafter"},
    {"transforms"},
    {"source", "target_weights", "hub"},
    {"rules"},
    {"upkeep"},
    {"tokenizer"},
    {"target"},
    {"fingerprint", "baseline"},
    {"checks"},
    {"plan"},
    {"seal"},
    {"output", "gate", "signing"},
    {"sealed", "verifying"},
    {"forward"},
    {"capture"},
    {"run"},
    {"proving"},
    {"writing"},
    {"pipeline"},
    {"accepting"},
    {"look", "hook"},
    {"report"},
    {"publish"},
    {"cli"},
]


def floor(module: str) -> int:
    room = module.split(".")[1]
    return next(i for i, rooms in enumerate(FLOORS) if room in rooms)


def modules() -> list[Path]:
    return sorted(
        p for p in PACKAGE.rglob("*.py") if p.parent != PACKAGE or p.name not in ("__init__.py", "__main__.py")
    )


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{a.name}" if node.module == "converter" else node.module for a in node.names]
        elif isinstance(node, ast.Import):
            found += [a.name for a in node.names]
    return found


def test_no_import_goes_up() -> None:
    up = [
        f"{name_of(path)} -> {imported}"
        for path in modules()
        for imported in imports(path)
        if imported.startswith("converter.") and floor(imported) > floor(name_of(path))
    ]
    assert up == []


def users_of(library: str) -> set[str]:
    return {name_of(p) for p in modules() if any(i.split(".")[0] == library for i in imports(p))}


def test_the_plugin_and_the_converter_import_nothing_of_each_other() -> None:
    """It runs in SGLang's environment, where nothing else of this project need be installed, and only there."""
    for path in (PACKAGE / "sglang_plugin").glob("*.py"):
        own = [i for i in imports(path) if i.startswith("converter")]
        assert all(i.startswith("converter.sglang_plugin") for i in own), own
    others = {name_of(p) for p in modules() if any(i.startswith("converter.sglang_plugin") for i in imports(p))}
    assert all(name.startswith("converter.sglang_plugin") for name in others)
    assert imports(PACKAGE / "__init__.py") == ["converter.version"]
    assert imports(PACKAGE / "version.py") == []


def test_torch_is_imported_in_forward_and_capture_and_for_pickles_only() -> None:
    """And in what SGLang loads."""
    users = users_of("torch")
    assert users
    rooms = ("converter.forward.", "converter.capture.", "converter.sglang_plugin.")
    assert all(u.startswith(rooms) or u == "converter.checkpoint.pickled" for u in users)


def test_transformers_is_imported_in_capture_only() -> None:
    users = users_of("transformers")
    assert users
    assert all(u.startswith("converter.capture.") for u in users)


_KNOWN = {
    *(p.stem for kind in ("dialects", "engines") for p in (ROOT / "mappings" / kind).glob("*.yaml")),
}  # fmt: skip


def test_code_names_no_dialect_and_no_engine_release() -> None:
    """Such knowledge is in mappings/; names in docstrings, help and sources of facts are fine."""
    for path in modules():
        tree = ast.parse(path.read_text())
        compared = [n for n in ast.walk(tree) if isinstance(n, ast.Compare)]
        for node in compared:
            words = [c.value for c in ast.walk(node) if isinstance(c, ast.Constant) and isinstance(c.value, str)]
            assert not set(words) & _KNOWN, f"{path}:{node.lineno}"


def test_links_in_docs_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "tests").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page}: {link}"


def test_design_names_every_room() -> None:
    text = (ROOT / "docs" / "design.md").read_text()
    for room in {p.relative_to(PACKAGE).parts[0].removesuffix(".py") for p in modules()}:
        assert f"converter/{room}" in text or room in ("version",), room


def test_every_target_of_make_and_every_marker_is_told_of() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    told = re.findall(r"^make ([a-z-]+) ", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    [phony] = re.findall(r"^\.PHONY: (.*)", makefile, re.MULTILINE)
    assert targets == set(told) == set(phony.split())
    markers = re.findall(r'^    "([a-z]+): .*\(make ([a-z-]+)', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert set(re.findall(r"-m ([a-z]+) tests", makefile)) == {marker for marker, _ in markers}
    assert {target for _, target in markers} <= targets


def test_every_mutant_that_is_explained_is_there() -> None:
    there = {mutant.key for path in mutants.modules() for mutant in mutants.mutants_of(path)}
    explained = yaml.safe_load(mutants.EXPLAINED.read_text())
    assert [key for key in explained if key not in there] == []
