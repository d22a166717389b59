"""Interrupts digests at moments that a timer chooses, while the writer tells how far it is; ends only if each gives up.

python -m tests.checkpoint.interrupted_digests FILE
"""

import signal
import sys
from pathlib import Path
from types import FrameType

from converter.checkpoint.digest import Digester
from converter.checkpoint.header import TensorInfo

ROUNDS = 1500


def interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(file: Path) -> None:
    file.write_bytes(bytes(1 << 20))
    infos = {"x": TensorInfo("U8", (1 << 20,), 0, 1 << 20)}
    signal.signal(signal.SIGALRM, interrupt)
    for round_ in range(ROUNDS):
        digester = Digester(file, 0, infos)
        try:
            signal.setitimer(signal.ITIMER_REAL, 20e-6 + round_ % 100 * 1e-6)
            while True:
                digester.advance(0)
        except KeyboardInterrupt:
            digester.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
