"""A run of `convert` or `validate`: what was asked for, and what is known of it by the end."""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converter.checkpoint.writer import WrittenFile
from converter.checks.as_it_is import AsItIs
from converter.checks.suits import Suits
from converter.drafter.drafter import Drafter
from converter.drafter.points import as_option
from converter.drafter.spec import exact
from converter.drafter.target import Target
from converter.errors import UsageError
from converter.findings import CAPTURE, CONVERT, SEARCH, Finding, judge, stops
from converter.plan import Plan
from converter.rules.dialect import Dialect
from converter.rules.engine import EngineRelease
from converter.source import Source
from converter.target_weights import TargetWeights

if TYPE_CHECKING:
    from converter.baseline import Held
    from converter.forward.prove import Proof
    from converter.forward.sample import Sample
    from converter.forward.search import Judgement
    from converter.forward.wiring import Wiring

MOST_STEPS = 16


@dataclass(frozen=True)
class Wish:
    """What the user wants proved: the options of the same names. positions 0: all of the sample."""

    sample: Path | None = None
    prove: bool = False
    find_wiring: bool = False
    sample_points: tuple[int, ...] | None = None
    positions: int | None = None
    steps: int | None = None
    device: str = "auto"
    min_accuracy: float | None = None

    @property
    def anything(self) -> bool:
        return self.prove or self.sample is not None

    def check(self) -> None:
        """Raises UsageError for options that do not go together, and without torch."""
        if self.anything and importlib.util.find_spec("torch") is None:
            option = "--sample" if self.sample is not None else "--prove"
            raise UsageError(f"{option} needs torch, which is not installed:  pip install 'eagle3-convert[torch]'")
        for value, option in ((self.min_accuracy, "--min-accuracy"), (self.sample_points, "--sample-points")):
            if value is not None and self.sample is None:
                raise UsageError(f"{option} needs --sample: there is nothing to measure it on")
        if self.find_wiring and self.sample is None:
            raise UsageError("--find-wiring needs --sample: the wiring is found by what fits it")
        if self.positions is not None and (self.positions < 0 or self.sample is None):
            raise UsageError("--positions: expected a number of the sample's positions (0: all), with --sample")
        if self.steps is not None and not 1 <= self.steps <= MOST_STEPS:
            raise UsageError(f"--steps {self.steps}: expected 1 to {MOST_STEPS} draft steps")


@dataclass(frozen=True)
class Request:
    """What the user asked for; the options of the same names in `eagle3 convert --help`.

    dialect   the dialect that IN is read as, or the engine, whatever it looks like; "" leaves it to the files' marks
    to        the dialect whose form is written; "" writes engines'
    engines   none: the newest SGLang where there is an OUT, the newest of every engine where there is none
    max_shard_size   bytes of tensors in a file of OUT at most; 0 keeps the input's files
    given     spec fields set by the user (--set), which outrank the config
    digest         the SHA-256 of each file of weights goes into the seal
    command        what was typed, for the seal
    scan           validate reads every weight once, to find values that are no numbers
    sign           a private key's file, or "sigstore": what signs the seal and all files that it lists; "" leaves it
    allow_plugin   releases whose own draft class cannot compute the drafter may serve it with a plugin's
    """

    source: str
    out: Path | None = None
    engines: tuple[str, ...] = ()
    target: Path | None = None
    target_arch: str = ""
    dialect: str = ""
    to: str = ""
    aux: tuple[int, ...] | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    wish: Wish = field(default_factory=Wish)
    allow_plugin: bool = False
    dtype: str = ""
    max_shard_size: int = 0
    allow: tuple[str, ...] = ()
    strict: bool = False
    force: bool = False
    dry_run: bool = False
    digest: bool = True
    sign: str = ""
    scan: bool = True
    command: tuple[str, ...] = ()

    def again(self, read_as: str = "", instead: Sequence[str] = ()) -> list[str]:
        """The options given that say what the drafter and its sample are, but for those that `instead` gives;
        `read_as` stands for a --dialect that nobody gave.
        """
        wish, words = self.wish, list[str]()
        said = {b.partition("=")[0] for a, b in pairwise(instead) if a == "--set"}
        for option, value in (
            ("--target", self.target),
            ("--target-arch", self.target_arch),
            ("--aux", as_option(self.aux) if self.aux and "--aux" not in instead else ""),
            ("--sample", wish.sample),
            ("--sample-points", as_option(wish.sample_points) if wish.sample_points else ""),
            ("--dialect", self.dialect or read_as),
            *(("--set", f"{name}={_typed(value)}") for name, value in self.given.items() if name not in said),
            *(("--mapping", path) for path in _mappings(self.command)),
            *(("--allow", code) for code in self.allow),
        ):
            words += [option, str(value)] if value else []
        return [*words, *(["--allow-plugin"] if self.allow_plugin else [])]


