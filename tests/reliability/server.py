"""Runs the command under the shim, each time in a fork of this process, which has read everything already.

A line of JSON in: {"words", "fault", "block", "powerless", "out", "environment"}; a line back when the run has ended or
stands still: its wait status. {"go_on": pid} after that waits again.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import sys
import tempfile
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)


def serve() -> None:
    """Returns in the fork only, which then runs the command; the server ends with its input."""
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        asked = json.loads(line)
        if "go_on" in asked:
            pid = asked["go_on"]
        else:
            pid = os.fork()
            if pid == 0:
                answers.close()
                become(asked)
                return
        _, status = os.waitpid(pid, os.WUNTRACED)
        answers.write(json.dumps([pid, status]) + "\n")
        answers.flush()
    os._exit(0)


def become(asked: dict[str, Any]) -> None:
    said = os.open(asked["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for fd, of in ((0, nothing), (1, said), (2, said)):
        os.dup2(of, fd)
    writer = importlib.import_module("converter.checkpoint.writer")
    if asked["block"]:
        writer.BLOCK = asked["block"]
    if asked["powerless"]:
        give_up_powers()
    os.environ.update(asked["environment"])
    tempfile.tempdir = None  # TMPDIR may be another
    sys.argv = ["eagle3", *map(os.fsdecode, (bytes.fromhex(word) for word in asked["words"]))]
    LIBC.fault_set(asked["fault"].encode())


def give_up_powers() -> None:
    """What root may do to any file (capabilities(7)): then modes hold for it, too."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    if LIBC.capset(header, (ctypes.c_uint32 * 6)()) != 0:
        raise OSError(ctypes.get_errno(), "capset")


if __name__ == "__main__":
    from converter import cli
    from tests.support import eagle3

    for words in json.loads(os.environ["READY"]):
        ended = eagle3(*words)
        assert ended.returncode == 0, ended
    gc.freeze()
    serve()
    try:
        cli.main()
    except SystemExit as end:  # as the interpreter ends, but for tearing down modules, which takes longer than a run
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
