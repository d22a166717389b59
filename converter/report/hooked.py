"""What is said of a push that may go, and of a hook that was put in place: lines that need no printer."""

from __future__ import annotations

from collections.abc import Sequence

from converter.hook.check import Looked
from converter.hook.install import Done
from converter.hook.policy import NAME as POLICY
from converter.report.words import clean, count


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