def _typed(value: Any) -> str:
    """A value of --set as it is typed."""
    return str(value).lower() if isinstance(value, bool) else exact(value) if isinstance(value, float) else str(value)


def _mappings(typed: Sequence[str]) -> list[str]:
    """The rule files of the user's own in a command."""
    after = [b for a, b in pairwise(typed) if a == "--mapping"]
    return after + [word.partition("=")[2] for word in typed if word.startswith("--mapping=")]


def nobody(what: str) -> None:
    """Hears what a long run is at, where nobody looks."""


@dataclass
class Report:
    """Everything that is known at the end, in whatever state the run ended.

    outcome   converted, refused, planned (--dry-run) or validated
    verdicts       what stands in each engine's way, by its requirement
    written, suits, seconds   the files of OUT, the other releases for which it is right, and how long writing took
    told           hears what a long proof is at
    points_known   False where a search of the wiring goes on without capture points
    other_meaning  that the ids may mean other points, said unless the sample decides
    unlike         what the trainer computed and no engine does, said unless a sample measures it
    open           what else the sample decides
    search         what it found; `declared` is the wiring that the input states
    sealed         the seal beside the output; empty where none was written
    opened         the input as it lies there: `source` without what reading it changed
    read_as        the engine (--dialect) that an output for engines is read as; "" of any other input
    as_it_is       whether each engine serves the input as it lies there
    named          options of eagle3-convert that declare the wiring which the sample says was trained, and the input
                   does not; `trained`: that wiring in words. `verdicts` are then those of that wiring
    held           its findings, held against a baseline
    """

    request: Request
    outcome: str = "refused"
    source: Source | None = None
    dialect: Dialect | None = None
    target: Target = field(default_factory=Target)
    target_weights: TargetWeights | None = None
    engines: list[EngineRelease] = field(default_factory=list)
    drafter: Drafter | None = None
    plan: Plan | None = None
    findings: list[Finding] = field(default_factory=list)
    verdicts: dict[str, list[Finding]] = field(default_factory=dict)
    proof: Proof | None = None
    sample: Sample | None = None
    points_known: bool = True
    other_meaning: list[Finding] = field(default_factory=list)
    unlike: tuple[str, Finding] | None = None
    open: list[Finding] = field(default_factory=list)
    search: Judgement | None = None
    declared: Wiring | None = None
    sealed: dict[str, Any] = field(default_factory=dict)
    written: list[WrittenFile] = field(default_factory=list)
    suits: list[Suits] = field(default_factory=list)
    opened: Source | None = None
    read_as: str = ""
    as_it_is: dict[str, AsItIs] = field(default_factory=dict)
    named: tuple[str, ...] = ()
    trained: str = ""
    seconds: float = 0.0
    held: Held | None = None
    told: Callable[[str], None] = nobody

    @property
    def refused(self) -> bool:
        return stops(self.findings)

    @property
    def bytes_written(self) -> int:
        return sum(f.size for f in self.written)

    def add(self, findings: Iterable[Finding]) -> None:
        """Take in more of them, `judged`."""
        self.findings = self.judged([*self.findings, *findings])

    def judged(self, findings: Iterable[Finding]) -> list[Finding]:
        """As was asked for (--allow, --strict), and with what the user gave in the commands that they suggest."""
        typed = self._own_words()
        named = (replace(f, fix=tuple(_renamed(line, typed) for line in f.fix)) for f in findings)
        return judge(named, self.request.allow, self.request.strict)

    def _own_words(self) -> dict[str, str]:
        """Commands that fixes suggest, and how the user would type them."""
        asked = self.request
        convert = [asked.source, str(asked.out or "OUT"), *self.named, *asked.again(self.read_as, self.named)]
        # Whether it takes the plugin is what the suggestion says.
        convert = [word for word in convert if word != "--allow-plugin"] + (["--force"] if asked.force else [])
        search = [asked.source, *asked.again(self.read_as), *([] if asked.wish.sample else ["--sample", "SAMPLE"])]
        target = shlex.quote(str(asked.target or "TARGET"))
        return {
            f"{CONVERT} --engine": f"{shlex.join(['eagle3-convert', *convert])} --engine",
            SEARCH: shlex.join(["eagle3-validate", *search, "--find-wiring"]),
            CAPTURE: CAPTURE.replace("TARGET", target),
        }


def _renamed(line: str, names: Mapping[str, str]) -> str:
    for general, own in names.items():
        line = line.replace(general, own)
    return line
