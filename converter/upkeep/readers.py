"""The engines whose packages can be read."""

from __future__ import annotations

from collections.abc import Mapping

from converter.upkeep import sglang, vllm
from converter.upkeep.reading import Reader

READERS: Mapping[str, Reader] = {reader.engine: reader for reader in (sglang.READER, vllm.READER)}
