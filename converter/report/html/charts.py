"""Shares with their intervals and differences of wirings as drawings; the numbers are in tables beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from converter.report.html.element import Markup, el

WIDTH = 340
_ROW = 26
_LABEL_ROW = 38  # where the label stands over its row
_FARTHEST = 1e9  # nats: what lies beyond is drawn at the edge

Ticks = Sequence[tuple[float, str]]


@dataclass(frozen=True)
class Row:
    """One value with the ends of its interval (None where there is none); `note` stands at the right end."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    kind: str = ""
    note: str = ""


@dataclass(frozen=True)
class _Scale:
    """Values from low to high between two places on the page."""

    low: float
    high: float
    start: float
    end: float

    def x(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.0
        return round(self.start + (self.end - self.start) * min(max(share, 0.0), 1.0), 1)


def intervals(title: str, rows: Sequence[Row], low: float, high: float, ticks: Ticks) -> Markup:
    """Dots with whiskers on one scale from low to high, a row each, its label on the left."""
    scale = _Scale(low, high, 96, 330)
    height = len(rows) * _ROW + 4
    shapes = [_grid(scale, height, ticks)]
    for i, row in enumerate(rows):
        y = 14 + i * _ROW
        shapes += [el("text", row.label, x=0, y=y + 4), _dot(row, y, scale)]
    return _chart(title, shapes, height + 20)


def differences(title: str, rows: Sequence[Row], ticks: Ticks) -> Markup:
    """The same with long labels, each over its row, notes on the right, and a line at zero."""
    ends = [0.0, *(v for row in rows for v in (row.value, row.low, row.high) if v is not None), *(t for t, _ in ticks)]
    scale = _Scale(max(min(ends), -_FARTHEST), min(max(ends), _FARTHEST), 8, 236)
    height = len(rows) * _LABEL_ROW + 4
    shapes = [_grid(scale, height, ticks), el("line", x1=scale.x(0), y1=2, x2=scale.x(0), y2=height, class_="zero")]
    for i, row in enumerate(rows):
        y = 14 + i * _LABEL_ROW
        note = el("text", row.note, x=WIDTH, y=y + 16, text_anchor="end", class_="scale")
        shapes += [el("text", row.label, x=0, y=y), note, _dot(row, y + 12, scale)]
    return _chart(title, shapes, height + 20)


def ticks_for(low: float, high: float) -> list[tuple[float, str]]:
    """Two to six round numbers from below `low` to above `high`."""
    low, high = max(low, -_FARTHEST), min(high, _FARTHEST)
    span = max(high - low, 1e-6)
    step = 10.0 ** floor(log10(span))
    step = next(s for s in (step / 5, step / 2, step, step * 2, step * 5) if span / s <= 4)
    digits = max(0, -floor(log10(step)))
    return [
        (k * step, f"{k * step:+.{digits}f}" if k else "0") for k in range(floor(low / step), ceil(high / step) + 1)
    ]


def _dot(row: Row, y: float, scale: _Scale) -> Markup:
    parts = []
    if row.low is not None and row.high is not None:
        a, b = scale.x(row.low), scale.x(row.high)
        parts.append(el("path", d=f"M{a} {y}H{b}M{a} {y - 4}V{y + 4}M{b} {y - 4}V{y + 4}", class_="whisker"))
    parts.append(el("circle", cx=scale.x(row.value), cy=y, r=4.5))
    return el("g", parts, class_=f"value {row.kind}".strip())


def _grid(scale: _Scale, height: float, ticks: Ticks) -> Markup:
    marks = []
    for value, words in ticks:
        x = scale.x(value)
        anchor = "start" if x < 20 else "end" if x > WIDTH - 20 else "middle"
        marks += [el("line", x1=x, y1=2, x2=x, y2=height, class_="grid"),
                  el("text", words, x=x, y=height + 14, text_anchor=anchor, class_="scale")]  # fmt: skip
    return el("g", marks)


def _chart(title: str, shapes: Sequence[Markup], height: float) -> Markup:
    return el("svg", el("title", title), shapes, viewBox=f"0 0 {WIDTH} {height}", class_="chart", role="img",
              aria_label=title)  # fmt: skip
