"""What each target class of a package does with layer ids, and which states it can hand out.

Not by the shape of the code but by what it does: the class's own setter is run (see machine.py) on many lists of ids,
and the id rule is the one that gives the same points for all of them; then its forward pass, with points at the
embedding, between layers and after the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from converter.rules import ids as id_rules
from converter.rules.behaviours import POINTS
from converter.upkeep.build import Registry, built_as
from converter.upkeep.machine import Machine
from converter.upkeep.source import CannotTell, Class, Function
from converter.upkeep.values import Captured, State, Stops, Thing
from converter.upkeep.words import Words

UNTOLD = "cannot tell"
_DEPTHS = (8, 11)  # layers of the models that ids are tried on
_CAPTURE_LAYERS = 7


@dataclass(frozen=True)
class Setter:
    """How a class is told its points.

    name      the method that takes ids
    default   methods that give the points where there are none, of which the first that a class has counts; () where
              `name` is called without ids
    words     what the machine is told about the engine
    """

    name: str
    default: tuple[str, ...]
    words: Words


@dataclass(frozen=True)
class Fact:
    """A value told from the source, or UNTOLD with what stands in the way. place: the file:line to look at."""

    value: str
    place: str
    why: str = ""


@dataclass(frozen=True)
class TargetReading:
    """What was told of one target class: the columns of a target table."""

    architecture: str
    id_rule: Fact
    default_points: Fact
    embedding: Fact
    inner: Fact
    last: Fact

    @property
    def facts(self) -> Mapping[str, Fact]:
        columns = ("id_rule", "default_points", "embedding", "inner", "last")
        return {column: getattr(self, column) for column in columns}


def read_target(architecture: str, cls: Class, setter: Setter, registry: Registry) -> TargetReading:
    """What a class does, by its setter and the forward pass of the model that the setter marks."""
    runs = _Runs(cls, setter, registry)
    rule = runs.id_rule()
    points = runs.default_points()
    captures = runs.captures(rule.value if rule.value != UNTOLD else "literal")
    if rule.value == UNTOLD and any(c.value != "error" for c in captures):
        captures = [Fact(UNTOLD, rule.place, "the id rule cannot be told")] * 3
    return TargetReading(architecture, rule, points, *captures)


class _Runs:
    def __init__(self, cls: Class, setter: Setter, registry: Registry) -> None:
        self.cls, self.setter = cls, setter
        found = cls.method(setter.name)
        assert found is not None
        self.owner, self.node = found
        self.place = self.owner.module.place(self.node)
        self._resolve: Callable[[Class, str], Any] = cache(partial(built_as, registry=registry))

    def _machine(self, layers: int) -> tuple[Machine, Thing]:
        machine = Machine(self.setter.words, layers, self._resolve)
        return machine, machine.thing(self.cls)

    def _marked(self, ids: Sequence[int] | None, layers: int) -> tuple[int, ...]:
        """The points that the setter marks for some ids; CannotTell, Stops."""
        machine, thing = self._machine(layers)
        machine.run(thing, self.setter.name, [list(ids)] if ids is not None else [])
        return self._marks(machine)

    def _marks(self, machine: Machine) -> tuple[int, ...]:
        holder = machine.marked
        for mark in sorted(self.setter.words.marks):
            value = holder.attributes.get(mark) if holder is not None else None
            if isinstance(value, list | tuple | set) and all(type(p) is int for p in value):
                return tuple(value)
        handed = machine.handed_on
        if isinstance(handed, list | tuple) and all(type(p) is int for p in handed):
            return tuple(handed)
        raise CannotTell("the setter's effect is not followed", self.place)

    def id_rule(self) -> Fact:
        if len(self.node.args.args) < 2:
            return Fact("ids_ignored", self.place)
        rules = dict(id_rules.RULES)
        stopped = ""
        told = False
        try:
            for layers in _DEPTHS:
                for ids in _probes(layers):
                    try:
                        marked = self._marked(ids, layers)
                    except Stops as problem:  # an id that the class refuses
                        stopped = f"the setter stops with {problem.kind} ({problem.place})"
                        continue
                    told = True
                    made = sorted(set(marked))
                    rules = {n: r for n, r in rules.items() if sorted(set(r(ids, layers))) == made}
                    if not rules:
                        example = f"ids {list(ids)} of {layers} layers become {list(marked)}"
                        return Fact(UNTOLD, self.place, f"no known id rule does what this setter does: {example}")
        except CannotTell as problem:
            return Fact(UNTOLD, problem.place, problem.why)
        if not told:
            return Fact(UNTOLD, self.place, stopped)
        # Rules that differ in the order of the ids only do the same in an engine; the plain one comes first.
        return Fact(next(iter(rules)), self.place)

    def default_points(self) -> Fact:
        names = dict(POINTS)
        place = self.place
        try:
            for layers in (*_DEPTHS, 36, 61):
                if self.setter.default:
                    found = next((f for n in self.setter.default if (f := self.cls.method(n))), None)
                    if found is None:
                        return Fact(UNTOLD, self.cls.place, f"no method {' or '.join(self.setter.default)}")
                    place = found[0].module.place(found[1])
                    machine, thing = self._machine(layers)
                    points = machine.run(thing, found[1].name)
                    if not isinstance(points, list | tuple) or not all(type(p) is int for p in points):
                        raise CannotTell("the default points are not followed", place)
                else:
                    points = self._marked(None, layers)
                names = {n: p for n, p in names.items() if sorted(p(layers)) == sorted(points)}
                if not names:
                    shown = f"{list(points)} of {layers} layers"
                    return Fact(UNTOLD, place, f"default points that no name stands for: {shown}")
        except CannotTell as problem:
            return Fact(UNTOLD, problem.place, problem.why)
        except Stops as problem:
            return Fact(UNTOLD, problem.place, f"stops with {problem.kind}")
        return Fact(next(iter(names)), place)

    def captures(self, rule: str) -> list[Fact]:
        """What becomes of the embedding, of the points between layers, and of the last."""
        last = _CAPTURE_LAYERS
        wanted = [((0, 2), 0), ((1, 3), 1), ((2, last - 1), last - 1), ((2, last), last)]
        embedding, first, inner, final = (self._outcome(rule, points, point) for points, point in wanted)
        if first != inner and first.value == "works":
            first = inner
        if {embedding.value, first.value, final.value} == {"silently_missing"}:
            return [Fact("never_captured", f.place, f.why) for f in (embedding, first, final)]
        return [embedding, first, final]

    def _outcome(self, rule: str, points: tuple[int, ...], point: int) -> Fact:
        layers = _CAPTURE_LAYERS
        ids = id_rules.solve(rule, points, layers) if rule in id_rules.RULES else None
        machine, thing = self._machine(layers)
        try:
            if rule == "ids_ignored":
                machine.run(thing, self.setter.name)
                self._mark_instead(machine, points)
            elif ids is None:
                return Fact(UNTOLD, self.place, f"no ids give the points {list(points)}")
            else:
                machine.run(thing, self.setter.name, [list(ids)])
        except Stops as problem:
            return Fact("error", problem.place, f"the setter stops with {problem.kind}")
        except CannotTell as problem:
            return Fact(UNTOLD, problem.place, problem.why)
        model = machine.marked
        if model is None or model.cls is None:
            return Fact(UNTOLD, self.cls.place, "the model inside is chosen by the checkpoint, or not followed")
        found = model.cls.method("forward")
        if found is None:
            return Fact(UNTOLD, model.cls.place, f"{model.cls.name} has no forward")
        place = found[0].module.place(found[1])
        try:
            result = machine.run(model, "forward", named=_given(found[1]))
            states = _handed_out(result)
        except Stops as problem:
            return Fact(
                "crash" if problem.kind == "TypeError" else "error", problem.place, f"stops with {problem.kind}"
            )
        except CannotTell as problem:
            return Fact(UNTOLD, problem.place, problem.why)
        if not states and machine.unsure:
            return Fact(UNTOLD, machine.unsure, "what is handed out hangs on a condition")
        return Fact(*_judged(states, points, point, place))

    def _mark_instead(self, machine: Machine, points: tuple[int, ...]) -> None:
        """Where ids are not read, the points are put where the setter puts its own."""
        for mark in self.setter.words.marks:
            if machine.marked is not None and isinstance(machine.marked.attributes.get(mark), list):
                machine.marked.attributes[mark] = list(points)


def _probes(layers: int) -> Iterator[tuple[int, ...]]:
    every = range(-1, layers + 1)
    yield from ((a,) for a in every)
    yield from ((a, b) for a in every for b in every if a != b)
    yield from ((a, a + 2, a + 4) for a in range(-1, layers - 3))
    yield from ((a + 3, a, a + 5) for a in range(-1, layers - 4))


def _given(forward: Function) -> dict[str, Any]:
    """Arguments of a forward pass: the embedding of the tokens, and nothing from another GPU."""
    entering = State("stream", 0)
    values = {
        "input_ids": None, "input_embeds": entering, "inputs_embeds": entering, "hidden_states": entering,
        "residual": None, "intermediate_tensors": None, "pp_proxy_tensors": None,
    }  # fmt: skip
    names = [a.arg for a in (*forward.args.posonlyargs, *forward.args.args, *forward.args.kwonlyargs)]
    return {name: values[name] for name in names if name in values}


def _handed_out(result: Any) -> list[Any] | None:
    """The captured states in what a forward pass returns; None where it returns none."""
    for item in result if isinstance(result, tuple) else ():
        if isinstance(item, Captured):
            if item.mixed:
                raise CannotTell("what happens to the captured states is not followed", item.mixed)
            return list(item)
    return None


def _judged(states: list[Any] | None, points: tuple[int, ...], point: int, place: str) -> tuple[str, str, str]:
    if not states:
        return "silently_missing", place, "no state is handed out"
    if not all(isinstance(s, State) for s in states):
        return UNTOLD, place, "what is captured is not followed"
    if len(states) < len(points):
        there = State("stream", point) in states
        return ("works", place, "") if there else ("silently_missing", place, f"{len(states)} of {len(points)} states")
    if [s for s in states if s.part != "stream"] or {s.point for s in states} != set(points):
        good = State("stream", point) in states
        return ("works", place, "") if good else ("wrong_value", place, f"not the state at point {point}")
    return "works", place, ""
