"""What a sample's file holds, whichever form it has: named sequences of tokens with states that are read on demand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from torch import Tensor

from converter.errors import InputError
from converter.findings import error

Labels = Literal["target", "computed", "text"]  # where the target's choices come from
Last = int | Literal["normed", ""]  # the state they follow from: its place, "normed" where it lies apart, "" none

OWN = "eagle3-convert sample"
HIDDEN_STATES = "speculators hidden states"
DATA_PT = "speculators data_*.pt"
OFFLINE = "SpecForge offline data"

# What the last state of a trainer's form is: the output of the target's last layer, or that after the final norm.
LAST_STATE: Mapping[str, Literal["before norm", "after norm"]] = {
    HIDDEN_STATES: "before norm",
    DATA_PT: "before norm",
    OFFLINE: "after norm",
}


class States(Protocol):
    """`count` states of `length` positions, each [length, width]."""

    @property
    def count(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def coarse(self) -> bool:
        """Whether they are kept in fp8."""

    def rows(self, index: int, start: int, stop: int) -> Tensor:
        """State `index` at positions start..stop-1: [stop-start, width], on the CPU."""


@dataclass(frozen=True)
class Stored:
    """A sequence as a file holds it.

    tokens   [T] int64
    mask     [T] bool: tokens that count; None where the file has none
    choices  [T] int64: the target's choices; None where the file has none
    states   what may be capture points, in the file's order
    normed   the target's last state after its final norm, where the form has that; never a capture point
    """

    name: str
    file: Path
    tokens: Tensor
    mask: Tensor | None
    choices: Tensor | None
    states: States
    normed: States | None = None


@dataclass(frozen=True)
class Opened:
    """A file: its form, its metadata and its sequences."""

    file: Path
    form: str
    metadata: Mapping[str, str]
    sequences: tuple[Stored, ...]


def natural(name: str) -> list[tuple[int, str]]:
    """2 before 10, words by letter."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"([0-9]{1,9})", name)]


def no_sample(path: Path, what: str, expected: str = "", fix: tuple[str, ...] = ()) -> InputError:
    """F120: `what` is why the file or folder is none."""
    known = "sK.input_ids, sK.hidden_states, sK.loss_mask and sK.target_next for each sequence K, or a trainer's data"
    return InputError(
        error("F120", f"{path} is no sample: {what}", where=str(path), expected=expected or known, fix=fix)
    )


def other_target(path: Path, found: str, expected: str, where: str = "") -> InputError:
    """F121: the sample does not belong to the drafter's target."""
    return InputError(
        error(
            "F121",
            "the sample was captured from another target",
            where=where or str(path),
            found=found,
            expected=expected,
            fix=("capture a sample from the drafter's own target",),
        )
    )


def unfit(path: Path, name: str, states: tuple[int, ...], others: set[tuple[int, ...]]) -> InputError:
    """F120: the shape of the states of a sequence, and those of its other tensors, of which one has another length."""
    found = ", ".join(str(list(s)) for s in sorted(others))
    return no_sample(path, f"the tensors of {name} do not belong together: states {list(states)}, {found}")
