"""Which states the running target hands out, held against those that the drafter was trained on.

SGLang hands its draft model nothing of the target but the embedding. What its `set_eagle3_layers_to_capture` made of
the ids stands only in the target itself, so that is looked up among the modules of this process: the draft worker is
made in the target's, after it (speculative/eagle_worker.py @ 0.5.6 to 0.5.12, eagle_worker_v2.py @ 0.5.23).
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from typing import Any

from torch import nn

_SETTER = "set_eagle3_layers_to_capture"
_IDS = "layers_to_capture"


class CapturedPoints:
    """What the models in this process capture that are no drafter; found once, since a frozen heap hides them later.

    drafters   classes that have the setter by inheritance
    """

    def __init__(self, drafters: tuple[type, ...]) -> None:
        found = [o for o in gc.get_objects() if _is_target(type(o), drafters)]
        self._targets = [weakref.ref(target) for target in found]

    def lists(self) -> set[tuple[int, ...]]:
        """The layers before which a state is taken, which are the capture points; none before the ids are set."""
        targets = [target for ref in self._targets if (target := ref()) is not None]
        return {tuple(sorted(ids)) for target in targets for ids in _ids(target.modules()) if ids}


def _is_target(kind: type, drafters: tuple[type, ...]) -> bool:
    # By type: isinstance() asks every odd object in the process for its __class__.
    return issubclass(kind, nn.Module) and hasattr(kind, _SETTER) and not issubclass(kind, drafters)


def _ids(modules: Iterable[nn.Module]) -> Iterable[Any]:
    return [ids for module in modules if (ids := module.__dict__.get(_IDS)) is not None]
