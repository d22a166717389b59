"""The wiring as a drawing: the target's layers, the states taken from them, fc, the drafter, head and map.

Read from top to bottom. Every part is a group with `data-part`; one that a finding is about also bears its severity as
a class and its code as a label (faults.py says which). Units are those of the view box; the width is a phone's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from converter.drafter.points import describe_points
from converter.report.html.element import Markup, el
from converter.report.html.faults import better_wiring, parts_of
from converter.report.reading import SYMBOLS, Document, Found

WIDTH = 360
_LEFT, _RIGHT = 24, 336  # ends of the target's line
_AXIS = 68  # its height
_MIDDLE, _STACK = 196, 138  # middle and width of the drafter's column
_SIDE = 350  # where the states go back up
_MOST_TICKS = 200  # layers beyond which they are not drawn one by one
_MOST_BADGES = 2  # codes on one part; the list beside the drawing has them all

Marks = Mapping[str, Sequence[Found]]


def marks(document: Document, found: Sequence[Found]) -> dict[str, list[Found]]:
    """Part -> what was found of it, most severe first; one finding a code and severity."""
    result: dict[str, list[Found]] = {}
    for f in found:
        for part in parts_of(f, document):
            there = result.setdefault(part, [])
            if all((f.code, f.kind) != (other.code, other.kind) for other in there):
                there.append(f)
    return result


def wiring_svg(document: Document, marked: Marks) -> Markup:
    """The drawing; the document has a spec."""
    return _Drawing(document, marked).draw()


class _Drawing:
    """Collects shapes from top to bottom; `y` is how far it is."""

    def __init__(self, document: Document, marked: Marks) -> None:
        self.document, self.marked = document, marked
        self.spec: dict[str, Any] = {name: field["value"] for name, field in document["spec"].items()}
        self.points: list[int] = self.spec["capture_points"]
        self.layers: int | None = document["target"]["layers"]
        pair = better_wiring(document)
        self.fitting: list[int] = pair[1]["points"] if pair else []  # what the sample says, where it says otherwise
        self.last: int = max(1, self.layers or 0, *self.points, *self.fitting)  # the highest point that is drawn
        self.behind: list[Markup] = []  # wires, under the boxes
        self.shapes: list[Markup] = []
        self.badges: list[Markup] = []  # on top of everything

    def draw(self) -> Markup:
        y = self._target()
        y = self._fc(y)
        height = self._drafter(y)
        words = _words(self.document)
        return el(
            "svg",
            el("title", "Wiring of the drafter"),
            el("desc", words),
            self.behind, self.shapes, self.badges,
            viewBox=f"0 0 {WIDTH} {height}", class_="wiring", role="group", aria_label="Wiring: " + words,
        )  # fmt: skip

    # --- target -------------------------------------------------------------------------------------------

    def _target(self) -> float:
        name = self.document["target"]["architecture"] or "target of unknown class"
        depth = f"{self.layers} layers" if self.layers else "depth unknown"
        self._part(
            "target",
            [_label(_LEFT, 16, "target", "small"), _label(_LEFT, 32, _short(name, 30)),
             _label(_RIGHT, 32, depth, "small", "end")],
            badge=(_RIGHT, 12),
        )  # fmt: skip
        end = self._x(self.layers or self.last)
        self.behind.append(_line(_LEFT, _AXIS, end, _AXIS, "axis"))
        if self.layers is None:
            self.behind.append(_line(end, _AXIS, _RIGHT + 12, _AXIS, "axis open"))
        if self.last <= _MOST_TICKS:
            ticks = [self._x(k) for k in range((self.layers or self.last) + 1)]
            self.behind += [_line(x, _AXIS - 4, x, _AXIS + 4, "tick") for x in ticks]
        self.shapes.append(_label(_LEFT - 11, _AXIS + 4, "0", "small soft", "end"))
        if self.layers:
            self.shapes.append(_label(self._x(self.layers) + 12, _AXIS + 4, str(self.layers), "small soft"))
        return _AXIS + 4

    def _x(self, point: int) -> float:
        """Where a capture point lies on the target's line."""
        return round(_LEFT + (_RIGHT - _LEFT) * max(point, 0) / self.last, 1)

    # --- states and fc ------------------------------------------------------------------------------------

    def _fc(self, y: float) -> float:
        count = max(len(self.points), 1)
        width = (_RIGHT - _LEFT + 24) / count
        staggered = count > 6 and any(f"point-{j}" in self.marked for j in range(count))
        badge = y + 44
        pills = badge + (26 if staggered else 10) + (18 if "fc-norms" in self.marked else 0)
        blocks = pills + (26 if self.spec["fc_norm"] else 4) + (28 if self.spec["norm_before_fc"] else 0)
        norms: list[Markup] = []
        for j, point in enumerate(self.points):
            middle, x = _LEFT - 12 + width * (j + 0.5), self._x(point)
            # A state of a layer that the target has not got hangs in the air.
            beyond = self.layers is not None and point > self.layers
            wire = f"M{x} {_AXIS}C{x} {y + 26} {middle:.1f} {y + 18} {middle:.1f} {blocks:.1f}"
            state = [el("path", d=wire, class_="wire"), el("circle", cx=x, cy=_AXIS, r=5, class_="dot")]
            name = "embedding" if point == 0 else f"layer {point}"
            if count > 5:
                name = "emb." if point == 0 else str(point)
            box = [
                _box(middle - width / 2 + 2, blocks, width - 4, 30),
                _label(middle, blocks + 19, name, "" if count <= 3 else "small", "middle"),
            ]
            if self.spec["fc_norm"]:
                norms += self._pill(middle, pills, min(width - 10, 64), "fc_norm" if count <= 4 else "norm")
            title = el("title", f"block {j} of fc: {name}" + (", which the target has not got" if beyond else ""))
            offset = 16 if staggered and j % 2 else 0
            self._part(f"point-{j}", [title, *state, *box], badge=(middle, badge + offset), align="middle")
        if self.fitting not in ([], self.points):
            self.shapes.append(self._trained(self.fitting))
        if self.spec["norm_before_fc"]:
            norms += self._pill(180, blocks - 24, 320, "input_norm over all states")
        if "fc-norms" in self.marked and not norms:
            norms = [_label(_RIGHT, blocks - 6, "no norm", "small", "end")]
        self._part("fc-norms", norms, badge=(WIDTH - 2, pills - 10))
        if "points" in self.marked:  # a line across all of them
            across = _line(_LEFT - 12, badge - 24, _RIGHT + 12, badge - 24, "wire across")
            self._part("points", [across], badge=(_LEFT - 12, badge - 24), align="start")
        y = blocks + 34
        size = f"{count} × {self.spec['target_hidden_size']:,} → {self.spec['hidden_size']:,}"
        text = [_label(_LEFT - 10, y + 16, "fc", "strong"), _label(_LEFT + 10, y + 16, size, "small")]
        self._part("fc", [_box(_LEFT - 10, y - 2, _RIGHT - _LEFT + 20, 3, "bar"), *text], badge=(_RIGHT + 12, y + 10))
        self.behind.append(_arrow(_MIDDLE, y, _MIDDLE, y + 40))
        return y + 40

    def _trained(self, points: Sequence[int]) -> Markup:
        """The states that the sample says the drafter was trained on, where these are others than the declared."""
        rings = [el("circle", cx=self._x(p), cy=_AXIS, r=8.5, class_="trained") for p in points]
        words = _short("fits the sample: " + describe_points(tuple(points)), 46)
        key = el("circle", cx=_LEFT, cy=44, r=4, class_="trained"), _label(_LEFT + 10, 48, words, "small good")
        return el("g", key, rings, class_="part trained-points", data_points=" ".join(map(str, points)))

    # --- drafter ------------------------------------------------------------------------------------------

    def _drafter(self, y: float) -> float:
        spec, left, right = self.spec, _MIDDLE - _STACK / 2, _MIDDLE + _STACK / 2
        top = y
        # The two halves of layer 0's input, each with its norm.
        self._part("embedding", [_box(4, y, 108, 34), _label(58, y + 14, "token embedding", "small", "middle"),
                                 _label(58, y + 27, self._embedding(), "small soft", "middle")],
                   badge=(112, y))  # fmt: skip
        state = self._pill(_MIDDLE, y + 8, _STACK - 30, "hidden_norm")
        y += 62
        self.behind += [_arrow(_MIDDLE, top, _MIDDLE, y), _arrow(58, top + 34, 58, y + 20, left, y + 20)]
        # Which state layer 0 adds to what it computes: the raw one, from above its norm, or the normed one.
        normed = spec["norm_before_residual"]
        tap = top + 36 if normed else top + 2
        self._part(
            "residual",
            [el("path", d=f"M{_MIDDLE} {tap}H{right + 16}V{y + 20}H{right + 3}", class_="wire"),
             el("circle", cx=_MIDDLE, cy=tap, r=2.5, class_="joint"),
             _head(right, y + 20, "left"), _label(right + 20, y + 4, "residual:", "small"),
             _label(right + 20, y + 17, "normed" if normed else "raw", "small")],
            badge=(_SIDE - 4, y - 16),
        )  # fmt: skip
        self.shapes += state
        y = self._layers(y, left)
        y = self._norm_and_feedback(y, top)
        self._part("head", [_box(left, y, _STACK, 34), _label(_MIDDLE, y + 14, "lm_head", "", "middle"),
                            _label(_MIDDLE, y + 27, f"{spec['draft_vocab_size']:,} rows", "small soft", "middle")],
                   badge=(right, y))  # fmt: skip
        y += 34
        self.behind.append(_arrow(_MIDDLE, y, _MIDDLE, y + 20))
        y += 20
        if spec["draft_vocab_size"] == spec["vocab_size"]:
            words, shape = "no map: the target's own", "box missing"
        else:
            words, shape = f"{spec['draft_vocab_size']:,} of {spec['vocab_size']:,} tokens", "box"
        self._part("map", [_box(left, y, _STACK, 34, shape), _label(_MIDDLE, y + 14, "vocabulary map", "", "middle"),
                           _label(_MIDDLE, y + 27, words, "small soft", "middle")],
                   badge=(right, y))  # fmt: skip
        y += 34
        self.behind.append(_arrow(_MIDDLE, y, _MIDDLE, y + 18))
        self.shapes.append(_label(_MIDDLE, y + 32, "draft token", "strong", "middle"))
        return y + 42

    def _layers(self, y: float, left: float) -> float:
        spec = self.spec
        count = spec["num_hidden_layers"]
        kind = spec["rope"]["rope_type"]
        rope = f"rope{'' if kind == 'default' else ' ' + kind} {spec['rope']['rope_theta']:,.0f}"
        names = ["layer 0"] + ([f"layer {k}" for k in range(1, count)] if count <= 3 else [f"layers 1 to {count - 1}"])
        inside: list[Markup] = []
        top = y
        for j, name in enumerate(names):
            height = 40 if j == 0 else 26
            inside += [_box(left, y, _STACK, height), _label(_MIDDLE, y + 16, name, "", "middle")]
            if j == 0:
                inside.append(_label(_MIDDLE, y + 31, _short(rope, 26), "small soft", "middle"))
            y += height
            self.behind.append(_arrow(_MIDDLE, y, _MIDDLE, y + (16 if j < len(names) - 1 else 24)))
            y += 16
        self._part("layers", inside, badge=(_MIDDLE + _STACK / 2, top))
        if "drafter" in self.marked:
            self._part("drafter", [_label(4, top + 62, _short(f"weights: {spec['dtype']}", 20), "small")],
                       badge=(4, top + 80), align="start")  # fmt: skip
        return y + 8

    def _norm_and_feedback(self, y: float, top: float) -> float:
        """The last norm, and the way back of the state for the next draft step."""
        normed = self.spec["norm_output"]
        self._part("norm", self._pill(_MIDDLE, y, _STACK - 30, "norm"), badge=(_MIDDLE + _STACK / 2, y))
        tap = y + 27 if normed else y - 15
        back = f"M{_MIDDLE} {tap}H{_SIDE}V{top - 14}H{_MIDDLE + 5}"
        words = [_label(_SIDE, tap + 15, "next step:", "small", "end"),
                 _label(_SIDE, tap + 27, "normed" if normed else "raw", "small", "end")]  # fmt: skip
        self._part(
            "feedback",
            [el("path", d=back, class_="wire dashed"), _head(_MIDDLE + 3, top - 14, "left"),
             el("circle", cx=_MIDDLE, cy=tap, r=2.5, class_="joint"), *words],
            badge=(WIDTH - 2, tap - 4),
        )  # fmt: skip
        self.behind.append(_arrow(_MIDDLE, y + 20, _MIDDLE, y + 40))
        return y + 40

    def _embedding(self) -> str:
        """Whose rows, in a few words."""
        used = self.document["proof"]["embedding"]
        if used:
            return _short(used, 18)
        known = {"absent": "the target's", "target's": "the target's", "trained": "trained further",
                 "unrelated": "its own"}  # fmt: skip
        return known.get(self.document.get("embedding", ""), "")

    # --- parts --------------------------------------------------------------------------------------------

    def _pill(self, middle: float, y: float, width: float, name: str) -> list[Markup]:
        box = el("rect", x=_n(middle - width / 2), y=_n(y), width=_n(width), height=20, rx=10, class_="box")
        return [box, _label(middle, y + 14, name, "small", "middle")]

    def _part(self, name: str, shapes: Sequence[Markup], badge: tuple[float, float], align: str = "end") -> None:
        """A group for a part, and where something was found of it a label with the codes."""
        found = list(self.marked.get(name, ()))
        if not found and not shapes:
            return
        kind = f" {found[0].kind}" if found else ""
        self.shapes.append(el("g", shapes, class_=f"part{kind}", data_part=name))
        if found:
            self.badges.append(_badge(name, found, *badge, align))


