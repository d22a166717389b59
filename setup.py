"""Finds the packages; everything else is in pyproject.toml.

`mappings/` and `schemas/` lie at the top level for their readers and ship as `converter.mappings` and
`converter.schemas`. Listing packages by hand would lose a new subpackage from the wheel without a word.
"""

from pathlib import Path

from setuptools import find_packages, setup

DATA = {"converter.mappings": "mappings", "converter.schemas": "schemas"}


def data_packages() -> list[str]:
    names = []
    for package, folder in DATA.items():
        names.append(package)
        inner = sorted(p for p in Path(folder).rglob("*") if p.is_dir() and p.name != "__pycache__")
        names += [".".join([package, *p.relative_to(folder).parts]) for p in inner]
    return names


setup(
    packages=find_packages(include=["converter", "converter.*"]) + data_packages(),
    package_dir=DATA,
)
