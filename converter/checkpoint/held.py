"""The tensors of a file that was written some time ago, digested as they were then."""

from __future__ import annotations

from pathlib import Path

from converter.checkpoint.reader import Checkpoint


def tensor_digests(path: Path) -> dict[str, str]:
    """XXH3-128 in hex of the bytes of each tensor of a safetensors file. Raises InputError as `read_header` does, and
    F109 where the file is cut short meanwhile.
    """
    import xxhash

    checkpoint, found = Checkpoint([path], sharded=False), {}
    for name, stored in checkpoint.tensors.items():
        fast = xxhash.xxh3_128()
        for _, block in checkpoint.blocks(stored, 0, stored.info.nbytes):
            fast.update(block)
        found[name] = fast.hexdigest()
    return found
