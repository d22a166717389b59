"""Capture points: indexes into the target's residual stream as Hugging Face numbers `hidden_states`.

0 is the embedding output, k the output of the k-th decoder layer, L (the last) taken before the final norm.
"""

from __future__ import annotations

import re

from converter.errors import UsageError
from converter.findings import SEARCH

# What to do where the points are not known, or known wrongly.
NAME_THEM = "name them as trained, e.g. --aux embed,3,31 (embed = embedding, k = output of the k-th layer)"
LET_A_SAMPLE_SAY = f"or let a sample say: {SEARCH}"

_WORDS = {"embed": 0, "embedding": 0}


def parse_points(text: str, option: str = "--aux") -> tuple[int, ...]:
    """The points of an option: `embed,3,31`, where `out:2` is the output of the 0-based layer 2 (point 3).

    Raises UsageError where a part is none of these.
    """
    points = []
    for part in text.split(","):
        word = part.strip().lower()
        if word in _WORDS:
            points.append(_WORDS[word])
        elif re.fullmatch(r"[0-9]{1,6}", word):
            points.append(int(word))
        elif re.fullmatch(r"out:[0-9]{1,6}", word):
            points.append(int(word[4:]) + 1)
        else:
            raise UsageError(
                f"{option} {text!r}: {part.strip()!r} is no capture point. Write 'embed' (or 0) for the embedding, "
                "k for the output of the k-th decoder layer, out:k for the output of the 0-based layer k"
            )
    return tuple(points)


def describe_point(point: int) -> str:
    """`embedding`, `layer 3`"""
    return "embedding" if point == 0 else f"layer {point}"


def describe_points(points: tuple[int, ...]) -> str:
    """`embedding, layer 3, layer 31`"""
    return ", ".join(describe_point(p) for p in points)


def as_option(points: tuple[int, ...]) -> str:
    """The points as `--aux` takes them."""
    return ",".join("embed" if p == 0 else str(p) for p in points)
