"""A drafter published wired wrongly, from the verdict to a folder that is served as trained.

In small what this project started from: trained on the embedding and two layers, its config fed it three layers, each one
further on, so that nothing crashed and most drafts were rejected; and its layer bore names that SGLang drops.
"""

from __future__ import annotations

import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from converter.cli import eagle3
from converter.pipeline import Report
from converter.report.document import as_json
from converter.report.text import Printer
from tests.support import DATA, DRAFTERS, SAMPLE, TARGET, Config, Tensors, check, codes, copy_of

TRAINED = (0, 2, 4)  # what g_aux024 was trained on
LAYERS = ("midlayer.", "layers.0.")


def publish(folder: Path, layer: str) -> Path:
    """g_aux024 as SGLang's drafters are laid out, with ids that mean layers 2, 4 and 6 of its target."""

    def config(document: Config) -> None:
        inner = document.pop("transformer_layer_config")
        kept = {"draft_vocab_size": document["draft_vocab_size"], "dtype": document["dtype"]}
        document.clear()
        wanted = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                  "head_dim", "vocab_size", "hidden_act", "rms_norm_eps", "max_position_embeddings", "model_type",
                  "rope_parameters")  # fmt: skip
        ids = {"eagle_aux_hidden_state_layer_ids": [1, 3, 5], "use_aux_hidden_state": True}
        document |= {key: inner[key] for key in wanted} | kept
        document |= {"architectures": ["LlamaForCausalLMEagle3"], "eagle_config": ids, "tie_word_embeddings": False}

    def tensors(weights: Tensors) -> None:
        for name in [n for n in weights if n.startswith("layers.0.")]:
            weights[layer + name.removeprefix("layers.0.")] = weights.pop(name)

    return copy_of("g_aux024", folder, config, tensors)


def shown(report: Report) -> str:
    text = io.StringIO()
    Printer(text).validated(report)
    return text.getvalue()


def words(report: Report) -> dict[str, str]:
    return {row["engine"]: row["verdict"]["word"] for row in as_json(report)["engines"]}


def trained_accuracy() -> float:
    """Step 0 of what the trainer's own model computed on the sample, where the sample counts."""
    from converter.drafter.vocab import VocabularyMap  # noqa: F401

    sample, recorded = load_file(SAMPLE), load_file(DATA / "expected" / "g_aux024.safetensors")
    raise NotImplementedError((sorted(sample), sorted(recorded)))
