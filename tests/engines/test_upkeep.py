"""`eagle3 engines check` on released packages: the mapping is what they hold, and a change of theirs is seen.

Nothing is run here: wheels are made again from the sources that environment.py fetched, and read.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.engines.environment import sources

pytestmark = pytest.mark.engines

RELEASES = (
    "sglang==0.5.9", "sglang==0.5.12", "sglang==0.5.17", "sglang==0.5.23",
    "vllm==0.18.0", "vllm==0.24.0", "vllm==0.33.0",
)  # fmt: skip
# (file, what is there, what is put there instead); every passage is there at least once
Changes = tuple[tuple[str, str, str], ...]


def wheel(
    requirement: str, folder: Path, changes: Changes = (), more: Mapping[str, str] | None = None, number: str = ""
) -> Path:
    """A wheel of a release with other text in some files, files of its own, or another number."""
    source = sources(requirement)
    name, _, release = requirement.partition("==")
    path = folder / f"{name}-{number or release}-py3-none-any.whl"
    changed: dict[str, str] = dict(more or {})
    for file, old, new in changes:
        text = changed.get(file) or (source / file).read_text(encoding="utf-8")
        assert old in text, f"{file} has no {old!r}"
        changed[file] = text.replace(old, new)
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(source.rglob("*")):
            inside = file.relative_to(source).as_posix()
            if file.suffix == ".py" and inside.startswith(f"{name}/") and inside not in changed:
                archive.write(file, inside)
        for inside, text in changed.items():
            archive.writestr(inside, text)
        [metadata] = source.glob(f"{name}-*.dist-info/METADATA")
        text = re.sub(
            r"^Version: .*$", f"Version: {number or release}", metadata.read_text("utf-8"), flags=re.MULTILINE
        )
        archive.writestr(f"{name}-{number or release}.dist-info/METADATA", text)
    return path


def eagle3(*arguments: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "converter", *map(str, arguments)], capture_output=True, text=True)


def differences(path: Path, *more: Any) -> dict[tuple[str, str], dict[str, str]]:
    """(kind, name) -> entry, of everything that is not as the mapping says."""
    done = eagle3("engines", "check", "--wheel", path, "--json", *more)
    entries = json.loads(done.stdout)["entries"]
    found = {(e["kind"], e["name"]): e for e in entries if e["kind"] not in ("same", "open")}
    assert done.returncode == (1 if found else 0), done.stderr
    return found


@pytest.mark.parametrize("requirement", RELEASES)
def test_the_mapping_is_what_the_package_holds(requirement: str, tmp_path: Path) -> None:
    done = eagle3("engines", "check", "--wheel", wheel(requirement, tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[1].startswith("as the mapping says: ")


EAGLE3 = "sglang/srt/models/llama_eagle3.py"
SGLANG: Changes = (
    # id rules: another known one, one that nothing stands for, another condition
    ("sglang/srt/models/qwen2.py", "[val + 1 for val in layer_ids]", "list(layer_ids)"),
    ("sglang/srt/models/apertus.py", "[val + 1 for val in layer_ids]", "[val + 2 for val in layer_ids]"),
    ("sglang/srt/models/glm4_moe_lite.py", "layer_ids[0] == 1", "layer_ids[0] == 2"),
    # default points
    ("sglang/srt/models/bailing_moe.py",
     "[2, num_layers // 2, num_layers - 3]", "[3, num_layers // 2 + 1, num_layers - 2]"),
    # what is captured: no last layer any more, a state too early, a name that is not followed
    ("sglang/srt/models/gpt_oss.py", "if self.end_layer in self.layers_to_capture", "if False"),
    ("sglang/srt/models/longcat_flash.py", "if i in self.layers_to_capture:", "if i + 1 in self.layers_to_capture:"),
    ("sglang/srt/models/exaone_moe.py", "= AuxHiddenStateList()", "= StateKeeper()"),
    # a class that is no target any more
    ("sglang/srt/models/glm4_moe.py", "def set_eagle3_layers_to_capture", "def set_layers"),
    # flags: another name, another default, one that was fixed
    (EAGLE3, '"norm_output"', '"emit_normed"'),
    (EAGLE3, 'getattr(config, "bias", False)', 'getattr(config, "bias", True)'),
    (EAGLE3, "self.is_input_layer = layer_id == 0", ('self.before = getattr(config, "norm_before_residual", False)\n'
     "        self.is_input_layer = layer_id == 0")),
    # limits
    (EAGLE3, "self.pp_group = get_parallel().pp_group", ("self.pp_group = get_parallel().pp_group\n"
     "        if config.num_hidden_layers != 2:\n            raise ValueError")),
    (EAGLE3, "self.fc = torch.nn.Linear(\n            self.hidden_size_in * self.num_aux_hidden_states",
     "self.fc = torch.nn.Linear(\n            self.hidden_size_in * 5"),
    # names
    (EAGLE3, '"midlayer": "layers.0"', '"midlayer": "layers.1"'),
    (EAGLE3, "self.hidden_norm = RMSNorm", "self.state_norm = RMSNorm"),
    # a draft class more, and ids under another key
    (EAGLE3, "EntryClass = [LlamaForCausalLMEagle3]",
     ("class WideForCausalLMEagle3(LlamaForCausalLMEagle3):\n    pass\n\n\n"
     "EntryClass = [LlamaForCausalLMEagle3, WideForCausalLMEagle3]")),
    ("sglang/srt/model_executor/model_runner_components/spec_aux_hidden_state.py",
     'eagle_config[\n                "eagle_aux_hidden_state_layer_ids"\n            ]', 'eagle_config["layers"]'),
)  # fmt: skip
MORE = {
    "sglang/srt/models/brand_new.py": "from sglang.srt.models.qwen3 import Qwen3ForCausalLM\n\n\n"
    "class BrandNewForCausalLM(Qwen3ForCausalLM):\n    pass\n\n\nEntryClass = BrandNewForCausalLM\n",
    "sglang/srt/models/broken.py": "EntryClass = (\n",
}


def test_every_change_of_a_package_is_reported(tmp_path: Path) -> None:
    found = differences(wheel("sglang==0.5.23", tmp_path, SGLANG, MORE))
    columns = ("id_rule", "default_points", "embedding", "inner", "last")
    # Those that inherit a setter or a model change with it; Qwen2_5_VL has a setter of its own.
    expected = {
        ("changed", "Qwen2ForCausalLM id_rule"),
        *(("cannot tell", f"ApertusForCausalLM {c}") for c in columns if c != "default_points"),
        *(("cannot tell", f"Glm4MoeLiteForCausalLM {c}") for c in columns if c != "default_points"),
        *(("changed", f"{a} default_points") for a in
          ("BailingMoEForCausalLM", "BailingMoeForCausalLM", "BailingMoeV2ForCausalLM", "SarvamMoEForCausalLM")),
        ("changed", "GptOssForCausalLM last"),
        *(("changed", f"LongcatFlashForCausalLM {c}") for c in ("embedding", "inner", "last")),
        *(("cannot tell", f"{a} {c}") for a in ("ExaoneMoEForCausalLM", "ExaoneMoeForCausalLM") for c in columns[2:]),
        ("gone", "Glm4MoeForCausalLM"),
        ("gone", "norm_output"),
        ("new", "emit_normed"),
        ("changed", "bias"),
        ("changed", "norm_before_residual"),
        ("changed", "num_hidden_layers of LlamaForCausalLMEagle3"),
        ("changed", "num_points of LlamaForCausalLMEagle3"),
        ("changed", "rename of midlayer"),
        ("gone", "in a layer: hidden_norm"),
        ("new", "in a layer: state_norm"),
        ("new", "WideForCausalLMEagle3"),
        ("gone", "eagle_config.eagle_aux_hidden_state_layer_ids"),
        ("new", "BrandNewForCausalLM"),
        ("cannot tell", "models/broken.py"),
    }  # fmt: skip
    assert set(found) == expected
    assert found["changed", "Qwen2ForCausalLM id_rule"]["package"] == "literal"
    assert found["changed", "bias"]["package"] == "default true"
    assert found["changed", "num_points of LlamaForCausalLMEagle3"]["package"] == "5"
    told = found["cannot tell", "ApertusForCausalLM id_rule"]
    assert "ids [-1] of 8 layers become [1]" in told["note"] and re.fullmatch(r"models/apertus\.py:\d+", told["place"])
    assert "id_rule plus_one" in found["new", "BrandNewForCausalLM"]["package"]


VLLM: Changes = (
    ("vllm/model_executor/models/llama_eagle3.py", '"norm_before_residual"', '"normed_residual"'),
    ("vllm/model_executor/models/qwen3_eagle3.py", '"midlayer."', '"mid."'),
    ("vllm/model_executor/models/llama_eagle3.py", '"midlayer."', '"mid."'),
    ("vllm/model_executor/models/afmoe.py", "aux_hidden_states, idx + 1,", "aux_hidden_states, idx,"),
    ("vllm/model_executor/models/apertus.py", "return hidden_states, aux_hidden_states", "return hidden_states"),
    ("vllm/model_executor/models/registry.py", '    "LlamaForCausalLMEagle3": (',
     '    "Eagle3WideForCausalLM": ("llama_eagle3", "Eagle3LlamaForCausalLM"),\n    "LlamaForCausalLMEagle3": ('),
    ("vllm/v1/worker/gpu_model_runner.py",
     'getattr(hf_config, "eagle_aux_hidden_state_layer_ids"', 'getattr(hf_config, "ids"'),
    ("vllm/v1/worker/gpu/spec_decode/eagle/eagle3_utils.py", '"eagle_aux_hidden_state_layer_ids"', '"ids"'),
)  # fmt: skip


def test_every_change_of_the_other_engine_is_reported(tmp_path: Path) -> None:
    found = differences(wheel("vllm==0.33.0", tmp_path, VLLM))
    assert found["new", "normed_residual"]["place"].startswith("model_executor/models/llama_eagle3.py:")
    assert found["gone", "norm_before_residual"]["note"] == "not by LlamaForCausalLMEagle3"
    assert ("gone", "midlayer") in found and ("new", "mid") in found
    assert found["changed", "AfmoeForCausalLM inner"]["package"] == "wrong_value"
    assert found["changed", "ApertusForCausalLM inner"]["package"] == "never_captured"
    assert ("new", "Eagle3WideForCausalLM") in found
    assert ("gone", "eagle_aux_hidden_state_layer_ids") in found
    others = {name.split(" ")[0] for _, name in found} - {"normed_residual", "norm_before_residual", "midlayer", "mid"}
    assert others == {
        "AfmoeForCausalLM", "ApertusForCausalLM", "Eagle3WideForCausalLM", "eagle_aux_hidden_state_layer_ids",
    }  # fmt: skip


def test_a_mapping_that_is_wrong_is_told(tmp_path: Path) -> None:
    row = {
        "architecture": "LlamaForCausalLM", "releases": ">=0.5.9", "id_rule": "literal",
        "default_points": "2, L//2, L-3", "embedding": "works", "inner": "works", "last": "works", "detail": "",
        "source": "nowhere",
    }  # fmt: skip
    rules = {
        "engine": "sglang",
        "targets": [row],
        "releases": [
            {"range": ">=0.5.9", "read": {"norm_output": {"keys": ["norm_output"], "default": True}}},
            {"range": ">=0.5.9", "limits": {"num_hidden_layers": {"equals": 1, "otherwise": "it stops"}}},
        ],
    }
    mapping = tmp_path / "mine.yaml"
    mapping.write_text(json.dumps(rules))
    found = differences(wheel("sglang==0.5.23", tmp_path), "--mapping", mapping)
    assert set(found) == {
        ("changed", "LlamaForCausalLM id_rule"),
        ("changed", "LlamaForCausalLM last"),
        ("changed", "norm_output"),
        ("changed", "num_hidden_layers of LlamaForCausalLMEagle3"),
    }


def test_a_newer_release_is_compared_with_the_newest_known_and_made_known(tmp_path: Path) -> None:
    newer = wheel("sglang==0.5.23", tmp_path, more={n: t for n, t in MORE.items() if "new" in n}, number="0.5.24")
    done = eagle3("engines", "check", "--wheel", newer, "--write-to", tmp_path / "next.yaml")
    assert "This release is not known: compared with the rules of 0.5.23, the newest known." in done.stdout
    assert done.returncode == 0 and "0.5.24 is known" in done.stdout, done.stdout
    assert differences(newer, "--mapping", tmp_path / "next.yaml") == {}
    listed = eagle3("engines", "check", "--wheel", newer, "--mapping", tmp_path / "next.yaml")
    assert "not known" not in listed.stdout
