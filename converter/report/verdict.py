"""The verdict of a report: in one line, and of each engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

from converter.checks.engine import span
from converter.drafter.points import as_option
from converter.findings import Finding, stops
from converter.pipeline import Report
from converter.report.words import mentions
from converter.rules.engine import STANDINGS, EngineRelease, known_releases
from converter.rules.forms import TrainerForm

Word = Literal["works", "works after conversion", "cannot", "unknown", "not looked at"]
WORDS: tuple[Word, ...] = get_args(Word)


@dataclass(frozen=True)
class Verdict:
    """Of one engine.

    why      what speaks against it, what is missing, or under which condition it works; may be empty
    command  what makes an output for it; empty where there is nothing to make
    """

    word: Word
    why: str = ""
    command: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {"word": self.word, "why": self.why, "command": list(self.command)}


def headline(report: Report) -> str:
    """The outcome in one line."""
    if report.outcome == "converted":
        allowed = dict.fromkeys(f.code for f in report.findings if f.allowed and f.severity == "error")
        return f"Converted, with {', '.join(allowed)} allowed." if allowed else _done(report)
    if report.outcome == "planned":
        return "Would be converted (--dry-run)."
    if report.request.out is None and report.drafter is not None and report.verdicts:
        return _served_by(report)
    return _refused(report)


def of_engine(report: Report, engine: EngineRelease) -> Verdict:
    """What the run says of one of its engines."""
    if report.request.out is None:
        return _validated(report, engine)
    if report.outcome == "converted":
        allowed = _about(engine, report, [f for f in report.findings if f.severity == "error" and f.allowed])
        return Verdict("cannot", f"{_codes(allowed)}: allowed") if allowed else Verdict("works", _how(report, engine))
    if report.outcome == "planned":
        again = tuple(word for word in report.request.command if word != "--dry-run")
        return Verdict("works after conversion", _how(report, engine), again)
    stopping = _stopping(report.findings)
    unknown = _unknown(report, stopping)
    about = _about(engine, report, stopping)
    if unknown or about:
        return Verdict("unknown", unknown) if unknown else Verdict("cannot", _codes(about))
    return Verdict("not looked at", f"nothing was written because of {_codes(stopping)}")


def _validated(report: Report, engine: EngineRelease) -> Verdict:
    if report.refused or engine.requirement not in report.verdicts:
        return Verdict("not looked at", f"the drafter is not in order: {_codes(_stopping(report.findings))}")
    errors = _stopping(report.verdicts[engine.requirement])
    unknown = _unknown(report, errors)
    if unknown or errors:
        return Verdict("unknown", unknown) if unknown else Verdict("cannot", _codes(errors))
    command = tuple(convert_command(report, engine.requirement))
    return Verdict("works after conversion", _how(report, engine), command)


def engine_list(engines: list[EngineRelease]) -> str:
    """`sglang 0.5.21 to 0.5.23 and vllm 0.33.0`; of a dialect's form its title."""
    forms = [str(e) for e in engines if isinstance(e, TrainerForm)]
    if forms:
        return forms[0]
    by_name: dict[str, list[str]] = {}
    for engine in engines:
        by_name.setdefault(engine.name, []).append(engine.release)
    known = {name: set(releases) <= set(known_releases(name)) for name, releases in by_name.items()}
    words = [
        f"{name} {span(name, releases) if known[name] else ', '.join(releases)}" for name, releases in by_name.items()
    ]
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def vocabulary(report: Report) -> str:
    """The vocabulary map in words."""
    assert report.drafter
    spec, vocab = report.drafter.spec, report.drafter.vocab
    if vocab is None:
        return f"{spec.draft_vocab_size:,}, the target's own, no map"
    stored = {
        "offsets": "stored as offsets",
        "ids": "stored as ids",
        "t2d": "made from t2d",
        "head": "recovered from the head's rows",
        "identity": "not stored",
    }[vocab.source]
    agrees = ", agrees with t2d" if "t2d" in report.drafter.tensors and vocab.source in ("offsets", "ids") else ""
    return f"{spec.draft_vocab_size:,} of {spec.vocab_size:,}, {stored}{agrees}"


