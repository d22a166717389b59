"""Interrupts what has threads at moments that a timer chooses; ends only if each time they are given up, and if nothing
but the interrupt is raised.

python -m tests.checkpoint.interrupted_threads digests|scan FOLDER
"""

import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

import numpy as np
from safetensors.numpy import save_file

from converter.checkpoint import finite
from converter.checkpoint.digest import Digester
from converter.checkpoint.header import TensorInfo
from converter.checkpoint.reader import Checkpoint, open_checkpoint

ROUNDS = 1500


def interrupt(number: int, frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGINT)


def digests(file: Path) -> None:
    """While they begin and while the writer tells how far it is."""
    digester = None
    try:
        digester = Digester(file, 0, {"x": TensorInfo("F32", (1 << 18,), 0, 1 << 20)})
        while True:
            digester.advance(0)
    finally:
        if digester is not None:
            digester.stop()


def scan(checkpoint: Checkpoint) -> None:
    for _ in range(20):  # Python drops an interrupt that comes while it calls back for an object that is gone
        finite.scan(checkpoint, ["x"])


def main(what: str, folder: Path) -> None:
    file = folder / "model.safetensors"
    save_file({"x": np.zeros(1 << 18, dtype=np.float32)}, file)
    finite._RUN = 1 << 14  # many runs in a small file
    work: Callable[[], None] = {
        "digests": partial(digests, file),
        "scan": partial(scan, open_checkpoint(folder)),
    }[what]
    step = {"digests": 2e-6, "scan": 20e-6}[what]
    signal.signal(signal.SIGALRM, interrupt)
    for round_ in range(ROUNDS):
        try:
            signal.setitimer(signal.ITIMER_REAL, 20e-6 + round_ % 150 * step)
            work()
        except KeyboardInterrupt:
            continue


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
