"""A push as text: what will go, then what became of it."""

from __future__ import annotations

import shlex

from converter import seal
from converter.errors import Eagle3Error, UsageError
from converter.publish.push import Push
from converter.report.text import Printer
from converter.report.words import count, first_of, size

_LEFT = 8  # files that stay behind, shown without -v


class PushPrinter(Printer):
    """Writes to a terminal or file, as `Printer` does."""

    def refused(self, push: Push) -> None:
        self._line(f"Not pushed: {push.asked.folder} may not go to {push.asked.to}.", "bold red")
        self.findings(push.findings)
        self._line("\nNothing was sent.")

    def failed(self, problem: Eagle3Error) -> None:
        """The end of a push that the Hub, the network or a file that cannot be read kept from going."""
        if not isinstance(problem, UsageError):
            self._gap()
            self._line("Not pushed.", "bold red")
        super().failed(problem)

    def planned(self, push: Push) -> None:
        """Everything that the user is asked about."""
        there = push.there
        assert there is not None
        self._line(f"Push {push.asked.folder} to {push.asked.to.repo}: {_where(push)}", "bold")
        wide = max(len(f.name) for f in push.files)
        rows = [(push.states[f.name], f"{f.name.ljust(wide)}  {size(f.size)}") for f in push.files]
        rows += [("deleted", f"{name.ljust(wide)}  of the drafter that was pushed before") for name in push.gone]
        self._grid(rows)
        sent = sum(f.size for f in push.to_send)
        total = f"{count(len(push.files), 'file')}, {size(sum(f.size for f in push.files))}"
        self._line(f"{total}, of which {size(sent)} {'is' if sent == 1 else 'are'} new to this branch")
        self._line(_proved(push), "" if push.level != "none" else "yellow")
        if push.left:
            self._line(f"stays here: {first_of(push.left, _LEFT, self.verbose)}")
        self.findings(push.findings)

    def unchanged(self, push: Push) -> None:
        self._line(f"nothing to do: {push.address} has all of it")

    def pushed(self, push: Push) -> None:
        assert push.sent is not None
        self._gap()
        self._line(f"{'opened' if push.asked.create_pr else 'pushed'} {push.sent.url}", "bold")
        self._line("\nCheck it from elsewhere:")
        self._line(f"  eagle3-validate {shlex.quote(push.address)} --target TARGET --sample SAMPLE")
        if any(f.name == seal.NAME for f in push.files):
            self._line(f"  eagle3 seal verify {shlex.quote(push.address)}")


def _where(push: Push) -> str:
    there = push.there
    assert there is not None
    branch = f"a pull request to {push.branch}" if push.asked.create_pr else f"branch {push.branch}"
    if not there.exists:
        kind = "private" if push.asked.private else "public, unless its owner's settings say otherwise"
        return f"a new repository, {kind}; {branch}"
    new = "" if there.branch else f" (new, from main at {there.commit[:7]})"
    kind = {True: "private ", False: "public ", None: ""}[there.private]
    return f"{branch}{new} of a {kind}repository"


def _proved(push: Push) -> str:
    by = "by checks run now" if push.checked else f"by its {seal.NAME}" if push.sealed else "nothing vouches for it"
    if push.level == "none":
        return f"NOT PROVED ({by}); --require none lets it go"
    return f"proved to the level {push.level}, {by} (required: {push.asked.require})"
