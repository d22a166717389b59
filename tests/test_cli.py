"""The commands as a user types them."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from converter.findings import CAPTURE, CONVERT, SEARCH, error
from converter.report.explain import GROUPS, SECTIONS, catalogue, markdown
from converter.report.text import Printer
from converter.run import Report
from tests.support import DRAFTERS, ROOT, SAMPLE, TARGET, copy_of, eagle3, eagle3_process, request


def imported(*args: object) -> set[str]:
    """Modules that a run of the command imports."""
    code = f"import sys; sys.argv = ['eagle3', *{list(map(str, args))!r}]\nimport converter.cli\n"
    code += "try: converter.cli.main()\nexcept SystemExit: pass\nprint('\\n'.join(sys.modules), file=sys.stderr)"
    unmeasured = {key: value for key, value in os.environ.items() if not key.startswith("COVERAGE_PROCESS")}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=True, env=unmeasured)
    return set(done.stderr.split())


HEAVY = {"torch", "transformers", "safetensors", "jsonschema", "huggingface_hub", "multiprocessing", "logging"}
PRINTING = {"numpy", "rich", "packaging", "xxhash"}


@pytest.mark.parametrize(
    ("arguments", "kept_out", "most", "most_own"),
    [
        # 140, 183 and 424 modules under Python 3.11, 20, 25 and 107 of them this package's.
        (["convert", "--help"], HEAVY | PRINTING | {"yaml"}, 180, 20),
        (["explain", "K103"], HEAVY | PRINTING, 230, 27),
        (["validate", DRAFTERS / "g_aux024", "--target", TARGET], HEAVY, 480, 110),
    ],
)  # fmt: skip
def test_a_short_command_imports_little(arguments: list[object], kept_out: set[str], most: int, most_own: int) -> None:
    """What a start costs, counted: times differ from machine to machine (make bench has them)."""
    modules = imported(*arguments)
    assert not modules & kept_out
    assert len(modules) < most
    assert len([m for m in modules if m.split(".")[0] == "converter"]) <= most_own


def test_a_conversion_without_sample_imports_no_torch(tmp_path: Path) -> None:
    modules = imported("convert", DRAFTERS / "a_plain", tmp_path / "out")
    assert (tmp_path / "out" / "config.json").exists()
    assert not modules & {"torch", "safetensors", "jsonschema", "huggingface_hub"}


def test_a_conversion_works_where_torch_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class No:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'torch': raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, No())\n"
        "import importlib.util as u\n"
        "real = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'torch' else real(name, package)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "converter", "convert", str(DRAFTERS / "a_plain"), str(tmp_path / "out")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    command[-1] = str(tmp_path / "out2")
    done = subprocess.run(
        [*command, "--sample", str(SAMPLE)], env=environment, capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 2
    assert "pip install 'eagle3-convert[torch]'" in done.stderr
    assert not (tmp_path / "out2").exists()


def test_the_summary_fits_a_screen_and_ends_with_the_launch_command(tmp_path: Path) -> None:
    done = eagle3_process("convert", DRAFTERS / "g_aux024", tmp_path / "out", "--target", TARGET, "--sample", SAMPLE)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) <= 30
    assert lines[0] == "Converted."
    assert "embedding, layer 2, layer 4  ->  ids -1, 1, 3   (stated in config)" in done.stdout
    assert "accuracy 50.1%" in done.stdout
    command = done.stdout.split("Serve it:\n")[1].replace("\\\n", " ").split()
    assert command[:3] == ["python", "-m", "sglang.launch_server"]
    assert command[3:] == [
        "--model-path", str(TARGET), "--speculative-algorithm", "EAGLE3",
        "--speculative-draft-model-path", str(tmp_path / "out"), "--speculative-num-steps", "3",
        "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4",
    ]  # fmt: skip
    assert not any(line != line.rstrip() for line in lines)


def test_steps_come_from_the_trainer_s_proposal(tmp_path: Path) -> None:
    def propose(config: dict) -> None:  # type: ignore[type-arg]
        config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] = 5

    done = eagle3("convert", copy_of("a_plain", tmp_path / "in", propose), tmp_path / "out", "--json")
    command = json.loads(done.stdout)["launch"][0]["command"]
    assert command[command.index("--speculative-num-steps") + 1] == "5"
    assert command[command.index("--speculative-num-draft-tokens") + 1] == "6"


def test_a_target_without_a_name_is_left_open_in_the_launch_command(tmp_path: Path) -> None:
    def unnamed(config: dict) -> None:  # type: ignore[type-arg]
        del config["speculators_config"]["verifier"]["name_or_path"]

    done = eagle3("convert", copy_of("a_plain", tmp_path / "in", unnamed), tmp_path / "out", "--json")
    command = json.loads(done.stdout)["launch"][0]["command"]
    assert command[command.index("--model-path") + 1] == "TARGET"


def test_a_refusal_says_what_why_and_where_it_works(tmp_path: Path) -> None:
    out = tmp_path / "my out"
    done = eagle3("convert", DRAFTERS / "l_defaults", out, "--target", TARGET)
    assert done.returncode == 1
    assert done.stdout.startswith("Not converted: sglang 0.5.23 cannot compute this drafter.\n\nerror K103  ")
    command = shlex.join(["eagle3-convert", str(DRAFTERS / "l_defaults"), str(out), "--target", str(TARGET)])
    [line] = [line for line in done.stdout.splitlines() if "-> works in vLLM" in line]
    assert line.strip() == f"-> works in vLLM 0.22.0 to 0.33.0:  {command} --engine vllm"
    assert done.stdout.endswith("\n1 error, 0 warnings. Nothing was written.\n")
    assert not out.exists()


def test_suggested_commands_hold_what_the_user_gave() -> None:
    works = f"works:  {CONVERT} --engine vllm --allow-plugin"
    general = error("K103", "it cannot", fix=(works, SEARCH, CAPTURE, "else"))

    def fixes(**options: Any) -> tuple[str, ...]:
        report = Report(request(Path("in it"), **options))
        report.add([general])
        report.add([])
        return report.findings[0].fix

    assert fixes() == (
        "works:  eagle3-convert 'in it' OUT --engine vllm --allow-plugin",
        "eagle3-validate 'in it' --sample SAMPLE --find-wiring",
        "eagle3 sample --target TARGET -o SAMPLE.safetensors",
        "else",
    )
    given = {"target": Path("a target"), "sample": Path("s"), "aux": (0, 3), "given": {"rope_theta": 1e6}}
    more = "--target 'a target' --aux embed,3 --sample s --set rope_theta=1000000"
    assert fixes(**given, out=Path("out"), force=True, allow_plugin=True, engines=("sglang",)) == (
        f"works:  eagle3-convert 'in it' out {more} --force --engine vllm --allow-plugin",
        f"eagle3-validate 'in it' {more} --allow-plugin --find-wiring",
        "eagle3 sample --target 'a target' -o SAMPLE.safetensors",
        "else",
    )


def test_what_is_suggested_once_a_sample_has_named_the_wiring() -> None:
    """A conversion declares it; a search looks again among all."""
    report = Report(request(Path("in"), aux=(0, 3)), named=("--aux", "2,4"))
    report.add([error("K103", "it cannot", fix=(f"works:  {CONVERT} --engine vllm", SEARCH))])
    assert report.findings[0].fix == (
        "works:  eagle3-convert in OUT --aux 2,4 --engine vllm",
        "eagle3-validate in --aux embed,3 --sample SAMPLE --find-wiring",
    )


def test_a_name_that_no_file_can_have_is_input_that_cannot_be_read(tmp_path: Path) -> None:
    for more in ((), ("--report", tmp_path / "r.json")):
        done = eagle3("validate", "a" * 300 + "/b", *more)
        assert done.returncode == 3 and "F100" in done.stderr, done.stderr


def test_a_long_path_is_not_cut() -> None:
    out = io.StringIO()
    Printer(out).findings([error("F100", "no", fix=(f"name it: {'/long' * 60}",))])
    assert "/long" * 60 in out.getvalue()


@pytest.mark.parametrize(
    ("words", "place", "says"),
    [
        (["validate", "x"], "converter.accepting.validate_against", "interrupted"),
        (["convert", "x", "y"], "converter.pipeline.convert", "interrupted; OUT is whole: as it was before, or new"),
        (["validate", DRAFTERS / "a_plain"], "converter.report.text.Printer.validated", "interrupted"),
        (["explain", "K103"], "converter.report.explain.explain", "interrupted"),
        (["report", "x", "-o", "y.md"], "converter.checkpoint.jsonfile.read_object", "interrupted"),
    ],
)
def test_interrupted(words: list[Any], place: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(place, interrupted)
    done = eagle3(*words)
    assert (done.returncode, done.stderr) == (130, f"error  {says}\n")


def test_json_on_stdout_and_text_on_stderr(tmp_path: Path) -> None:
    options = ("--target", TARGET, "--json", "--report", tmp_path / "r.json")
    done = eagle3_process("convert", DRAFTERS / "b_nbr", tmp_path / "out", *options)
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["outcome"] == "refused"
    assert [f["code"] for f in report["findings"]] == ["K103"]
    assert "Not converted" in done.stderr
    assert json.loads((tmp_path / "r.json").read_text()) == report


def test_a_missing_input(tmp_path: Path) -> None:
    done = eagle3_process("convert", "some/where/else", tmp_path / "out")
    assert done.returncode == 3
    assert "name a drafter on the Hub: org/name" in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(eagle3("convert", "nowhere", tmp_path / "out", "--json").stdout)["exit_code"] == 3


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--engine", "tgi"], "no rules for engine"),
        (["--aux", "embed,x"], "is no capture point"),
        (["--allow", "Z999"], "no such finding"),
        (["--min-accuracy", "0.5"], "needs --sample"),
        (["--min-accuracy", "50"], "is not in the range"),
        (["--report", "report.docx"], "written as .json, .html, .md, .sarif, .xml"),
        (["--no-such-option"], "No such option"),
        (["--sample", str(SAMPLE), "--device", "abacus"], "--device abacus"),
    ],
)
def test_usage(args: list[str], words: str, tmp_path: Path) -> None:
    done = eagle3("convert", DRAFTERS / "a_plain", tmp_path / "out", *args)
    assert done.returncode == 2, done.stdout
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
    if words not in ("is not in the range", "No such option"):  # those are click's own
        done = eagle3("convert", DRAFTERS / "a_plain", tmp_path / "out", *args, "--json")
        assert words in json.loads(done.stdout)["message"]


def test_where_out_may_not_be(tmp_path: Path) -> None:
    source = copy_of("a_plain", tmp_path / "in")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    for out, words in (
        (source, "is or holds IN"),
        (source / "out", "lies inside IN"),
        (tmp_path, "is or holds IN"),
        (tmp_path / "mine", "exists"),
    ):
        done = eagle3("convert", source, out)
        assert done.returncode == 2
        assert words in done.stderr
    assert "has no seal" in eagle3("convert", source, tmp_path / "mine", "--force").stderr
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"
    assert sorted(p.name for p in source.iterdir()) == ["config.json", "model.safetensors"]


def test_force_replaces_only_what_this_tool_wrote(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert eagle3("convert", DRAFTERS / "a_plain", out).returncode == 0
    assert eagle3("convert", DRAFTERS / "c_nbfc", out).returncode == 2
    assert eagle3("convert", DRAFTERS / "c_nbfc", out, "--force").returncode == 0
    assert json.loads((out / "config.json").read_text())["norm_before_fc"] is True
    (out / "notes.txt").write_text("mine")
    done = eagle3("convert", DRAFTERS / "a_plain", out, "--force")
    assert done.returncode == 2
    assert "notes.txt" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_converting_the_output_again_is_explained(tmp_path: Path) -> None:
    eagle3("convert", DRAFTERS / "a_plain", tmp_path / "out")
    done = eagle3("convert", tmp_path / "out", tmp_path / "out2")
    assert done.returncode == 1
    assert "is an output of eagle3-convert" in done.stdout
    assert f"give what it was made from: {DRAFTERS / 'a_plain'}" in done.stdout


def test_a_validation_has_a_verdict_for_each_release() -> None:
    done = eagle3_process("validate", DRAFTERS / "a_plain", "--engine", "sglang>=0.5.22", "--target", TARGET)
    assert done.returncode == 0
    why = "finds no hidden_size in config.json"
    assert re.search(rf"sglang 0\.5\.22 +works after conversion +{why}; rules read from source\n", done.stdout)
    assert re.search(rf"sglang 0\.5\.23 +works after conversion +{why}\n", done.stdout)
    assert "eagle3-convert " in done.stdout
    both = eagle3("validate", DRAFTERS / "l_defaults", "--target", TARGET)
    assert both.returncode == 0
    why = "norm_before_residual is true; it computes false (K103); works in vLLM 0.22.0 to 0.33.0"
    assert f"sglang 0.5.23 cannot {why}" in " ".join(both.stdout.split())
    assert re.search(r"vllm 0\.33\.0 +works\n", both.stdout)
    assert f"Serve it as it lies:\n  vllm serve {TARGET}" in both.stdout
    refused = eagle3("validate", DRAFTERS / "l_defaults", "--engine", "sglang")
    assert refused.returncode == 1


def test_a_dry_run_runs_the_sample_too(tmp_path: Path) -> None:
    options = ("--target", TARGET, "--dry-run", "--sample")
    done = eagle3("convert", DRAFTERS / "a_plain", tmp_path / "out", *options, SAMPLE, "--min-accuracy", "0.99")
    assert done.returncode == 1
    assert "N101" in done.stdout
    assert eagle3("convert", DRAFTERS / "a_plain", tmp_path / "out", *options, "nowhere").returncode == 3
    assert eagle3("convert", DRAFTERS / "a_plain", tmp_path / "out", *options, SAMPLE).returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_called_right_without_the_target_s_depth(tmp_path: Path) -> None:
    done = eagle3("convert", DRAFTERS / "a_plain", tmp_path / "out")
    assert "OUT is right" not in done.stdout
    assert "note A108" in done.stdout
    assert "# the target's name is the one in the drafter's config" in done.stdout
    with_target = eagle3("convert", DRAFTERS / "a_plain", tmp_path / "out2", "--target", TARGET)
    assert "OUT is right for sglang 0.4.9 to 0.5.23" not in with_target.stdout
    assert (
        "OUT is right for llama.cpp 10454 to 11312, sglang 0.5.11 to 0.5.23, tensorrt-llm 1.4.0rc1 (unverified), "
        "vllm 0.11.1 to 0.33.0"
    ) in with_target.stdout


def test_validate_without_a_target(tmp_path: Path) -> None:
    source = copy_of("a_plain", tmp_path / "in", lambda config: config.pop("speculators_config"))
    assert re.search(r"sglang 0\.5\.23 +unknown", eagle3("validate", source).stdout)


def test_validate_scores_the_sample() -> None:
    done = eagle3("validate", DRAFTERS / "f_qwen3", "--target", TARGET, "--sample", SAMPLE, "--json")
    scores = json.loads(done.stdout)["proof"]["scores"]
    assert scores["rows"][0] == 672
    assert scores["right"][0] == 336


def test_hostile_names_are_shown_as_escapes(tmp_path: Path) -> None:
    import torch

    def add(tensors: dict) -> None:  # type: ignore[type-arg]
        tensors["\x1b[31mred\u202e[bold]"] = torch.ones(1)

    done = eagle3("convert", copy_of("a_plain", tmp_path / "in", tensors=add), tmp_path / "out")
    assert done.returncode == 1
    assert "\x1b" not in done.stdout and "\u202e" not in done.stdout
    assert "\\u001b[31mred\\u202e[bold]" in done.stdout


# --- findings -----------------------------------------------------------------------------------------------


def raised_codes() -> set[str]:
    text = "\n".join(p.read_text() for p in (ROOT / "converter").rglob("*.py"))
    return set(re.findall(r'"([FTVACKNSH][0-9]{3})"', text))


def test_every_code_is_explained_and_every_explanation_has_its_code() -> None:
    assert set(catalogue()) == raised_codes()


@pytest.mark.parametrize("code", sorted(catalogue()))
def test_every_entry_of_the_catalogue_is_whole(code: str) -> None:
    entry = catalogue()[code]
    assert code[0] in GROUPS
    assert set(entry) <= {"title", "severity", "allow", *SECTIONS}
    assert {"title", "severity", "means"} <= set(entry)


def test_explain_in_the_terminal() -> None:
    done = eagle3_process("explain", "k103")
    assert done.returncode == 0
    assert done.stdout.startswith("K103  norm_before_residual is not honoured  (error)\n")
    assert eagle3("explain", "K999").returncode == 2


def test_docs_findings_is_generated() -> None:
    assert (ROOT / "docs" / "findings.md").read_text() == markdown()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("words", "to", "code"),
    [
        (("explain", "V203"), ">/dev/full", 4),
        (("explain", "V203"), ">&- 2>&-", 0),
        (("validate", "missing"), "2>/dev/full", 4),
        (("validate", "missing"), ">&- 2>&-", 3),
    ],
)
def test_nowhere_to_say_it(words: tuple[str, ...], to: str, code: int) -> None:
    line = f"{shlex.join([sys.executable, '-m', 'converter', *words])} {to}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == code
    assert done.stderr in ("", "error  cannot write what there is to say: No space left on device\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_verdict_that_a_full_disk_does_not_take() -> None:
    line = shlex.join([sys.executable, "-m", "converter", "validate", str(DRAFTERS / "a_plain"), "--no-scan"])
    done = subprocess.run(["sh", "-c", f"{line} >/dev/full"], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (4, "error  cannot write what there is to say: No space left on device\n")
