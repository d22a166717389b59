"""The report as text: the verdict first, then what the reader must know or do, then evidence; one screen."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from converter import seal
from converter.baseline import Baseline, Held, gone
from converter.drafter.points import describe_points
from converter.drafter.spec import NORM_FLAGS
from converter.errors import Eagle3Error
from converter.findings import SEVERITIES, Finding, counts
from converter.plan import TensorPlan
from converter.report.document import launch_lines
from converter.report.proved import proof_lines, unproved
from converter.report.reading import moves
from converter.report.verdict import Row, convert_command, engine_list, headline, told, vocabulary
from converter.report.words import at_commit, by_command, clean, count, sentence, size
from converter.rules.engine import STANDINGS, EngineRelease
from converter.rules.forms import TrainerForm
from converter.rules.loading import known_releases
from converter.run import Report
from converter.source import SIGNATURE

if TYPE_CHECKING:
    from converter.forward.search import Judgement

_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}
_WORD_STYLES = {"works": "bold green", "works after conversion": "bold green", "cannot": "bold red",
                "unknown": "bold yellow", "not looked at": "bold"}  # fmt: skip
_WIDTH = 110
_GONE = 5  # entries of a baseline that no longer occur, shown without -v
_COMMAND = "eagle3"  # a fix with such a word in it is to be copied
_OR = re.compile(r"^or,? ")
_FEWEST = 16  # columns of text, however narrow the terminal is
_LEAST = 32  # columns, below which a reason is no longer put beside its verdict


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to the caller: rich would exit with 1, which here means a refused drafter."""
        raise BrokenPipeError


