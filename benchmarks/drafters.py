"""Drafters of random values as the speculators library saves them, for the timings. Standard library only."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

POINTS = (2, 30, 58)
ENGINE = "sglang==0.5.23"
TARGET = "KimiK25ForConditionalGeneration"


@dataclass(frozen=True)
class Shape:
    """A drafter's sizes; the defaults of the command line keep `make bench` to a few minutes."""

    hidden: int
    intermediate: int
    heads: int
    vocab: int
    draft_vocab: int
    with_embedding: bool
    points: tuple[int, ...]

    def tensors(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Name -> dtype and shape, in the order of the file (one layer, as many key and value heads as heads)."""
        h, i, width = self.hidden, self.intermediate, 2 * self.hidden
        shapes = {
            "d2t": ("I64", (self.draft_vocab,)),
            "embed_tokens.weight": ("BF16", (self.vocab, h)),
            "fc.weight": ("BF16", (h, len(self.points) * h)),
            "layers.0.hidden_norm.weight": ("BF16", (h,)),
            "layers.0.input_layernorm.weight": ("BF16", (h,)),
            "layers.0.mlp.down_proj.weight": ("BF16", (h, i)),
            "layers.0.mlp.gate_proj.weight": ("BF16", (i, h)),
            "layers.0.mlp.up_proj.weight": ("BF16", (i, h)),
            "layers.0.post_attention_layernorm.weight": ("BF16", (h,)),
            "layers.0.self_attn.k_proj.weight": ("BF16", (h, width)),
            "layers.0.self_attn.o_proj.weight": ("BF16", (h, h)),
            "layers.0.self_attn.q_proj.weight": ("BF16", (h, width)),
            "layers.0.self_attn.v_proj.weight": ("BF16", (h, width)),
            "lm_head.weight": ("BF16", (self.draft_vocab, h)),
            "norm.weight": ("BF16", (h,)),
            "t2d": ("BOOL", (self.vocab,)),
        }
        if not self.with_embedding:
            del shapes["embed_tokens.weight"]
        return shapes

    @property
    def nbytes(self) -> int:
        return sum(nbytes_of(*tensor) for tensor in self.tensors().values())

    def config(self) -> dict[str, Any]:
        """As speculators 0.9.0 writes it."""
        return {
            "architectures": ["Eagle3DraftModel"],
            "draft_vocab_size": self.draft_vocab,
            "dtype": "bfloat16",
            "eagle_aux_hidden_state_layer_ids": list(self.points),
            "embed_requires_grad": False,
            "fc_norm": False,
            "norm_before_fc": False,
            "norm_before_residual": False,
            "norm_output": False,
            "speculators_config": {
                "algorithm": "eagle3",
                "default_proposal_method": "greedy",
                "proposal_methods": [
                    {
                        "accept_tolerance": 0.0,
                        "proposal_type": "greedy",
                        "speculative_tokens": 3,
                        "verifier_accept_k": 1,
                    }
                ],
                "verifier": {"architectures": [TARGET], "name_or_path": "target"},
            },
            "speculators_model_type": "eagle3",
            "speculators_version": "0.9.0",
            "target_hidden_size": None,
            "tie_word_embeddings": False,
            "transformer_layer_config": {
                "attention_bias": False,
                "attention_dropout": 0.0,
                "head_dim": self.hidden // self.heads,
                "hidden_act": "silu",
                "hidden_size": self.hidden,
                "initializer_range": 0.02,
                "intermediate_size": self.intermediate,
                "layer_types": ["full_attention"],
                "max_position_embeddings": 262144,
                "mlp_bias": False,
                "model_type": "llama",
                "num_attention_heads": self.heads,
                "num_hidden_layers": 1,
                "num_key_value_heads": self.heads,
                "pretraining_tp": 1,
                "rms_norm_eps": 1e-05,
                "rope_parameters": {"rope_theta": 50000.0, "rope_type": "default"},
                "tie_word_embeddings": False,
                "use_cache": True,
                "vocab_size": self.vocab,
            },
            "transformers_version": "5.19.0",
        }


def nbytes_of(dtype: str, shape: Sequence[int]) -> int:
    count = {"BF16": 2, "I64": 8, "BOOL": 1}[dtype]
    for n in shape:
        count *= n
    return count


def write_drafter(folder: Path, shape: Shape, hole: bool = False) -> Path:
    """Write config.json and model.safetensors; returns the latter's path.

    hole   nothing is written but the header and the vocabulary map: the rest is a hole in a sparse file
    """
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(shape.config(), indent=2), encoding="utf-8")
    rng = random.Random(0)
    kept = sorted(rng.sample(range(shape.vocab), shape.draft_vocab))
    values = b"" if hole else _finite_bf16(rng)
    weights = folder / "model.safetensors"
    with weights.open("xb") as file:
        file.write(_header(shape))
        for name, (dtype, size) in shape.tensors().items():
            if name == "d2t":
                file.writelines((full - draft).to_bytes(8, "little") for draft, full in enumerate(kept))
            elif name == "t2d":
                marks = bytearray(shape.vocab)
                for full in kept:
                    marks[full] = 1
                file.write(marks)
            elif hole:
                file.seek(nbytes_of(dtype, size), os.SEEK_CUR)
            else:
                _write_values(file, values, nbytes_of(dtype, size), rng.randrange(_VALUES))
        file.truncate(file.tell())
    return weights


def _header(shape: Shape) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    cursor = 0
    for name, (dtype, size) in shape.tensors().items():
        end = cursor + nbytes_of(dtype, size)
        header[name] = {"dtype": dtype, "shape": size, "data_offsets": [cursor, end]}
        cursor = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


_VALUES = 1_000_003  # a prime, so that no two rows of a tensor are alike though the values come again


def _finite_bf16(rng: random.Random) -> bytes:
    """The bits of random values; with the highest bit of the exponent cleared none is infinite or not a number."""
    values = bytearray(rng.randbytes(2 * _VALUES))
    values[1::2] = values[1::2].translate(bytes(byte & 0b1011_1111 for byte in range(256)))
    return bytes(values)


def _write_values(file: BinaryIO, values: bytes, count: int, first: int) -> None:
    """`count` bytes of `values`, from the value `first` on and round again."""
    start = 2 * first
    while count:
        count -= file.write(memoryview(values)[start : start + count])
        start = 0