def convert_command(report: Report, engine: str, more: Iterable[str] = ()) -> list[str]:
    """`eagle3-convert` with what the user gave to this command."""
    asked, wish = report.request, report.request.wish
    words = ["eagle3-convert", asked.source, "OUT", *more]
    aux = asked.aux is not None and "--aux" not in words
    for option, value in (
        ("--engine", engine),
        ("--target", asked.target),
        ("--target-arch", asked.target_arch),
        ("--aux", as_option(asked.aux) if aux and asked.aux else ""),
        ("--sample", wish.sample),
        ("--sample-points", as_option(wish.sample_points) if wish.sample_points else ""),
        ("--dialect", asked.dialect),
        *(("--set", f"{name}={_typed(value)}") for name, value in asked.given.items()),
        *(("--mapping", path) for path in _mappings(asked.command)),
        *(("--allow", code) for code in asked.allow),
    ):
        words += [option, str(value)] if value else []
    return [*words, *(["--allow-plugin"] if asked.allow_plugin else [])]


def _typed(value: Any) -> str:
    """A value of --set as it is typed."""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _mappings(typed: Sequence[str]) -> list[str]:
    """The rule files of the user's own in a command."""
    after = [b for a, b in pairwise(typed) if a == "--mapping"]
    return after + [word.partition("=")[2] for word in typed if word.startswith("--mapping=")]


def _refused(report: Report) -> str:
    stopping = _stopping(report.findings)
    unable = [e for e in report.engines if any(mentions(f.message, str(e)) for f in stopping)]
    engines = engine_list(unable or report.engines)
    # What an engine's own fault leads to (caused_by) is no other reason.
    by_engine = all((f.caused_by or f.code).startswith("K") for f in report.findings if f.severity == "error")
    able = f"{engines} cannot compute this drafter"
    if report.request.to:
        able = f"what --to writes of {engines} cannot hold this drafter"
    reason = able if by_engine else "the drafter is not in order"
    if {f.code for f in stopping} == {"C230"}:
        reason = "its target has no name"
    if not by_engine and any(f.code.startswith("N") for f in stopping):
        reason = "the proof failed"
    return f"{'Not valid' if report.request.out is None else 'Not converted'}: {reason}."


def _done(report: Report) -> str:
    """The verdict of a conversion, and how much of one it is."""
    into = f" into the form of {engine_list(report.engines)}" if report.request.to else ""
    if report.proof is None:
        return f"Converted{into}, not proved."
    if any(f.code == "N108" for f in report.findings):
        return f"Converted{into}; the sample is too small to confirm the wiring."
    return f"Converted{into}."


def _served_by(report: Report) -> str:
    """The verdict of validate in a line: which engines can serve the drafter, and which cannot."""
    if report.refused:
        return f"Not in order: {_codes(_stopping(report.findings))}."
    able = [e for e in report.engines if not stops(report.verdicts[e.requirement])]
    unable = [e for e in report.engines if e not in able]
    parts = [f"Can be served by {engine_list(able)}."] if able else []
    return " ".join([*parts, *([f"Not by {engine_list(unable)}."] if unable else [])])


def _unknown(report: Report, findings: Iterable[Finding]) -> str:
    """What is missing to say anything of an engine; "" where nothing is."""
    return next((f.message for f in findings if f.code == "K120" and not report.target.architecture), "")


def _about(engine: EngineRelease, report: Report, findings: Iterable[Finding]) -> list[Finding]:
    """What one of the engines cannot do, in findings that are about all of them."""
    about = [f for f in findings if (f.caused_by or f.code).startswith("K")]
    return about if len(report.engines) == 1 else [f for f in about if mentions(f.message, str(engine))]


def _stopping(findings: Iterable[Finding]) -> list[Finding]:
    return [f for f in findings if f.severity == "error" and not f.allowed]


def _codes(findings: Iterable[Finding]) -> str:
    return ", ".join(dict.fromkeys(f.code for f in findings))


def _how(report: Report, engine: EngineRelease) -> str:
    """Under which condition it works, or how that is known; "" where there is nothing to say."""
    if any(f.code == "A108" for f in report.findings):
        return "if all its points lie before the target's last layer (--target checks it)"
    words = [
        f"with the plugin {engine.plugin}" if engine.plugin else "",
        "" if engine.proved else STANDINGS[engine.standing],
    ]
    return ", ".join(filter(None, words))
