"""What is said of a push: one line where it may go, the findings where it may not."""

from __future__ import annotations

from collections.abc import Sequence

from converter.errors import Eagle3Error
from converter.hook.check import Looked
from converter.hook.install import Done
from converter.hook.policy import NAME as POLICY
from converter.report.text import Printer
from converter.report.words import at_commit, clean, count

_MOST = 5  # drafters that are told of one by one
_SKIP = "Push without this check: git push --no-verify"


def passed(looked: Sequence[Looked]) -> str:
    """The line for a push that may go; "" where there is no drafter in it."""
    tips = [found for found in looked if found.folder.tip]
    parts = []
    for state, words in (
        ("sealed", "sealed"),
        ("validated", f"unsealed, static checks only ({POLICY})"),
        ("allowed", f"unsealed, not checked ({POLICY})"),
        ("ignored", f"not looked at ({POLICY})"),
    ):
        here = [found for found in tips if found.state == state]
        if here:
            levels = ", ".join(dict.fromkeys(found.level for found in here))
            codes = ", ".join(sorted({code for found in here for code in found.let_through}))
            proved = f", proved: {levels}" if state == "sealed" else ""
            noun = "folder" if state == "ignored" else "drafter"
            parts.append(f"{count(len(here), noun)}, {words}{proved}" + (f", with {codes} allowed" if codes else ""))
    earlier = len(looked) - len(tips)
    if earlier:
        parts.append(f"{count(earlier, 'earlier state')} of them too")
    return clean(f"eagle3: {'; '.join(parts)}") if parts else ""


def done_words(done: Done) -> str:
    """What `eagle3 hook install` or `uninstall` did."""
    place = done.place
    lines = {
        "installed": [f"installed {place.hook}"],
        "renewed": [f"renewed {place.hook}"],
        "already": [f"{place.hook} is there already"],
        "removed": [f"removed {place.hook}"],
        "not there": [f"there is no hook of eagle3 in {place.folder}; nothing was changed"],
    }[done.what]
    if done.what == "removed" and done.beside:
        lines.append("what was there before is back")
    elif done.beside:
        run = "git did not run it (it is not executable), and nor does eagle3's" if done.inert else "it is called next"
        lines.append(f"the hook that was there is {place.before.name} now: {run}")
    if place.shared and done.what != "not there":
        lines.append(f"note: {place.shared} sends all your repositories there, so this is for all of them")
    return clean("\n".join(lines))


class HookPrinter(Printer):
    def stopped(self, looked: Sequence[Looked], pushing: bool) -> None:
        """The end of a push that may not go; `pushing` False: it was only asked whether it may."""
        held = [found for found in looked if found.stopped]
        what = "the push is stopped" if pushing else "a push would be stopped"
        self._line(f"eagle3: {what}: {len(held)} of {count(len(looked), 'drafter')} may not leave", "bold red")
        for found in held[:_MOST]:
            folder = found.folder
            earlier = "" if folder.tip else ", which the push brings along"
            place = "the top folder" if folder.path == "." else folder.path
            self._gap()
            self._line(f"{place}, in {folder.ref}{at_commit(folder.commit)}{earlier}", "bold")
            self._findings(found.findings)
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
        self.failed(problem)
        if pushing:
            self._line(f"\neagle3: the push is stopped. {_SKIP}")
