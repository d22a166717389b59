"""Everything this tool raises on purpose, each with the exit code that it means.

Exit codes: 0 done, 1 an error finding, 2 usage, 3 input missing or unreadable, 4 output, disk or
network failed, 130 interrupted. A refused drafter (exit 1) is no exception but a report with error
findings; an `InputError` carries one finding that says what could not be read and what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from converter.findings import Finding


class Eagle3Error(Exception):
    """An error that a user can act on; never shown with a traceback. `finding` says more, where there is one."""

    exit_code = 1
    finding: Finding | None = None


class UsageError(Eagle3Error):
    """The command line contradicts itself or names something that does not exist."""

    exit_code = 2


class InputError(Eagle3Error):
    """IN, the target or the sample is missing or unreadable; `finding` says which bytes and why."""

    exit_code = 3
    finding: Finding

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


class OutputError(Eagle3Error):
    """OUT could not be written; OUT is as it was before."""

    exit_code = 4


class SendError(OutputError):
    """The Hub did not take what was to be pushed; `finding` says why, and what is there now."""

    finding: Finding

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


class RulesError(Eagle3Error):
    """A mapping file is malformed: the message names file, key and what was expected."""

    exit_code = 2
