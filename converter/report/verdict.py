"""The verdict of a report: in one line, and of each engine."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from converter.findings import Finding
from converter.report.fields import STORED
from converter.report.words import mentions
from converter.rules.engine import STANDINGS, EngineRelease
from converter.rules.forms import TrainerForm
from converter.rules.loading import known_releases
from converter.rules.releases import span
from converter.run import Report

Word = Literal["works", "works after conversion", "cannot", "unknown", "not looked at"]

_SERVED: Mapping[Word, str] = {"works": "as it lies", "works after conversion": "after eagle3-convert"}
_UNDECLARED = {"A301", "A104"}  # errors that are mended by declaring what a sample says
_DEPTH_UNKNOWN = "the target's last layer"


@dataclass(frozen=True)
class Verdict:
    """Of one engine.

    word     works: the output, or of `validate` the folder as it lies there, served with the launch command
    why      what speaks against it, what is missing, or under which condition it works; may be empty
    command  what makes an output for it; empty where there is nothing to make
    """

    word: Word
    why: str = ""
    command: tuple[str, ...] = ()

    def says_what(self, other: Verdict) -> bool:
        """Whether it says the same of another release."""
        return (self.word, self.why) == (other.word, other.why)

    def as_json(self) -> dict[str, Any]:
        """The `verdict` of an engine in the document."""
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


@dataclass(frozen=True)
class Row:
    """Releases of one engine of which the same is said; the command is that for the last of them."""

    engines: tuple[EngineRelease, ...]
    verdict: Verdict

    @property
    def name(self) -> str:
        """The releases in words."""
        return engine_list(list(self.engines))


def told(report: Report) -> list[Row]:
    """The verdicts as a table has them: neighbouring releases with the same are one row."""
    rows: list[Row] = []
    for engine in report.engines:
        verdict = of_engine(report, engine)
        if rows and rows[-1].engines[0].name == engine.name and verdict.says_what(rows[-1].verdict):
            rows[-1] = Row((*rows[-1].engines, engine), verdict)
        else:
            rows.append(Row((engine,), verdict))
    return rows


def _validated(report: Report, engine: EngineRelease) -> Verdict:
    stopping = _stopping(report.findings)
    if report.named and {f.code for f in stopping} <= _UNDECLARED:
        return _with_named(report, engine)
    if report.refused or engine.requirement not in report.verdicts:
        return Verdict("not looked at", f"the drafter is not in order: {_codes(stopping)}")
    errors = _stopping(report.verdicts[engine.requirement])
    if unknown := _unknown(report, errors):
        return Verdict("unknown", unknown)
    if errors:
        return Verdict("cannot", _reason(engine, errors))
    spoiled = next((f for f in report.findings if f.code == "C231"), None)
    if spoiled is not None:
        return Verdict("unknown", f"{spoiled.message}: what was trained is not to be seen in it")
    lying, how = report.as_it_is[engine.requirement], _how(report, engine)
    if lying.works:
        was_run = report.proof is not None and str(engine) in dict(report.proof.as_it_is)
        return Verdict("works", _joined("as it lies it computes what was trained" if was_run else "", how))
    depth = _depth_unknown(report)
    if not lying.against:
        return Verdict("unknown", f"as it lies it works {how}" if depth else lying.unknown)
    parts = (how, f"as it lies: {lying.against[0]}") if depth else (lying.against[0], how)
    command = tuple(convert_command(report, engine.requirement))
    return Verdict("works after conversion", _joined(*parts), command)


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def _with_named(report: Report, engine: EngineRelease) -> Verdict:
    """Of a drafter that was trained with another wiring than it states, as the sample says."""
    errors = _stopping(report.verdicts[engine.requirement])
    if unknown := _unknown(report, errors):
        return Verdict("unknown", unknown)
    if errors:
        return Verdict("cannot", f"trained as the sample says ({report.trained}): {_reason(engine, errors)}")
    declared = "its config declares no points" if "A104" in _codes(report.findings) else "its config declares another"
    why = f"the sample says what it was trained on ({report.trained}); {declared}"
    command = tuple(convert_command(report, engine.requirement, report.named))
    return Verdict("works after conversion", _joined(why, _how(report, engine)), command)


def _reason(engine: EngineRelease, errors: Sequence[Finding]) -> str:
    """Why a release cannot, in a sentence with its codes, and which ones can."""
    first = next((f for f in errors if f.code.startswith("K")), errors[0])
    said = first.message.removeprefix(f"{engine} ").replace(str(engine), "it")
    able = [fix.removeprefix("works in ").partition(":")[0] for fix in first.fix if fix.startswith("works in ")]
    nowhere = "" if able else "; ".join(fix for fix in first.fix if fix.startswith("no known release"))
    return _joined(f"{said} ({_codes(errors)})", f"works in {', '.join(able)}" if able else nowhere)


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
    agrees = ", agrees with t2d" if "t2d" in report.drafter.tensors and vocab.source in ("offsets", "ids") else ""
    return f"{spec.draft_vocab_size:,} of {spec.vocab_size:,}, {STORED[vocab.source]}{agrees}"


def convert_command(report: Report, engine: str, more: Iterable[str] = ()) -> list[str]:
    """`eagle3-convert` with what the user gave to this command; `more` outranks it."""
    instead = tuple(more)
    words = ["eagle3-convert", report.request.source, "OUT", *instead, "--engine", engine]
    return words + report.request.again(report.read_as, instead)


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
    """The verdict of validate in a line: which engines serve the drafter, how, and which do not."""
    if report.refused:
        stopping = f"Not in order: {_codes(_stopping(report.findings))}."
        mended = any(of_engine(report, e).word == "works after conversion" for e in report.engines)
        return f"{stopping} The sample says: {shlex.join(report.named)}." if mended else stopping
    by_word: dict[Word, list[EngineRelease]] = {}
    for engine in report.engines:
        by_word.setdefault(of_engine(report, engine).word, []).append(engine)
    able = [f"by {engine_list(by_word[word])} {how}" for word, how in _SERVED.items() if word in by_word]
    unsure = any(f.code == "A109" and not (f.allowed or f.accepted) for f in report.findings)
    perhaps = ", if its layer ids are read rightly (A109)" if unsure else ""
    parts = [f"Served {'; '.join(able)}{perhaps}."] if able else []
    if "cannot" in by_word:
        parts.append(f"{'Not' if able else 'Not served'} by {engine_list(by_word['cannot'])}.")
    if "unknown" in by_word:
        lacks = " without --target" if not report.target.architecture or _depth_unknown(report) else ""
        parts.append(f"Unknown{lacks}: {engine_list(by_word['unknown'])}.")
    return " ".join(parts)


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
    if _depth_unknown(report):
        return f"if all its points lie before {_DEPTH_UNKNOWN} (--target checks it)"
    words = [
        f"with the plugin {engine.plugin}" if engine.plugin else "",
        "" if engine.proved else STANDINGS[engine.standing],
    ]
    return ", ".join(filter(None, words))


def _depth_unknown(report: Report) -> bool:
    return any(f.code == "A108" for f in report.findings)
