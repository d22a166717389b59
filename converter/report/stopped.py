"""What is said of a push that may not go."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from converter.errors import Eagle3Error
from converter.hook.check import Looked
from converter.hook.policy import NAME as POLICY
from converter.report.text import Printer
from converter.report.words import at_commit, count

_MOST = 5  # drafters, and findings of each, that are told of one by one
_SKIP = "Push without this check: git push --no-verify"


class StoppedPrinter(Printer):
    """The drafters that hold a push back, with what is wrong and how to go on."""

    def stopped(self, looked: Sequence[Looked], pushing: bool) -> None:
        """The end of a push that may not go; `pushing` False: it was only asked whether it may."""
        held = [found for found in looked if found.stopped]
        what = "the push is stopped" if pushing else "a push would be stopped"
        self._line(f"eagle3: {what}: {len(held)} of {count(len(looked), 'drafter')} may not leave", "bold red")
        for found in held[:_MOST]:
            folder = found.folder
            earlier = "" if folder.tip else ", which the push brings along"
            place = "the top folder" if folder.path == "." else folder.path.replace("\n", "\\n")
            self._gap()
            self._line(f"{place}, in {folder.ref}{at_commit(folder.commit)}{earlier}", "bold")
            self.findings(found.findings[:_MOST])
            if len(found.findings) > _MOST:
                rest = count(len(found.findings) - _MOST, "more error")
                self._line(f"\nand {rest}: {shlex.join(['eagle3-validate', folder.path])}")
        if len(held) > _MOST:
            self._line(f"\nand {len(held) - _MOST} more")
        self._gap()
        if any(not found.folder.tip for found in held):
            self._line('Every pushed commit counts: put them together (git rebase -i), or say commits = "tips" in '
                       f"{POLICY}.")  # fmt: skip
        elif pushing:
            self._line("Mend it, and put it into the commit that brought it: git commit --amend")
        if pushing:
            self._line(_SKIP)

    def unreadable(self, problem: Eagle3Error, pushing: bool) -> None:
        """The end of a push that cannot be judged."""
        if pushing:
            self._line("eagle3: the push is stopped: whether its drafters may leave cannot be told", "bold red")
        self.failed(problem)
        if pushing:
            self._line(f"\n{_SKIP}")
