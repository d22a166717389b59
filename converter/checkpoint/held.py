"""The tensors of a file that was written some time ago, digested as they were then."""

from __future__ import annotations

from pathlib import Path

from converter.checkpoint.header import read_header
from converter.checkpoint.jsonfile import unreadable
from converter.errors import InputError
from converter.findings import error

_BLOCK = 1 << 20  # bytes digested at once: small enough for a core's cache


def tensor_digests(path: Path) -> dict[str, str]:
    """XXH3-128 in hex of the bytes of each tensor of a safetensors file. Raises InputError as `read_header` does, and
    F109 where the file is cut short meanwhile.
    """
    import xxhash

    header, found = read_header(path), {}
    block = memoryview(bytearray(_BLOCK))
    try:
        with path.open("rb", buffering=0) as file:
            for name, info in header.tensors.items():
                fast, left = xxhash.xxh3_128(), info.nbytes
                file.seek(header.data_start + info.start)
                while left:
                    got = file.readinto(block[: min(_BLOCK, left)])
                    if not got:
                        raise InputError(
                            error("F109", f"{path.name} became shorter while it was read", where=str(path))
                        )
                    fast.update(block[:got])
                    left -= got
                found[name] = fast.hexdigest()
    except OSError as problem:
        raise unreadable(path, problem) from problem
    return found
