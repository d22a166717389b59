"""Words and numbers for people, whatever the report is printed as."""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any


def clean(text: str) -> str:
    """Text from a stranger's file: control and direction characters become visible escapes, but for line breaks."""
    return "".join(
        c if c == "\n" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") else f"\\u{ord(c):04x}"
        for c in text
    )


def one_line(text: str) -> str:
    """A stranger's text, cleaned, without line breaks and runs of blanks."""
    return " ".join(clean(text).split())


def at_commit(commit: str) -> str:
    """What is said behind the name of something that came from the Hub."""
    return f", commit {commit[:7]}" if commit else ""


def size(count: int) -> str:
    """Bytes for people, decimal units."""
    value = float(count)
    for unit in ("B", "KB", "MB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB" if value < 999.5 else f"{value:,.0f} GB"


def launch_text(line: Mapping[str, Any]) -> str:
    """All that is typed to serve with one engine: files, commands that come first, and the server's own."""
    files = [f"  echo {shlex.quote(text)} > {shlex.quote(name)}" for name, text in line.get("files", {}).items()]
    before = [command_text({}, command) for command in line.get("before", ())]
    return "\n".join([*files, *before, command_text(line["environment"], line["command"])])


def by_command(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """What is typed to serve (`launch` of a report) -> the engines that are served so, as `--engine` takes them."""
    commands: dict[str, list[str]] = {}
    for line in lines:
        commands.setdefault(launch_text(line), []).append(line["engine"])
    return commands


def at_margin(command: str) -> str:
    """A command as `launch_text` has it, for a block of code: without the indent that it has in a terminal."""
    return command.replace("\n      ", "\n    ").strip()


def command_text(environment: Mapping[str, str], command: list[str]) -> str:
    """A shell command over several lines, one option a line."""
    words = [f"{k}={shlex.quote(v)}" for k, v in environment.items()]
    head: list[str] = []
    lines: list[str] = []
    for word in command:
        if word.startswith("--"):
            lines.append(word)
        elif lines:
            lines[-1] += f" {shlex.quote(word)}"
        else:
            head.append(shlex.quote(word))
    return " \\\n      ".join(["  " + " ".join([*words, *head]), *lines])


def count(n: int, noun: str, plural: str = "") -> str:
    """`1 tensor`, `16 tensors`."""
    return f"{n} {noun}" if n == 1 else f"{n} {plural or noun + 's'}"


def first_of(names: Sequence[str], most: int, every: bool = False) -> str:
    """`a, b and 3 more (-v)`; with `every`, as -v asks for, all of them."""
    shown = names if every else names[:most]
    return ", ".join(shown) + (f" and {len(names) - len(shown)} more (-v)" if len(shown) < len(names) else "")


def mentions(message: str, release: str) -> bool:
    """Whether a message is about `sglang 0.5.2`, and not about a release whose name begins like it."""
    return re.search(rf"\b{re.escape(release)}(?!\.?\w)", message) is not None


def sentence(text: str) -> str:
    """With a capital and a full stop; a name that begins it (vLLM, llama.cpp, norm_output) stays as it is."""
    first = text.split()[0]
    begun = text[0].upper() + text[1:] if first.isalpha() and first.islower() else text
    return begun if begun.endswith(".") else f"{begun}."
