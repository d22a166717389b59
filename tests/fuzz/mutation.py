"""JSON that stays JSON when it is changed: byte mutations alone seldom get past the parser."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

# What a field may hold that nobody meant: of another type, out of range, or text that something else would obey.
NASTY: tuple[Any, ...] = (
    None, True, False, 0, -0.0, 1, -1, 2, 3, 7, 64, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**18,
    -(10**18), 10**400, 0.5, 1.5, -1.5, 1e308, 1e-308, "", " ", "0", "1", "true", "null", "NaN", "..",
    "../../etc/passwd", "/etc/passwd", "a/b", "\0", "\x1b[2J\x1b[31m", "\u202e\u2066", "<script>alert(1)</script>",
    "]]>", "|`*_[x](http://x)", "\ud83d\ude00", "\ufeff", "%s%n{}{0}", "$(id)", "x" * 300, "llama", "qwen3", "eagle3",
    "float16", "int8", "yarn", "linear", [], {}, [[]], [{}], [None], [0], [-1], [1, 1], ["a"], [2**63], [10**18],
    list(range(40)), {"": ""}, {"a": {"b": {"c": []}}}, {"rope_type": "linear", "factor": -1}, {"rope_type": "yarn"},
    [[0, 1], [2]], "Infinity", 1e400,
)  # fmt: skip
_KEYS = (
    "",
    "a",
    "__metadata__",
    "auto_map",
    "dtype",
    "shape",
    "hidden_size",
    "a.b",
    "\x1b[2J",
    "\u202e",
    "constructor",
)


def mutated(document: Any, random: Random, others: tuple[Any, ...] = ()) -> Any:
    """A copy with one to four changes; `others` are more values to put in."""
    document = copy.deepcopy(document)
    for _ in range(random.choice((1, 1, 1, 2, 3, 4))):
        places = list(_places(document))
        if not places:
            return random.choice(NASTY)
        holder, key = random.choice(places)
        _change(holder, key, places, random, others)
    return document


def _change(holder: Any, key: Any, places: list[tuple[Any, Any]], random: Random, others: tuple[Any, ...]) -> None:
    kind, old = random.randrange(10), holder[key]
    if kind < 4:
        holder[key] = copy.deepcopy(random.choice(NASTY + others))
    elif kind == 4:
        del holder[key]
    elif kind == 5:  # what stands somewhere else
        there, its = random.choice(places)
        holder[key] = copy.deepcopy(there[its])
    elif kind == 6 and isinstance(holder, dict):
        name = random.choice((*_KEYS, *map(str, holder), str(key).upper(), str(key) + "s"))
        holder[name] = copy.deepcopy(random.choice((old, *NASTY[:20])))
    elif kind == 7 and isinstance(holder, dict):
        holder[random.choice((str(key).upper(), str(key) + " ", f"x.{key}", str(key)[:-1]))] = holder.pop(key)
    elif kind == 8 and isinstance(old, int | float):
        holder[key] = random.choice(
            (old + 1, old - 1, -old, old * 2, float(max(min(old, 10**300), -(10**300))), str(old), [old], bool(old))
        )
    else:
        holder[key] = random.choice(([old], {"a": old}, str(old)[:80], [old, old], {str(key): old}))


def _places(node: Any, depth: int = 0) -> Any:
    if depth > 12:
        return
    keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    for key in keys:
        yield node, key
        yield from _places(node[key], depth + 1)


def text_of(document: Any, random: Random) -> bytes:
    """As JSON; now and then with a key given twice, a number that is none, or escapes."""
    text = json.dumps(document, ensure_ascii=random.random() < 0.3)
    odd = random.randrange(40)
    if odd == 0 and text.startswith("{") and len(text) > 2:
        text = '{"a":0,"a":1,' + text[1:]
    elif odd == 1:
        text = text.replace(": 1", ": -0", 1)
    elif odd == 2:
        text = text.replace('"a', '"\\ud800a', 1)
    return text.encode(errors="surrogatepass")


def mutate_json(data: bytes, random: Random, others: tuple[Any, ...] = ()) -> bytes | None:
    """`data` as JSON, changed; None where it is none."""
    try:
        return text_of(mutated(json.loads(data), random, others), random)
    except (ValueError, RecursionError):
        return None
