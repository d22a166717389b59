"""What `convert`, `validate` and `push` show of a run: its report, progress, and how it failed. Heavy imports wait."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from converter.cli.common import fail, failure_of, reader_may_leave, say_failure, say_json
from converter.signals import interruptible

if TYPE_CHECKING:
    from converter.baseline import Baseline
    from converter.report.several import Several

_Told = Callable[[str], None]


class Show:
    """Runs a command and shows its report; turns every error into text and an exit code."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._as_json: bool = options["as_json"]
        self._file: Path | None = options["report_file"]
        self._verbose: bool = options["verbose"]
        self._quiet: bool = options["quiet"]
        given = [options[k] for k in ("source", "out", "target") if options.get(k) is not None]
        self._places = [Path(p) for p in (*options.get("sources", ()), *given)]
        self._may_write = False  # not before it is known that the report's file is none of the user's
        self.written: Baseline | None = None

    def run(self, work: Callable[[], Any], then: Callable[[Any], int] = lambda report: 0) -> NoReturn:
        """`then` is done with the report when all is said; its exit code counts where nothing was wrong before."""
        from converter.errors import Eagle3Error

        if self._quiet:
            from converter.hub.snapshot import quieten

            quieten()
        try:
            self._check_file()
            self._may_write = self._file is not None
            with interruptible():
                report = work()
                self._write(report)
                code = self._code(report)
                if not (self._quiet and code == 0):
                    with reader_may_leave():
                        self._print(report)
        except KeyboardInterrupt:
            fail(130, self._interrupted())
        except (Eagle3Error, OSError) as problem:
            failure = failure_of(problem)
            self._failed(failure)
            sys.exit(failure.exit_code)
        sys.exit(code or then(report))

    @property
    def _converts(self) -> bool:
        return "out" in self._options

    def _interrupted(self) -> str:
        return "interrupted" + ("; OUT is whole: as it was before, or new" if self._converts else "")

    def _code(self, report: Any) -> int:
        return 1 if report.outcome == "refused" else 0

    def _print(self, report: Any) -> None:
        printer = self._printer()
        if self._converts:
            printer.converted(report)
        else:
            printer.validated(report)
        if report.held is not None and not self._quiet:
            printer.held([report.held], self.written)

    def _check_file(self) -> None:
        """Neither a report nor a baseline may be written into what is read or written."""
        from converter.errors import UsageError

        if self._file is not None:
            from converter.report.files import WRITERS

            if self._file.suffix not in WRITERS:
                raise UsageError(f"--report {self._file}: reports are written as {', '.join(WRITERS)}")
            self._check_place(self._file, "--report", "write_baseline")
        baseline = self._options.get("write_baseline")
        if baseline is not None:
            self._check_place(baseline, "--write-baseline")

    def _check_place(self, written: Path, option: str, *more: str) -> None:
        from converter.checkpoint.jsonfile import reading
        from converter.checkpoint.paths import real
        from converter.errors import UsageError

        if not written.parent.is_dir():
            raise UsageError(f"{option} {written}: there is no folder {written.parent}")
        files = [self._options.get(name) for name in ("sample", "baseline", *more)]
        given = [Path(p) for p in (*self._options["mappings"], *files) if p is not None]
        with reading(written):  # what cannot be looked at names itself
            folders = [p if p.is_dir() else p.parent for p in self._places if p.exists()]
            given += [file for folder in folders for file in folder.iterdir()]  # links of a cache lead elsewhere
        if real(written) in set(map(real, given)):
            raise UsageError(f"{option} {written}: this file is read or written by this run")
        folder = real(written).parent
        for place in (p for p in self._places if not p.is_file()):
            used = real(place)
            if folder == used or used in folder.parents:
                raise UsageError(f"{option} {written}: {used} is read or written by this run")

    def _printer(self) -> Any:
        from converter.report.text import Printer

        return Printer(sys.stderr if self._as_json else sys.stdout, self._verbose, self._quiet)

    def _document(self, report: Any) -> dict[str, Any]:
        from converter.report.document import as_json

        return as_json(report)

    def _writers(self) -> Mapping[str, Callable[[Any], str]]:
        from converter.report.files import WRITERS

        return WRITERS

    def _write(self, report: Any) -> None:
        if self._as_json:
            say_json(self._document(report))
        if self._file is not None:
            from converter.checkpoint.whole import write_output

            write_output(self._file, self._writers()[self._file.suffix](report))

    def _failed(self, problem: Any) -> None:
        if self._may_write and self._file is not None and problem.exit_code != 2:
            from converter.checkpoint.whole import write_whole
            from converter.report.files import FAILURES

            write = FAILURES.get(self._file.suffix)
            with suppress(OSError):  # perhaps just what failed; the exit code is that of the problem itself
                if write is not None:
                    write_whole(self._file, write(problem))
        say_failure(problem, self._as_json, self._failure_printer())

    def _failure_printer(self) -> Any:
        from converter.report.text import Printer

        return Printer(sys.stderr, self._verbose)

    @contextmanager
    def status(self) -> Iterator[Callable[[str], None]]:
        """A line that says what a proof is at, on a terminal, while it lasts; nothing elsewhere."""
        if self._quiet or not sys.stderr.isatty():
            yield lambda what: None
            return
        from rich.console import Console

        line = Console(stderr=True).status("")

        def told(what: str) -> None:
            line.update(what)
            line.start()

        try:
            yield told
        finally:
            line.stop()

    @contextmanager
    def progress(self, total: int) -> Iterator[Callable[[int], None]]:
        """A bar with bytes and speed on a terminal; nothing elsewhere."""
        if self._quiet or not sys.stderr.isatty():
            yield lambda count: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

        columns = ("writing", BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=total)
            yield lambda count: bar.advance(task, count)


class ShowSeveral(Show):
    """The same for several drafters."""

    def _code(self, report: Several) -> int:
        return report.exit_code

    def _print(self, report: Several) -> None:
        from converter.report.several import SeveralPrinter, held_of

        printer = SeveralPrinter(sys.stderr if self._as_json else sys.stdout, self._verbose, self._quiet)
        printer.several(report.as_json())
        if not self._quiet:
            printer.held(held_of(report), self.written)

    def _document(self, report: Several) -> dict[str, Any]:
        return report.as_json()

    def _writers(self) -> Mapping[str, Callable[[Several], str]]:
        from converter.report.files import SEVERAL

        return SEVERAL

    @contextmanager
    def each(self, names: Sequence[str]) -> Iterator[tuple[Callable[[int], None], Callable[[int], None], _Told]]:
        """Hears which drafters are begun and done, and what a proof is at: a bar on a terminal, nothing elsewhere."""
        if self._quiet or not sys.stderr.isatty():
            yield (lambda index: None), (lambda index: None), (lambda what: None)
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        from converter.report.words import clean

        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
        # Without a thread that draws it: workers are forked meanwhile.
        with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
            task = bar.add_task("", total=len(names))
            doing: list[int] = []

            def say(what: str = "") -> None:
                named = clean(", ".join(names[index] for index in doing))
                bar.update(task, description=f"{named}: {what}" if what else named, refresh=True)

            def began(index: int) -> None:
                doing.append(index)
                say()

            def ended(index: int) -> None:
                doing.remove(index)
                bar.advance(task)
                say()

            yield began, ended, say