def _words(document: Document) -> str:
    """The wiring as a sentence, for those who do not see the drawing."""
    spec = {name: field["value"] for name, field in document["spec"].items()}
    norms = [name for name in ("norm_before_fc", "fc_norm", "norm_before_residual", "norm_output") if spec[name]]
    states = document["wiring"] or "no known states"
    parts = [
        f"{states} of the target go through fc into {spec['num_hidden_layers']} drafter "
        + ("layer" if spec["num_hidden_layers"] == 1 else "layers"),
        f"norm flags that are on: {', '.join(norms) or 'none'}",
        f"draft vocabulary {spec['draft_vocab_size']:,} of {spec['vocab_size']:,} tokens",
    ]
    return "; ".join(parts) + "."


def _badge(part: str, found: Sequence[Found], x: float, y: float, align: str) -> Markup:
    """Codes in a box, its symbol before them: readable without colour. x is its right end, middle or left end."""
    shown = [f.code for f in found[:_MOST_BADGES]]
    more = f" +{len(found) - _MOST_BADGES}" if len(found) > _MOST_BADGES else ""
    words = f"{SYMBOLS[found[0].kind]} {' '.join(shown)}{more}"
    width = 9 + 6.6 * len(words)
    left = min(max(x - {"end": width, "middle": width / 2, "start": 0}[align], 2), WIDTH - width - 2)
    box = el("rect", x=_n(left), y=_n(y - 9), width=_n(width), height=17, rx=3)
    label = el("text", words, x=_n(left + width / 2), y=_n(y + 3.5), text_anchor="middle")
    return el("a", box, label, href=f"#{found[0].anchor}", class_=f"badge {found[0].kind}",
              data_for=part, data_codes=" ".join(f.code for f in found))  # fmt: skip


