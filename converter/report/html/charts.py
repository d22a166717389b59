"""Shares with their intervals and differences of wirings as drawings; the numbers are in tables beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from converter.report.html.element import Markup, el

WIDTH = 340
_START, _END, _ROW = 96, 330, 26
_FARTHEST = 1e9  # nats: what lies beyond is drawn at the edge
_LABEL_ROW = 38  # where the label stands over its row


@dataclass(frozen=True)
class Row:
    """One value with the ends of its interval (None where there is none); `note` stands at the right end."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    kind: str = ""
    note: str = ""


def intervals(title: str, rows: Sequence[Row], low: float, high: float, ticks: Sequence[tuple[float, str]]) -> Markup:
    """Dots with whiskers on one scale from low to high, a row each, its label on the left."""
    shapes = [_scale(len(rows) * _ROW + 4, low, high, _START, ticks)]
    for i, row in enumerate(rows):
        y = 14 + i * _ROW
        shapes += [el("text", row.label, x=0, y=y + 4), _dot(row, y, low, high, _START)]
    return _chart(title, shapes, len(rows) * _ROW + 24)


def differences(title: str, rows: Sequence[Row], ticks: Sequence[tuple[float, str]]) -> Markup:
    """The same with long labels, each over its row, and a line at zero."""
    ends = [0.0, *(v for row in rows for v in (row.value, row.low, row.high) if v is not None)]
    ends += [t for t, _ in ticks]
    low, high = max(min(ends), -_FARTHEST), min(max(ends), _FARTHEST)
    height = len(rows) * _LABEL_ROW + 4
    zero = _x(0, low, high, 8)
    shapes = [_scale(height, low, high, 8, ticks), el("line", x1=zero, y1=4, x2=zero, y2=height, class_="zero")]
    for i, row in enumerate(rows):
        y = 14 + i * _LABEL_ROW
        note = el("text", row.note, x=WIDTH, y=y, text_anchor="end", class_="scale")
        shapes += [el("text", row.label, x=0, y=y), note, _dot(row, y + 12, low, high, 8)]
    return _chart(title, shapes, height + 20)


def ticks_for(low: float, high: float) -> list[tuple[float, str]]:
    """Two to six round numbers from below `low` to above `high`."""
    from math import ceil, floor, log10

    low, high = max(low, -_FARTHEST), min(high, _FARTHEST)
    span = max(high - low, 1e-6)
    step = 10.0 ** floor(log10(span))
    step = next(s for s in (step / 5, step / 2, step, step * 2, step * 5) if span / s <= 4)
    first, last = floor(low / step), ceil(high / step)
    digits = max(0, -floor(log10(step)))
    return [(k * step, f"{k * step:+.{digits}f}" if k else "0") for k in range(first, last + 1)]


def _dot(row: Row, y: float, low: float, high: float, start: float) -> Markup:
    parts = []
    if row.low is not None and row.high is not None:
        a, b = _x(row.low, low, high, start), _x(row.high, low, high, start)
        parts.append(el("path", d=f"M{a} {y}H{b}M{a} {y - 4}V{y + 4}M{b} {y - 4}V{y + 4}", class_="whisker"))
    parts.append(el("circle", cx=_x(row.value, low, high, start), cy=y, r=4.5))
    return el("g", parts, class_=f"value {row.kind}".strip())


def _scale(height: float, low: float, high: float, start: float, ticks: Sequence[tuple[float, str]]) -> Markup:
    marks = []
    for value, words in ticks:
        x = _x(value, low, high, start)
        anchor = "start" if x < 20 else "end" if x > _END - 10 else "middle"
        marks += [el("line", x1=x, y1=2, x2=x, y2=height, class_="grid"),
                  el("text", words, x=x, y=height + 14, text_anchor=anchor, class_="scale")]  # fmt: skip
    return el("g", marks)


def _x(value: float, low: float, high: float, start: float) -> float:
    share = (value - low) / (high - low) if high > low else 0.0
    return round(start + (_END - start) * min(max(share, 0.0), 1.0), 1)


def _chart(title: str, shapes: Sequence[Markup], height: float) -> Markup:
    return el("svg", el("title", title), shapes, viewBox=f"0 0 {WIDTH} {height}", class_="chart", role="img",
              aria_label=title)  # fmt: skip
