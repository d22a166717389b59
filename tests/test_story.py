"""A drafter published wired wrongly, from the verdict to a folder that is served as trained.

In small what this project started from: trained on the embedding and two layers, it was fed three layers by its config,
so that nothing crashed and most drafts were rejected; and its decoder layer bore names that SGLang drops.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from converter.cli import eagle3
from converter.report.files import WRITERS
from converter.report.verdict import of_engine
from tests.support import SAMPLE, TARGET, Config, Tensors, check, copy_of
from tests.test_scores import trainer_s


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


def run(*words: object) -> Result:
    return CliRunner().invoke(eagle3, [str(word) for word in words])


def verdicts(text: str) -> dict[str, str]:
    """Engine -> verdict, from the table that ends the text."""
    return dict(re.findall(r"^  (\S+ \S+) +(works after conversion|works|cannot|unknown)\b", text, re.MULTILINE))


@pytest.mark.parametrize(("layer", "search"), [("midlayer.", ()), ("layers.0.", ("--find-wiring",))])
def test_what_the_sample_says_is_named_and_one_command_mends_it(
    layer: str, search: tuple[str, ...], tmp_path: Path
) -> None:
    published, sample = publish(tmp_path / "published", layer), ("--target", TARGET, "--sample", SAMPLE)
    found = run("validate", published, *sample, *search)
    assert found.exit_code == 1 and "error A301" in found.output
    assert "the sample says what it was trained on (embedding, layer 2, layer 4)" in " ".join(found.output.split())
    assert verdicts(found.output) == {
        "llama.cpp 11312": "works after conversion", "sglang 0.5.23": "works after conversion",
        "tensorrt-llm 1.4.0rc1": "cannot", "vllm 0.33.0": "works after conversion",
    }  # fmt: skip
    assert "A109" not in found.output and "K122" not in found.output  # of a wiring that it was not trained with
    assert "K121" in found.output and "declare it" not in found.output  # said once: in the table, in the commands
    assert ("to look among all wirings" in found.output) is not bool(search)

    [command] = [line for line in found.output.splitlines() if line.startswith("  eagle3-convert") and "sglang" in line]
    words = shlex.split(command)
    assert words[1:5] == [str(published), "OUT", "--aux", "embed,2,4"]
    done = run("convert", *(tmp_path / "out" if word == "OUT" else word for word in words[1:]))
    assert done.exit_code == 0, done.output
    assert done.output.startswith("Converted.\n")

    clean = run("validate", tmp_path / "out", *sample, "--json")
    document = json.loads(clean.stdout)
    assert clean.exit_code == 0 and document["findings"] == [] and document["proof"]["level"] == "anchored"
    assert {e["engine"]: e["verdict"]["word"] for e in document["engines"]} == {
        "llama.cpp==11312": "works", "sglang==0.5.23": "works",
        "tensorrt-llm==1.4.0rc1": "cannot", "vllm==0.33.0": "works",
    }  # fmt: skip
    right, rows, _ = trainer_s("g_aux024")
    scores = document["proof"]["scores"]
    assert (scores["right"][0], scores["rows"][0]) == (right[0], rows[0])  # as its own trainer's model computed it


def test_every_form_of_the_report_speaks_of_the_wiring_that_the_sample_names(tmp_path: Path) -> None:
    report = check(publish(tmp_path / "published", "midlayer."), sample=SAMPLE)
    for suffix, write in WRITERS.items():
        text = write(report)
        assert "K121" in text, suffix  # TensorRT-LLM has no id for the embedding
        assert "K122" not in text, suffix  # nobody has to capture layer 6
    assert "cannot capture the embedding" in WRITERS[".html"](report).partition("<h2")[0]  # beside "cannot"


def test_without_a_sample_the_folder_is_judged_as_it_declares_itself(tmp_path: Path) -> None:
    """SGLang 0.5.11 loads no layers.0.*; what both say of their points, only a sample refutes."""

    def words(layer: str) -> dict[str, str]:
        report = check(publish(tmp_path / layer, layer), "sglang==0.5.11", "sglang==0.5.23", aux=(1, 3, 5))
        return {e.release: of_engine(report, e).why for e in report.engines}

    ids = "ids 1, 3, 5 make it capture layer 2, layer 4, layer 6, not layer 1, layer 3, layer 5"
    assert words("midlayer.") == {"0.5.11": f"{ids}; rules read from source", "0.5.23": ids}
    assert words("layers.0.")["0.5.11"].startswith("tensors layers.0.* go nowhere: it looks for other names")