def _label(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> Markup:
    return el("text", words, x=_n(x), y=_n(y), class_=kind or None, text_anchor=None if anchor == "start" else anchor)


def _box(x: float, y: float, width: float, height: float, kind: str = "box") -> Markup:
    return el("rect", x=_n(x), y=_n(y), width=_n(width), height=_n(height), rx=3, class_=kind)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return el("line", x1=_n(x1), y1=_n(y1), x2=_n(x2), y2=_n(y2), class_=kind)


def _arrow(*places: float) -> Markup:
    """A line through the places x, y, x, y, ... with a head at its end."""
    pairs = list(zip(places[::2], places[1::2], strict=True))
    path = "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in pairs)
    (x0, _), (x, y) = pairs[-2:]
    return el("g", el("path", d=path, class_="wire plain"), _head(x, y, "down" if x == x0 else "right"))


def _head(x: float, y: float, towards: str) -> Markup:
    dx, dy = {"down": (0, 6), "right": (6, 0), "left": (-6, 0)}[towards]
    aside, down = (3.5, 0) if dx == 0 else (0, 3.5)
    left, right = (x - dx + aside, y - dy + down), (x - dx - aside, y - dy - down)
    corners = "L".join(f"{_n(a)} {_n(b)}" for a, b in ((x, y), left, right))
    return el("path", d=f"M{corners}Z", class_="head")


def _short(words: str, most: int) -> str:
    return words if len(words) <= most else words[: most - 1] + "…"


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