class Printer:
    """Writes reports to a terminal or file; `verbose` shows all of what is otherwise counted, `quiet` only errors."""

    def __init__(self, file: IO[str], verbose: bool = False, quiet: bool = False) -> None:
        console = _Console(file=file, highlight=False)
        width = min(console.width, _WIDTH) if console.is_terminal else _WIDTH
        self.console = _Console(file=file, highlight=False, width=width)
        self.verbose, self.quiet = verbose, quiet
        self._gap_above = False
        self._said: set[str] = set()  # what to do is said once, also where it mends several findings

    # --- convert ------------------------------------------------------------------------------------------

    def converted(self, report: Report) -> None:
        """The end of `eagle3 convert`, whatever the outcome."""
        if report.outcome == "refused":
            self._refusal(report)
            return
        self._line("Would be written (--dry-run):" if report.outcome == "planned" else headline(report), "bold")
        self._what(report)
        self._facts(report)
        if report.outcome == "converted":
            self._wrote(report)
        self.findings(report.findings)
        if report.outcome == "converted":
            self._serve(report)
            self._next(report)
        elif self.verbose or report.outcome == "planned":
            self._plan(report)

    def _refusal(self, report: Report) -> None:
        self._line(headline(report), "bold red")
        self.findings(report.findings)
        errors = sum(counts(f) for f in report.findings)
        warnings = sum(f.severity == "warning" and not f.accepted for f in report.findings)
        nothing = "" if report.request.out is None else " Nothing was written."
        self._line(f"\n{count(errors, 'error')}, {count(warnings, 'warning')}.{nothing}")

    def _what(self, report: Report) -> None:
        assert report.source and report.dialect and report.drafter
        checkpoint, spec = report.source.checkpoint, report.drafter.spec
        kind = "qwen3 layer" if spec.qk_norm else "MLA layer" if spec.latent is not None else "llama layer"
        layers = count(spec.num_hidden_layers, kind)
        title = f"{report.dialect.title} {report.dialect.release}".rstrip()
        named = f"An output of eagle3-convert, read as {title} reads it" if report.read_as else f"{title} drafter"
        self._fact(
            f"{named}, {layers}, {count(checkpoint.count, 'tensor')}, {size(checkpoint.nbytes)}, "
            f"from {report.request.source}{at_commit(report.source.commit)}"
        )
        target = report.target.architecture or "unknown"
        if report.target.layers:
            target += f", {report.target.layers} layers"
        few = len(report.engines) <= 3
        engines = ", ".join(map(_engine_words, report.engines)) if few else engine_list(report.engines)
        form = "in the form of" if report.request.to else "for"
        # Of `validate` the engines are in the first line and in the table.
        self._fact(f"target {target}" if report.request.out is None else f"{form} {engines}, target {target}")
        also = ", ".join(filter(None, (s.words() for s in report.suits)))
        if also and report.outcome == "converted":
            self._line(f"OUT is right for {also}")

    def _facts(self, report: Report) -> None:
        plan, drafter = report.plan, report.drafter
        assert plan and drafter
        spec = drafter.spec
        rows: list[tuple[str, str]] = []
        origin = spec.origins["capture_points"]
        how = {"stated": "stated in config", "default": "ASSUMED: the trainer's default", "given": "given by --aux"}
        lists = {", ".join(map(str, ids)): engine for engine, ids in plan.layer_ids.items()}
        one = len(lists) == 1
        ids = " and ".join(text if one else f"{text} for {engine}" for text, engine in lists.items())
        ids = f"ids {ids}" if ids else "no ids: its default"
        rows.append(
            ("wiring", f"{describe_points(plan.spec.capture_points)}  ->  {ids}   ({how.get(origin.how, origin.how)})")
        )
        if plan.spec.capture_points != spec.capture_points:
            rows.append(
                ("", f"trained as {describe_points(spec.capture_points)}: the blocks of fc were put in layer order")
            )
        rows.append(("vocabulary", vocabulary(report)))
        moved = _moves(report)
        changed = f"values changed {len(plan.changed)}"
        if plan.changed:
            changed += " (" + ", ".join(f"{t.name}: {_changes(t)[0]}" for t in plan.changed) + ")"
        same = sum(t.name == t.source and not t.operations for t in plan.tensors)
        rows.append(("renamed", f"{count(len(plan.renamed), 'tensor')}{moved}   unchanged {same}   {changed}"))
        if plan.split:
            rows.append(("split", ", ".join(dict.fromkeys(t.source for t in plan.split)) + f" into {len(plan.split)}"))
        for name, why in list(plan.dropped.items())[: None if self.verbose else 4]:
            rows.append(("dropped", f"{name} ({why})"))
        if len(plan.dropped) > 4 and not self.verbose:
            rows.append(("", f"and {len(plan.dropped) - 4} more (-v)"))
        if plan.form is not None and plan.form.unsaid():
            rows.append(("lost", f"{', '.join(plan.form.unsaid())} ({plan.form.title} has no key for them)"))
        if plan.sharded:
            rows.append(("files", f"{len(plan.files)} shards, and their index"))
        if plan.carried:
            rows.append(("carried", ", ".join(plan.carried)))
        if plan.left:
            rows.append(("left", ", ".join(plan.left) + " (not written)"))
        if report.outcome != "planned" or report.proof is not None:
            rows += [("proof", line) for line in proof_lines(report, self.verbose)]
        self._grid(rows)

    def _wrote(self, report: Report) -> None:
        out = report.request.out
        assert out is not None
        written, seconds = size(report.bytes_written), f"{report.seconds:.1f} s"
        self._line(f"wrote {_folder(out)} ({written}, {seconds})   sealed: {out / seal.NAME}")
        if report.request.sign:
            self._line(f"signed: {out / SIGNATURE}")

    def _serve(self, report: Report) -> None:
        lines = launch_lines(report)
        if not lines:
            return
        self._gap()
        self._line("Serve it:" if report.request.out is not None else "Serve it as it lies:", "bold")
        if report.request.target is None and report.target.name:
            place = "seal" if report.read_as else "config"
            self._line(f"  # the target's name is the one in the drafter's {place}: check it")
        commands = by_command(lines)
        for command, engines in commands.items():
            if len(commands) > 1:
                self._line(f"  # {', '.join(engines)}")
            self._line(command)

    def _next(self, report: Report) -> None:
        if report.proof is not None:
            return
        if report.plan is not None and report.plan.spec.not_computed:
            why = f"{report.plan.spec.not_computed} is not computed here"
            self._line(f"\nNOT PROVED: {why}. Compare the served acceptance length with training.", "yellow")
            return
        typed = report.request.command or ("eagle3-convert", report.request.source, str(report.request.out))
        again = [*(word for word in typed if word != "--force"), "--force", "--sample", "SAMPLE.safetensors"]
        self._line("\nNOT PROVED: nothing was run. Give tokens with the target's hidden states:", "yellow")
        self._line(f"  eagle3 sample --target {shlex.quote(_target_words(report))} --greedy -o SAMPLE.safetensors")
        self._line(f"  {shlex.join(again)}")

    def _plan(self, report: Report) -> None:
        assert report.plan
        self._line("Tensors:", "bold")
        for t in report.plan.tensors:
            work = ", ".join(_changes(t)) or "copy"
            rows = f" rows {t.split.arguments['first']}..{sum(t.split.arguments.values()) - 1}" if t.split else ""
            self._line(f"  {t.name}  <-  {t.source}{rows}  {t.dtype} {list(t.shape)}  {work}")
        self._line("Config:", "bold")
        for entry in report.plan.config:
            self._line(f"  {entry.path} = {entry.value!r}   ({entry.origin})")

    # --- validate -----------------------------------------------------------------------------------------

    def validated(self, report: Report) -> None:
        """The end of `eagle3 validate`."""
        if report.drafter is None or not report.verdicts:
            self._refusal(report)
            return
        self._line(headline(report), "bold red" if report.outcome == "refused" else "bold")
        self._what(report)
        spec = report.drafter.spec
        self._grid([("wiring", describe_points(spec.capture_points)), ("vocabulary", vocabulary(report))])
        rows = told(report)
        by_engine = [
            report.verdicts[engine.requirement]
            for engine in (report.engines if self.verbose else [row.engines[-1] for row in rows])
        ]
        once: dict[tuple[str, str], Finding] = {}  # where several engines have the same
        for finding in chain.from_iterable(by_engine):
            once.setdefault((finding.code, finding.message), finding)
        # The table says what an engine cannot do that nobody asked for, or with a wiring that only the sample names.
        in_table = report.named or (report.outcome == "validated" and not report.request.engines)
        of_engines = [f for f in once.values()
                      if self.verbose or (f.severity == "error" and not f.allowed and not in_table)]  # fmt: skip
        self.findings([*report.findings, *of_engines])
        self._gap()
        proof = proof_lines(report, self.verbose) if report.proof else [unproved(report)]
        self._grid([("proof", line) for line in proof])
        if report.proof is not None and report.proof.searched and report.proof.judgement is not None:
            self._search(report, report.proof.judgement)
        self._verdicts(rows)
        self._serve(report)
        commands = [row.verdict.command for row in rows if row.verdict.command]
        if commands:
            self._gap()
            self._line("Convert it:", "bold")
        for command in commands:
            self._line("  " + shlex.join(command))

    def _verdicts(self, rows: Sequence[Row]) -> None:
        """The table; where there is no room beside the words, the reasons stand below them."""
        width = max(len("engine"), *(len(row.name) for row in rows))
        wide = max(len("verdict"), *(len(row.verdict.word) for row in rows))
        beside = self.console.width - width - wide - 6 >= _LEAST
        self._gap()
        self._line(f"  {'engine'.ljust(width)}  {'verdict'.ljust(wide)}  {'why' if beside else ''}".rstrip(), "dim")
        for above, row in zip([None, *rows], rows, strict=False):
            verdict = row.verdict
            label, style = f"  {row.name.ljust(width)}  {verdict.word}", _WORD_STYLES[verdict.word]
            repeated = above is not None and verdict.why and verdict.says_what(above.verdict)
            why = "the same" if repeated else verdict.why
            if beside or not why:
                self._hang(label, why, style, indent=width + wide + 4)
            else:
                self._line(label, style)
                self._hang("", why, indent=2)

    def held(self, held: Sequence[Held], written: Baseline | None = None) -> None:
        """What a baseline took off, or what one that was just written holds."""
        if not held:
            return
        file, accepted, lost = held[0].file, sum(h.accepted for h in held), gone(held)
        self._gap()
        if written is not None:
            codes = ", ".join(sorted({key.code for key in written.counts}))
            self._line(f"wrote {file}: {count(len(written.counts), 'entry', 'entries')} ({codes or 'nothing'})")
        else:
            shown = "" if self.verbose or not accepted else " (-v shows them)"
            self._line(f"{count(accepted, 'finding')} accepted by {file}{shown}")
        if lost:
            drop = "dropped" if written is not None else f"--write-baseline {shlex.quote(str(file))} drops them"
            occur = "no longer occurs" if len(lost) == 1 else "no longer occur"
            self._line(f"{count(len(lost), 'entry', 'entries')} of {file} {occur} ({drop}):", "yellow")
            for key in lost[: None if self.verbose else _GONE]:
                self._line(f"  {key}", "dim")
            if len(lost) > _GONE and not self.verbose:
                self._line(f"  and {len(lost) - _GONE} more (-v)", "dim")
        never = dict.fromkeys(code for h in held for code in h.never)
        if never:
            why = "nothing right could be written, or what comes after would go unseen"
            self._line(f"no baseline can accept {', '.join(never)}: {why}", "yellow")

    def _search(self, report: Report, search: Judgement) -> None:
        """What a search of the wiring found: the best, and the others against it."""
        declared = report.declared
        fitting = search.those("equal", "undecided")
        undecided = search.those("undecided")
        flags = [name for name, on in zip(NORM_FLAGS, search.of.flags, strict=True) if on]
        self._gap()
        if undecided:
            self._line(f"Cannot tell the wiring: {count(len(fitting) + 1, 'wiring')} fit these {search.positions:,} "
                       f"positions; about {search.needed:,} would tell.", "yellow")  # fmt: skip
        else:
            fit = "fits" if len(fitting) == 1 else "fit"
            others = f"; {count(len(fitting), 'other')} {fit} as well, to within what a server shows" if fitting else ""
            self._line(f"The wiring that fits the sample best{others}:", "bold")
        named = ", ".join(flags) or "none of the norm flags"
        self._hang("  best", f"{describe_points(search.of.points)}; {named}", "bold")
        shown = search.others if self.verbose else search.others[: max(5, min(len(fitting), 12))]
        if shown:
            self._line(f"  {'log-likelihood':>17}  {'z':>6}  {'':<12} per position, against the best "
                       f"({search.positions:,} positions; docs/metrics.md)", "dim")  # fmt: skip
        for r in shown:
            c = r.contrast
            verdict = {"equal": "fits as well"}.get(c.verdict, c.verdict)
            mark = "  (declared)" if r.wiring == declared else ""
            self._line(
                f"  {c.mean:+8.3f} +- {c.error:5.3f}  {c.z:+6.1f}  {verdict:<12} {r.wiring.words(search.of)}{mark}"
            )
        if declared in (search.of, *(r.wiring for r in fitting)):
            which = "the best" if declared == search.of else "among those that fit"
            self._line(f"\n  The declared wiring is {which}.")
            return
        if report.named:  # the commands that declare it are the last lines
            return
        engine = report.engines[-1].requirement if report.request.engines else ""
        words = shlex.join(convert_command(report, engine, search.of.options(declared)))
        self._line(f"\n  {'a guess' if undecided else 'declare it'}: {words}")

    # --- parts --------------------------------------------------------------------------------------------

    def failed(self, problem: Eagle3Error) -> None:
        """An error that ended the command before there was a report."""
        if problem.finding is not None:
            self.findings([problem.finding])
        else:
            self._line(f"error  {problem}", "bold red")

    def findings(self, findings: Iterable[Finding]) -> None:
        """Errors first, then what is less; what was let through comes last."""
        order = {severity: i for i, severity in enumerate(SEVERITIES)}
        for finding in sorted(findings, key=lambda f: (f.allowed or f.accepted, order[f.severity])):
            if finding.accepted and not self.verbose:
                continue
            if finding.severity == "error" or not self.quiet:
                self._finding(finding)

    def _finding(self, f: Finding) -> None:
        let_through = "allowed" if f.allowed else "accepted" if f.accepted else ""
        label = f"{let_through or f.severity} {f.code}"
        self._gap()
        self._hang(label, f.message, "dim" if let_through else _STYLES[f.severity])
        for name, text in (("where", f.where), ("found", f.found), ("expected", f.expected)):
            if text and text not in f.message:
                self._hang("", f"{name} {text}", indent=len(label), style="dim")
        if f.why:
            self._hang("", sentence(f.why), indent=len(label))
        for i, fix in enumerate([fix for fix in f.fix if fix not in self._said]):
            self._said.add(fix)
            fix = fix if i else _OR.sub("", fix)  # what it was the alternative to was said before
            if _COMMAND in fix:  # to be copied: not wrapped
                self._line(" " * (len(label) + 2) + f"-> {fix}", "green")
            else:
                self._hang("", f"-> {fix}", indent=len(label), style="green")
        if f.severity == "error" and not let_through:
            self._hang("", f"more: eagle3 explain {f.code}", indent=len(label), style="dim")

    def _grid(self, rows: Iterable[tuple[str, str]]) -> None:
        rows = list(rows)
        width = max(len(name) for name, _ in rows) + 2
        self._gap()
        last = ""
        for name, text in rows:
            self._hang("  " + (name if name != last else ""), text, "bold", indent=width)
            last = name
        self._gap()

    def _hang(self, label: str, text: str, label_style: str = "", indent: int = 0, style: str = "") -> None:
        """`label`, then `text` wrapped beside it, no word cut; no markup, no trailing blanks."""
        start = max(indent, len(label)) + 2
        wide = max(self.console.width - start, _FEWEST)
        lines = textwrap.wrap(clean(text), wide, break_on_hyphens=False, break_long_words=False) or [""]
        line = Text(label.ljust(start) if text else label, label_style)
        self._gap_above = False
        for i, part in enumerate(lines):
            line = line if i == 0 else Text(" " * start)
            line.append(part, style or "default")
            self.console.print(line, soft_wrap=True)

    def _fact(self, text: str, style: str = "") -> None:
        """One line, also where a stranger's name holds a line break."""
        self._line(" ".join(text.split("\n")), style)

    def _line(self, text: str, style: str = "") -> None:
        """What is not wrapped: paths stay whole for copying. Line breaks in it are this tool's own."""
        self._gap_above = False
        self.console.print(Text(clean(text), style), soft_wrap=True)

    def _gap(self) -> None:
        """An empty line, never two."""
        if not self._gap_above:
            self.console.print()
        self._gap_above = True


def _folder(out: Any) -> str:
    text = str(out)
    return text if text.endswith("/") else f"{text}/"


def _engine_words(engine: EngineRelease) -> str:
    if isinstance(engine, TrainerForm):
        return str(engine) + ("" if engine.proved else ", rules read from source")
    known = known_releases(engine.name)
    if engine.newer_than_known:
        return f"{engine} (newer than the rules, which end at {known[-1]})"
    tail = " (newest known)" if engine.release == known[-1] else ""
    plugin = f" with the plugin {engine.plugin}" if engine.plugin else ""
    return f"{engine}{tail}{plugin}" + ("" if engine.proved else f", {STANDINGS[engine.standing]}")


def _changes(tensor: TensorPlan) -> list[str]:
    """What is done to the values of an output tensor, in words."""
    return [o.name for o in tensor.operations if o is not tensor.split]


def _moves(report: Report) -> str:
    """The renames as prefixes: `layers.0.* -> midlayer.*`."""
    assert report.plan
    pairs = [f"{old} -> {new}" for old, new, _ in moves([t.as_json() for t in report.plan.renamed])]
    return "  " + ", ".join(pairs[:3]) if pairs else ""


def _target_words(report: Report) -> str:
    return str(report.request.target or report.target.name or "TARGET")
