"""What is converted here, the command under a fault, and what must hold after it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from converter import seal
from converter.checkpoint.header import TensorInfo, build_header
from converter.checkpoint.reader import INDEX, SINGLE, open_checkpoint
from converter.signing import check_signature, open_trusted
from converter.source import SIGNATURE
from tests.support import DRAFTERS, ROOT, run
from tests.test_signing import write_key

# --- drafters -----------------------------------------------------------------------------------------------


def make_drafter(folder: Path, seed: int, scale: int = 8, vocabulary: int = 16384, shards: int = 1) -> Path:
    """The bundled drafter a_plain, `scale` times as wide and with another vocabulary, of which it drafts a quarter."""
    folder.mkdir()
    hidden, drafted = 64 * scale, vocabulary // 4
    config = json.loads((DRAFTERS / "a_plain" / "config.json").read_text())
    layer = config["transformer_layer_config"]
    for key in ("hidden_size", "intermediate_size", "head_dim"):
        layer[key] *= scale
    config["draft_vocab_size"], layer["vocab_size"] = drafted, vocabulary
    (folder / "config.json").write_text(json.dumps(config))
    ids = np.arange(drafted) * (vocabulary // drafted)
    marks = np.zeros(vocabulary, np.bool_)
    marks[ids] = True
    sizes = {64: hidden, 192: 3 * hidden, 128: 2 * hidden, 32: hidden // 2, 384: drafted, 512: vocabulary}
    values = np.random.default_rng(seed)
    tensors = {}
    for name, tensor in open_checkpoint(DRAFTERS / "a_plain").tensors.items():
        shape = tuple(sizes[n] for n in tensor.info.shape)
        if name == "d2t":
            data = (ids - np.arange(drafted)).astype("<i8").tobytes()
        elif name == "t2d":
            data = marks.tobytes()
        else:
            data = values.integers(0x3C00, 0x3D00, shape, "<u2").tobytes()  # small bfloat16 numbers
        tensors[name] = (tensor.info.dtype, shape, data)
    write_weights(folder, tensors, shards)
    return folder


def write_weights(folder: Path, tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]], shards: int) -> None:
    """One file, or shards of about as many tensors each with their index."""
    names = list(tensors)
    files = [SINGLE] if shards == 1 else [f"model-{n:05d}-of-{shards:05d}.safetensors" for n in range(1, shards + 1)]
    weight_map = {name: files[n * shards // len(names)] for n, name in enumerate(names)}
    for file in files:
        infos, cursor = {}, 0
        for name in (n for n in names if weight_map[n] == file):
            dtype, shape, data = tensors[name]
            infos[name] = TensorInfo(dtype, shape, cursor, cursor + len(data))
            cursor += len(data)
        (folder / file).write_bytes(build_header(infos, {"format": "pt"}) + b"".join(tensors[n][2] for n in infos))
    if shards > 1:
        total = sum(len(data) for _, _, data in tensors.values())
        (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))


class Drafters:
    """`drafter` is what is converted here; `old` is the sealed conversion of another one.

    size    of the largest file of weights that is written (--max-shard-size), in bytes, whole KB; 0: as they lie in IN
    signed  with a key (--sign)
    """

    def __init__(self, folder: Path, size: int = 0, signed: bool = False, **form: int) -> None:
        self.words: list[object] = ["--max-shard-size", f"{size // 1000}KB"] if size else []
        self._options: dict[str, Any] = {"target": None, "max_shard_size": size}
        self._keys = write_key(folder / "key.pem", ec.generate_private_key(ec.SECP256R1())) if signed else None
        if self._keys is not None:
            self.words += ["--sign", self._keys.private]
            self._options["sign"] = str(self._keys.private)
        self.drafter = make_drafter(folder / "in", 1, **form)
        make_drafter(folder / "another", 2, **form)
        for drafter in (self.drafter, folder / "another"):  # a file that goes along
            (drafter / "LICENSE").write_text("Apache License, Version 2.0\n" * 400)
        self.old, self.new = folder / "old", folder / "new"
        self.convert(folder / "another", self.old)
        self.convert(self.drafter, self.new)
        self.digests = {"old": weights(self.old), "new": weights(self.new)}
        self.before, self.stamps = tree(self.drafter), stamps(self.drafter)

    def convert(self, source: Path, out: Path, force: bool = False) -> None:
        """In this process, without a fault."""
        assert run(source, out, force=force, **self._options).outcome == "converted"

    def put_old(self, out: Path) -> None:
        """Hard links, so that it costs nothing; a write into them would show at the end."""
        shutil.copytree(self.old, out, copy_function=os.link)

    def state(self, out: Path) -> str:
        """absent, old or new, and whole; anything else fails."""
        if not os.path.lexists(out):
            return "absent"
        document = json.loads((out / seal.NAME).read_text())
        listed = {seal.NAME, *(f["name"] for f in document["files"])}
        if self._keys is not None:
            trusted = open_trusted(str(self._keys.public))
            assert check_signature(out, seal.must_be_signed(document), trusted, "OUT") == []
            listed.add(SIGNATURE)
        assert set(names(out)) == listed
        for file in document["files"]:
            assert (out / file["name"]).stat().st_size == file["size"]
            assert seal.sha256_of(out / file["name"]) == file["sha256"]
        [kind] = [kind for kind, digest in self.digests.items() if digest == weights(out)]
        return kind

    def check_untouched(self) -> None:
        assert stamps(self.drafter) == self.stamps

    def check_unharmed(self) -> None:
        assert tree(self.drafter) == self.before
        assert self.state(self.old) == "old"


def weights(folder: Path) -> str:
    """What the seal says of the weight files."""
    document = json.loads((folder / seal.NAME).read_text())
    return " ".join(f["sha256"] for f in document["files"] if f["name"].endswith(".safetensors"))


def stamps(folder: Path) -> dict[str, tuple[int, int, int]]:
    return {p.name: (s.st_ino, s.st_size, s.st_mtime_ns) for p in folder.iterdir() for s in [p.stat()]}


def tree(folder: Path) -> dict[str, str]:
    """Digests of all files."""
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


# --- faults -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """The `at`-th `call` on a path that matches `pattern`."""

    call: str
    pattern: str
    at: int

    def fails(self, number: int, times: int = 1, log: Path | None = None) -> str:
        return _spec(self.call, self.pattern, self.at, "fail", number, times, log)

    def kills(self, number: int) -> str:
        return _spec(self.call, self.pattern, self.at, "kill", number)


def space(pattern: str, nbytes: int, number: int) -> str:
    """The fault of a disk that takes `nbytes` more."""
    return _spec("*", pattern, 0, "space", f"{nbytes}:{number}")


def _spec(call: str, pattern: str, at: int, action: str, argument: object, times: int = 1, log: object = None) -> str:
    return "\n".join(map(str, (call, pattern, at, action, argument, times, log or "")))


@dataclass(frozen=True)
class Ended:
    """code: as a shell counts it, negative for a signal; stopped: the process that stands still, else 0."""

    code: int
    said: str
    stopped: int = 0


class Command:
    """The command `eagle3` in forks of a process that has the shim before its C library."""

    def __init__(self, folder: Path, *ready: Sequence[object], **environment: str) -> None:
        """ready  commands that are run once, so that no later one waits for an import"""
        self._said, self._logs = folder / "said", folder / "calls"
        readied = json.dumps([list(map(str, words)) for words in ready])
        environment = {
            **os.environ, "LD_PRELOAD": str(build_shim(folder)), "READY": readied,
            "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "NO_COLOR": "1", "COLUMNS": "100",
            "HF_HUB_OFFLINE": "1", **environment,
        }  # fmt: skip
        self._server = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.reliability.server"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment,
        )  # fmt: skip

    def close(self) -> None:
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(60)
        self._server.stdout.close()

    def run(
        self,
        *words: object,
        fault: str = "",
        block: int = 0,
        powerless: bool = False,
        **environment: str,
    ) -> Ended:
        """block: bytes moved at once; powerless: modes of files hold for root, too."""
        asked = {"words": [os.fsencode(os.fspath(w) if isinstance(w, Path) else str(w)).hex() for w in words]}
        return self._ask({**asked, "fault": fault, "block": block, "powerless": powerless,
                          "out": str(self._said), "environment": environment})  # fmt: skip

    def kill(self, number: int) -> None:
        """Send a signal to the run of this moment, if there is one."""
        server = self._server.pid
        for pid in Path(f"/proc/{server}/task/{server}/children").read_text().split():
            os.kill(int(pid), number)

    def go_on(self, ended: Ended) -> Ended:
        os.kill(ended.stopped, 18)  # SIGCONT
        return self._ask({"go_on": ended.stopped})

    def points(self, *words: object, under: Sequence[Path], code: int = 0, **options: Any) -> list[Point]:
        """The calls of a run without a fault, which ends with `code`, on paths in these folders."""
        found: Counter[tuple[str, str]] = Counter()
        points = []
        for folder in under:
            pattern = f"{folder}*"
            self._logs.unlink(missing_ok=True)
            ended = self.run(*words, fault=_spec("*", pattern, 0, "fail", 0, 0, self._logs), **options)
            assert ended.code == code, ended.said
            for line in self._logs.read_text(errors="surrogateescape").splitlines():
                call, _, path = line.partition(" ")
                place = (call, re.sub(r"(?<=\.eagle3-)([a-z]+-)[0-9a-f]{12}", r"\1*", path))
                found[place] += 1
                points.append(Point(*place, found[place]))
        return points

    def _ask(self, asked: dict[str, Any]) -> Ended:
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps(asked) + "\n")
        self._server.stdin.flush()
        pid, status = json.loads(self._server.stdout.readline())
        said = self._said.read_text(errors="surrogateescape")
        if os.WIFSTOPPED(status):
            return Ended(0, said, pid)
        return Ended(os.waitstatus_to_exitcode(status), said)


def build_shim(folder: Path) -> Path:
    """Fails where there is no C compiler: without it nothing here is tested."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    assert compiler, "no C compiler (cc): these tests need one (Debian: apt-get install gcc libc6-dev)"
    built = folder / "shim.so"
    source = Path(__file__).with_name("shim.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", built, source, "-ldl"], check=True, timeout=60)
    return built
