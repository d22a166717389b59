"""`--mapping FILE`, and the lists of what is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from converter.errors import RulesError
from converter.report.rules import engine, engine_text
from converter.rules import loading
from converter.rules.loading import known_releases
from converter.rules.releases import all_releases
from tests.support import DRAFTERS, TARGET, Tensors, copy_of, eagle3

# A release that is not known yet, in which norm_before_residual is read and a new target class appears.
NEWER = """
engine: sglang
known: [0.5.23, 0.6.0]
releases:
  - range: ">=0.6"
    read:
      norm_before_residual: {keys: [norm_before_residual], default: false}
targets:
  - {architecture: BrandNewForCausalLM, releases: ">=0.6", id_rule: literal, default_points: "2, L//2, L-3",
     embedding: works, inner: works, last: works, detail: "", source: models/brand_new.py @ 0.6.0}
"""


def test_a_new_release_is_a_file_and_no_code(tmp_path: Path) -> None:
    rules = tmp_path / "mine.yaml"
    rules.write_text(NEWER)
    options = ("--mapping", rules, "--target", TARGET)
    done = eagle3("convert", DRAFTERS / "b_nbr", tmp_path / "out", *options, "--target-arch", "BrandNewForCausalLM")
    assert done.returncode == 0, done.stdout
    assert "for sglang 0.6.0 (newest known), rules read from source" in done.stdout
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["norm_before_residual"] is True
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 5]
    seal = json.loads((tmp_path / "out" / "eagle3-seal.json").read_text())
    assert "engines/sglang (--mapping)" in seal["rules"]
    older = eagle3("convert", DRAFTERS / "b_nbr", tmp_path / "out2", *options, "--engine", "sglang==0.5.23")
    assert older.returncode == 1
    assert "no known release of any engine" not in older.stdout


def test_names_of_ones_own_trainer(tmp_path: Path) -> None:
    """A second name for a tensor converts; the same tensor under both names does not."""
    rules = tmp_path / "mine.yaml"
    rules.write_text("dialect: speculators\ntensors: {project.weight: fc.weight}\n")
    for both, code in ((False, 0), (True, 1)):
        folder = tmp_path / f"in-{both}"

        def edit(tensors: Tensors, both: bool = both) -> None:
            tensors["project.weight"] = tensors["fc.weight"].clone() if both else tensors.pop("fc.weight")

        source = copy_of("a_plain", folder, tensors=edit)
        done = eagle3("convert", source, tmp_path / f"out-{both}", "--mapping", rules, "--target", TARGET)
        assert done.returncode == code, done.stdout
        assert ("error T102 " in done.stdout.replace("  ", " ")) == both


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("engine: sglang\nwrit: {}\n", "writ: unknown key"),
        ("engine: sglang\nread: {norm_output: {keyz: [norm_output]}}\n", "keyz"),
        ("engine: brand-new\n", "missing"),
        ("dialect: speculators\nfields: {hidden_sise: {keys: [a]}}\n", "hidden_sise"),
        ("something: else\n", "`dialect` or `engine`"),
        ("engine: [\n", "mine.yaml"),
        ("engine: sglang\nengine: vllm\n", "appears twice"),
    ],
)
def test_a_faulty_file_is_refused_with_the_place(text: str, words: str, tmp_path: Path) -> None:
    rules = tmp_path / "mine.yaml"
    rules.write_text(text)
    with pytest.raises(RulesError) as caught:
        loading.add(rules)
    assert words in str(caught.value)
    assert "0.5.23" in known_releases("sglang")[-1]


def test_a_missing_file() -> None:
    done = eagle3("validate", DRAFTERS / "a_plain", "--mapping", "nowhere.yaml")
    assert done.returncode == 2
    assert "nowhere.yaml: No such file" in done.stderr


def test_dialects_and_engines_are_listed() -> None:
    assert "speculators" in eagle3("dialects").stdout
    assert json.loads(eagle3("dialects", "--json").stdout)[0]["ids"]["rule"] == "literal"
    assert "sglang" in eagle3("engines", "list").stdout
    text = eagle3("engines", "list", "sglang==0.5.9").stdout
    assert "norm_before_fc        fixed at false, read from 0.5.17 on" in text
    [row] = [line.split() for line in text.splitlines() if line.strip().startswith("LlamaForCausalLM ")]
    assert row == ["LlamaForCausalLM", "plus_one", "crash", "works", "silently_missing"]
    [engine] = json.loads(eagle3("engines", "list", "sglang", "--json").stdout)
    assert engine["never_honoured"]["norm_before_residual"]["source"]
    assert eagle3("engines", "list", "tgi").returncode == 2


def test_every_word_of_a_list_is_explained() -> None:
    for name in loading.names("engines"):
        for release in all_releases(name):
            rows = engine(release)["targets"]
            used = {row[k] for row in rows for k in ("id_rule", "embedding", "layers", "last_layer")} - {"works"}
            legend = engine_text(release).rpartition("\n\n")[2]
            assert {line.split()[0] for line in legend.splitlines()} == used
