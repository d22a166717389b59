"""Rule files of the user (--mapping): YAML that a stranger may have sent along with a drafter."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import yaml
from hypothesis import strategies as st

from converter.errors import Eagle3Error
from converter.pipeline import look
from converter.rules import loading
from converter.run import Request
from tests.fuzz.folders import Hostile, made
from tests.fuzz.mutation import NASTY, mutated
from tests.support import DATA

_SMALL: tuple[dict[str, Any], ...] = (
    {"dialect": "eagle", "ignore": {"my_key": "of ours"}},
    {"dialect": "eagle", "releases": [{"range": ">=0.9", "drop": {"extra.weight": "ours"}}]},
    {"engine": "llama.cpp", "targets": [{"range": ">=1", "architectures": ["MyForCausalLM"]}]},
    {"engine": "llama.cpp", "releases": [{"range": ">=1", "norm_eps": 1.0e-6}]},
)
_ODD = (
    "a: &a [x]\nb: *a\n", "dialect: &d {d: *d}\n", "dialect: !!python/object/apply:os.system [id]\n", "- &x [*x]\n",
    "? [a]\n: b\n", "dialect: eagle\ndialect: x\n", "<<: [{a: 1}, {a: 2}]\ndialect: eagle\n", "dialect: 2024-01-01\n",
    "1: 2\n", "%YAML 9.9\n---\n", "dialect: eagle\n---\ndialect: eagle\n", "dialect: !!binary aGk=\n",
    "dialect: eagle\nignore: !!set {a, b}\n", "\t- x", "dialect: 0o7",
    "dialect: eagle\nreleases: &r [{range: '>=1', ignore: {a: b}}]\nignore: {x: *r}\n",
    "dialect: eagle\nignore: {1.5: a, yes: b}\n",
)  # fmt: skip


@cache
def _whole() -> dict[str, Any]:
    return {**loading.load("dialects", "eagle"), "dialect": "mine"}


def _changed(kind: int, seed: int) -> bytes:
    """One of the documents above, or a built-in one under another name, with a few changes."""
    random = Random(seed)
    document: Any = (_whole(), *_SMALL)[kind]
    return yaml.safe_dump(mutated(document, random, (*_SMALL, ">=1", "{i}", "*", {"range": ">=0"}))).encode()


_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(NASTY))
_TREES = st.recursive(
    _SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner,
    max_size=3))
)  # fmt: skip
EXAMPLES = st.one_of(
    st.builds(_changed, st.sampled_from((0, 1, 1, 2, 2, 3, 3, 4, 4)), st.integers(0, 2**32)),
    st.binary(max_size=60),
    st.builds(lambda odd, more: (odd + more).encode(errors="surrogatepass"), st.sampled_from(_ODD),
    st.text(max_size=12)),
    st.builds(
        lambda kind, name, tree: yaml.safe_dump({kind: name, "ignore": tree,
        "fields": tree}).encode(errors="surrogatepass"),
        st.sampled_from(("dialect", "engine")), st.sampled_from(("eagle", "llama.cpp", "mine", "")), _TREES,
    ),
)  # fmt: skip


@cache
def _file() -> Hostile:
    loading.parse = _remembering(loading.parse)
    return Hostile(made("mapping") / "mine.yaml")


def _remembering(parse: Any) -> Any:
    """Built-in rules are read anew after each mapping that is in order: a hundred times the work of reading that."""
    built_in = cache(parse)
    return lambda text, where: (parse if Path(where).is_absolute() else built_in)(text, where)


def one(data: bytes) -> None:
    file = _file()
    file.write(data)
    before = dict(loading._added)
    try:
        loading.add(file.path)
        look(Request(source=str(DATA / "producers" / "angelslim"), engines=("llama.cpp",)))
    except Eagle3Error:
        pass
    finally:
        if loading._added != before:
            loading._added.clear()
            loading.forget()


def folders() -> tuple[Path, ...]:
    return (_file().path.parent,)
