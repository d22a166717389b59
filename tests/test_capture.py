"""`eagle3 sample` with the real transformers on the bundled target."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from converter.capture.answer import Captured, Runner
from converter.capture.decoder import capture, find_stops
from converter.capture.make import _dtype
from converter.capture.points import choose_points
from converter.capture.tokens import Input
from converter.checkpoint.reader import open_checkpoint
from converter.cli import eagle3
from converter.drafter.target import Target
from converter.errors import InputError
from converter.fingerprint import target_fingerprint
from converter.version import __version__
from tests.support import DRAFTERS, ROOT, SAMPLE, TARGET, errors, run

CHAT = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """More only wait for each other on a target of this size, and much where other tests run beside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def sample(out: Path, *args: object, target: object = TARGET, given: str | None = None) -> Result:
    """The command in this process."""
    words = ["sample", "--target", target, "-o", out, "--device", "cpu", *args]
    result = CliRunner().invoke(eagle3, [str(w) for w in words], input=given)
    assert not result.exception or isinstance(result.exception, SystemExit), result.exception
    return result


def refused(code: int, words: str, out: Path, *args: object, **more: Any) -> None:
    result = sample(out, *args, **more)
    assert result.exit_code == code, result.output
    assert words in " ".join(result.output.split()), result.output
    assert not out.exists()


def read(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    with safe_open(file, "pt") as opened:
        return load_file(file), opened.metadata()


def edited(folder: Path, **files: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of the target with some of its JSON files changed."""
    shutil.copytree(TARGET, folder)
    for name, edit in files.items():
        document = json.loads((folder / f"{name}.json").read_text())
        edit(document)
        (folder / f"{name}.json").write_text(json.dumps(document))
    return folder


def lines(file: Path, *records: object) -> Path:
    file.write_text("".join(json.dumps(r) + "\n" for r in records))
    return file


# --- what is captured ---------------------------------------------------------------------------------------


def test_the_states_are_those_that_speculators_recorded(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    recorded = load_file(SAMPLE)
    texts = [{"text": tokenizer.decode(recorded[f"s{k}.input_ids"].tolist())} for k in range(4)]
    out = tmp_path / "sample.safetensors"
    result = sample(out, "--text", lines(tmp_path / "t.jsonl", *texts), "--points", "all", "--dtype", "float32")
    assert result.exit_code == 0, result.output
    assert "4 pieces of text x up to 192 tokens, 7 points of 64 in float32: up to 1.39 MB" in result.output
    assert "4 sequences, 764 positions that count, text, float32" in result.output
    assert f"eagle3-convert IN OUT --target {TARGET} --sample {out}" in result.output
    tensors, metadata = read(out)
    for k in range(4):
        assert torch.equal(tensors[f"s{k}.input_ids"], recorded[f"s{k}.input_ids"])
        assert torch.equal(tensors[f"s{k}.target_next"], recorded[f"s{k}.target_greedy_next"])
        assert tensors[f"s{k}.loss_mask"].tolist() == [0] + [1] * 191
        states = tensors[f"s{k}.hidden_states"]
        torch.testing.assert_close(states, recorded[f"s{k}.hidden_states"], rtol=0, atol=1e-5)
    assert metadata == {
        "format": "eagle3-convert/sample/1", "capture_points": "0 1 2 3 4 5 6", "target": str(TARGET),
        "target_architecture": "LlamaForCausalLM", "target_fingerprint": target_fingerprint(TARGET),
        "decoding": "text", "dtype": "float32", "captured": "target", "tool": f"eagle3-convert {__version__}",
    }  # fmt: skip
    assert [p.name for p in tmp_path.iterdir() if "sample" in p.name] == ["sample.safetensors"]
    report = run(DRAFTERS / "a_plain", tmp_path / "out", sample=out)
    assert errors(report) == []
    assert report.proof is not None and report.proof.scores is not None


def test_greedy_answers_are_the_target_s_choices_and_a_drafter_is_proved_on_them(tmp_path: Path) -> None:
    out = tmp_path / "greedy.safetensors"
    result = sample(out, "--greedy", "--max-new-tokens", "40", "--drafter", DRAFTERS / "g_aux024", "--limit", "6")
    assert result.exit_code == 0, result.output
    assert "100.0% of them hold the target's own first choice" in result.output
    tensors, metadata = read(out)
    assert metadata["decoding"] == "greedy" and metadata["dtype"] == "bfloat16"
    assert metadata["capture_points"] == "0 1 2 3 4 5 6"
    for k in range(6):
        tokens, mask = tensors[f"s{k}.input_ids"], tensors[f"s{k}.loss_mask"].bool()
        assert 0 < int(mask.sum()) <= 40 and not mask[0]
        assert torch.equal(tokens[1:][mask[1:]], tensors[f"s{k}.target_next"][:-1][mask[1:]])
        assert tensors[f"s{k}.hidden_states"].dtype == torch.bfloat16
    assert errors(run(DRAFTERS / "g_aux024", tmp_path / "out", sample=out)) == []


def test_sampled_answers_follow_the_seed(tmp_path: Path) -> None:
    made = {}
    for name, options in (("a", ()), ("b", ("--seed", "0")), ("c", ("--seed", "7"))):
        result = sample(tmp_path / name, "--limit", "2", "--max-new-tokens", "12", "--points", "embed,6", *options)
        assert result.exit_code == 0, result.output
        assert "2 points of 64" in result.output
        made[name] = (tmp_path / name).read_bytes()
    assert made["a"] == made["b"] != made["c"]
    assert read(tmp_path / "a")[1]["decoding"] == "sampled"


def test_nothing_counts_from_the_end_of_the_answer_on(tmp_path: Path) -> None:
    def end(config: dict[str, Any]) -> None:
        config["eos_token_id"] = [1, stop]

    first = sample(tmp_path / "first", "--greedy", "--limit", "1", "--max-new-tokens", "8", "--dtype", "float32")
    assert first.exit_code == 0, first.output
    tensors, _ = read(tmp_path / "first")
    stop = int(tensors["s0.input_ids"][-3])
    target = edited(tmp_path / "target", generation_config=end)
    options = ("--greedy", "--limit", "1", "--max-new-tokens", "8", "--dtype", "float32")
    assert sample(tmp_path / "second", *options, target=target).exit_code == 0
    again, _ = read(tmp_path / "second")
    assert int(again["s0.input_ids"][-1]) == stop and len(again["s0.input_ids"]) <= len(tensors["s0.input_ids"]) - 2
    assert again["s0.loss_mask"][-1] == 0 and again["s0.loss_mask"][-2] == 1


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, list[nn.Module]]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()
    return model, find_stops(model, 6)


class Ends:
    eos_token_id = 1


def greedy_runner(loaded: tuple[Any, list[nn.Module]]) -> Runner:
    return Runner(loaded[0], Ends(), loaded[1], (0, 3, 6), greedy=True)


def test_a_generated_token_that_is_not_the_choice_is_replaced(
    loaded: tuple[Any, list[nn.Module]], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, given = greedy_runner(loaded), Input((70, 71, 72), 12)
    right = runner.run(given, 0)
    assert right.replaced == 0 and len(right.tokens) == 15
    real, calls = Runner._generate, []

    def wrong(self: Runner, tokens: tuple[int, ...], most: int, times: int) -> tuple[int, ...]:
        calls.append(len(tokens))
        made = list(real(self, tokens, most))
        if len(calls) <= times:
            made[len(tokens) + 1] = (made[len(tokens) + 1] + 1) % 512
        return tuple(made)

    monkeypatch.setattr(Runner, "_generate", lambda *a: wrong(*a, times=1))
    once = runner.run(given, 0)
    assert once.replaced == 1 and torch.equal(once.tokens, right.tokens)
    torch.testing.assert_close(once.states, right.states, rtol=0, atol=1e-5)
    calls.clear()
    monkeypatch.setattr(Runner, "_generate", lambda *a: wrong(*a, times=99))
    always = runner.run(given, 0)
    kept = len(always.tokens)
    assert always.replaced == 5 and kept == 12  # two tokens further each time, then cut
    assert torch.equal(always.tokens, right.tokens[:kept])
    assert always.states.shape == (3, kept, 64) and len(always.target_next) == len(always.counts) == kept


def test_layers_are_found_in_wrappers_and_states_in_keywords(loaded: tuple[Any, list[nn.Module]]) -> None:
    class ByKeyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Doubles() for _ in range(2))
            self.norm = nn.Identity()

        def forward(self, states: Tensor) -> Tensor:
            for layer in self.layers:
                states = layer(hidden_states=states)
            return self.norm(states)  # type: ignore[no-any-return]

    class Doubles(nn.Module):
        def forward(self, hidden_states: Tensor) -> Tensor:
            return hidden_states.mul_(2)  # in place, as some models add

    class Wrapper(nn.Module):
        device = torch.device("cpu")

        def __init__(self) -> None:
            super().__init__()
            self.vision_tower = ByKeyword()
            self.text = ByKeyword()

        def forward(self, input_ids: Tensor, **_: Any) -> Any:
            states = self.text(input_ids[..., None].float().repeat(1, 1, 4) + 1)
            return type("Out", (), {"logits": states})

    model = Wrapper()
    stops = find_stops(model, 2)
    assert stops == [*model.text.layers, model.text.norm]
    states, _ = capture(model, stops, [0, 1, 2], (0, 1, 2))
    assert states[:, :, 0].tolist() == [[1, 2, 3], [2, 4, 6], [4, 8, 12]]
    with pytest.raises(InputError) as problem:
        find_stops(model, 3)
    assert problem.value.finding.code == "F133"
    with pytest.raises(InputError) as problem:  # a state for every token, or none
        capture(model, [*model.vision_tower.layers, model.text.norm], [0, 1, 2], (0, 2))
    assert problem.value.finding.code == "F133"


@pytest.mark.parametrize(
    ("raised", "fix"),
    [
        (torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate"), "--max-new-tokens"),
        (KeyError("cache"), "check the target"),
        (AssertionError(), "check the target"),
    ],
)
def test_a_target_that_stops_is_an_error_of_the_target(
    raised: Exception, fix: str, loaded: tuple[Any, list[nn.Module]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise raised

    runner = greedy_runner(loaded)
    monkeypatch.setattr(loaded[0], "generate", full)
    with pytest.raises(InputError) as problem:
        runner.run(Input((3, 4), 5), 0)
    assert problem.value.finding.code == "F134"
    assert fix in problem.value.finding.fix[0]


# --- what is asked for --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "layers", "points"),
    [
        ("all", 4, (0, 1, 2, 3, 4)),
        ("default", 32, (0, 1, 2, 3, 4, 15, 16, 17, 18, 28, 29, 30, 31, 32)),
        ("default", 2, (0, 1, 2)),
        ("31,embed, out:2,3", 32, (0, 3, 31)),
    ],
)
def test_points(wanted: str, layers: int, points: tuple[int, ...]) -> None:
    assert choose_points(wanted, None, Target(layers=layers)) == points


def test_points_of_a_drafter() -> None:
    assert choose_points("default", DRAFTERS / "g_aux024", Target(layers=32)) == (0, 1, 2, 3, 4, 5, 32)


def test_prompts_in_their_forms(tmp_path: Path) -> None:
    def template(config: dict[str, Any]) -> None:
        config["chat_template"] = CHAT

    target = edited(tmp_path / "target", tokenizer_config=template)
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    prompts = lines(
        tmp_path / "p.jsonl",
        {"prompt": "Hi"},
        {"messages": [*chat, {"role": "assistant", "content": "Hello"}]},
        {"id": 3, "conversations": [{"role": "user", "content": "Hi"}]},
    )
    options = ("--max-new-tokens", "2", "--points", "embed,6")
    assert sample(tmp_path / "a", "--prompts", prompts, *options, target=target).exit_code == 0
    given = [prompt_of(tmp_path / "a", k) for k in range(3)]
    assert given == ["user: Hi\nassistant:", "system: Be brief.\nuser: Hi\nassistant:", "user: Hi\nassistant:"]
    plain = (tmp_path / "p.txt", "Hi\n\n  there \n")
    plain[0].write_text(plain[1])
    assert sample(tmp_path / "b", "--prompts", plain[0], *options, "--no-chat-template", target=target).exit_code == 0
    assert [prompt_of(tmp_path / "b", k) for k in range(2)] == ["Hi", "there"]
    for name, text in (("c", plain[1]), ("d", '{"prompt": "Hi"}\n{"prompt": "there"}\n')):
        assert sample(tmp_path / name, "--prompts", "-", *options, given=text).exit_code == 0
        assert [prompt_of(tmp_path / name, k) for k in range(2)] == ["Hi", "there"]
    result = sample(tmp_path / "e", "--prompts", "-", *options, "--max-prompt-tokens", "5", given="Hi\n" + "long " * 9)
    assert result.exit_code == 0
    assert "1 prompt left out: longer than" in result.output


def prompt_of(file: Path, k: int) -> str:
    from tokenizers import Tokenizer

    tensors = load_file(file)
    ids = tensors[f"s{k}.input_ids"][tensors[f"s{k}.loss_mask"] == 0].tolist()
    if ids[-1] == 1:  # the end of the answer, which does not count either
        ids.pop()
    return str(Tokenizer.from_file(str(TARGET / "tokenizer.json")).decode(ids))


@pytest.mark.parametrize(
    ("config", "dtype"),
    [({"dtype": ["float16"], "text_config": {"torch_dtype": "bfloat16"}}, "bfloat16"), ({"dtype": {}}, "float32")],
)
def test_a_dtype_that_is_no_word_is_none(config: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert _dtype(tmp_path / "config.json") == dtype


def test_long_texts_are_cut_into_pieces(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("def f(x):\n    return x\n\n" * 40)
    result = sample(tmp_path / "a", "--text", tmp_path / "t.txt", "--max-prompt-tokens", "64", "--points", "3")
    assert result.exit_code == 0, result.output
    tensors, _ = read(tmp_path / "a")
    lengths = [len(tensors[f"s{k}.input_ids"]) for k in range(len(tensors) // 4)]
    assert len(lengths) > 2 and set(lengths[:-1]) == {64} and 1 < lengths[-1] <= 64
    assert sample(tmp_path / "b", "--text", "-", "--limit", "1", "-q", given="one two three").output == ""
    assert len(read(tmp_path / "b")[0]) == 4


# --- stopped runs -------------------------------------------------------------------------------------------

MANY = ("--limit", "5", "--max-new-tokens", "12")


def test_a_stopped_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, out = tmp_path / "whole.safetensors", tmp_path / "sample.safetensors"
    assert sample(whole, *MANY).exit_code == 0
    with monkeypatch.context() as patched:
        real, calls = Runner.run, []

        def stop(self: Runner, given: Input, seed: int) -> Captured:
            calls.append(seed)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return real(self, given, seed)

        patched.setattr(Runner, "run", stop)
        result = sample(out, *MANY)
    assert result.exit_code == 130
    assert "interrupted; 2 of 5 sequences are kept in" in result.output and "the same command goes on" in result.output
    part = tmp_path / "sample.safetensors.part"
    assert sorted(p.name for p in part.iterdir()) == ["000000.safetensors", "000001.safetensors", "request.json"]
    refused(2, "seed: 0 there, 1 asked for", out, *MANY, "--seed", "1")
    refused(2, "points:", out, *MANY, "--points", "3", "--force")
    (part / "000001.safetensors").write_bytes(b"torn")
    (part / "000002.safetensors.tmp").write_bytes(b"torn")
    result = sample(out, *MANY)
    assert result.exit_code == 0, result.output
    assert "going on: 1 of 5 sequences" in result.output
    assert out.read_bytes() == whole.read_bytes()
    assert not part.exists()


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    out, options = tmp_path / "sample.safetensors", ("--limit", "4", "--max-new-tokens", "64", "--points", "3")
    command = [sys.executable, "-m", "converter", "sample", "--target", TARGET, "-o", out, "--device", "cpu", *options]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        list(map(str, command)), cwd=ROOT, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    first, deadline = tmp_path / "sample.safetensors.part" / "000000.safetensors", time.monotonic() + 60
    while not first.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130, error
    assert "of 4 sequences are kept" in error and "Traceback" not in error
    assert not out.exists()
    result = sample(out, *options)
    assert result.exit_code == 0 and "going on: " in result.output
    assert sample(tmp_path / "whole", *options).exit_code == 0
    assert out.read_bytes() == (tmp_path / "whole").read_bytes()


# --- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--prompts", "p.txt", "--text", "t.txt"), "exclude each other"),
        (("--points", "embed,7"), "--points 7: the target has 6 layers"),
        (("--points", "two"), "--points 'two': 'two' is no capture point"),
        (("--points", "3", "--drafter", DRAFTERS / "a_plain"), "give one of them"),
        (("--device", "abacus"), "--device abacus"),
        (("--seed", "-1"), "is not in the range"),
    ],
)
def test_usage(args: tuple[object, ...], words: str, tmp_path: Path) -> None:
    refused(2, words, tmp_path / "s", *args)


def test_where_the_sample_may_not_be(tmp_path: Path) -> None:
    out = tmp_path / "s"
    out.write_text("mine")
    result = sample(out)
    assert result.exit_code == 2 and "--force replaces it" in result.output
    assert out.read_text() == "mine"
    assert sample(out, "--force", "--limit", "1", "--max-new-tokens", "2").exit_code == 0
    assert "is a folder" in sample(tmp_path).output
    refused(2, "lies in the target's folder", edited(tmp_path / "t") / "s", target=tmp_path / "t")
    (tmp_path / "u.part").mkdir()
    (tmp_path / "u.part" / "thesis.tex").write_text("years of work")
    refused(2, "is not of this tool", tmp_path / "u", "--limit", "1")
    assert (tmp_path / "u.part" / "thesis.tex").exists()


def test_two_runs_at_once(tmp_path: Path) -> None:
    import fcntl

    part = tmp_path / "s.part"
    part.mkdir()
    held = os.open(part, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        refused(2, "another run is writing", tmp_path / "s", "--limit", "1")
    finally:
        os.close(held)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("p.txt", "\n \n", "there is no prompt"),
        ("p.jsonl", '{"prompt": "a"}\n{"question": "b"}\n', "p.jsonl, line 2"),
        ("p.jsonl", '{"prompt": "a"\n', "the line is no JSON"),
        ("p.jsonl", "[1]\n", "no JSON object"),
        ("p.jsonl", '{"messages": [{"role": "assistant", "content": "a"}]}\n', "holds no chat"),
        ("p.jsonl", '{"messages": [{"role": "user", "content": "a"}]}\n', "needs the target's chat template"),
        ("p.txt", "word " * 2000, "longer than 1,023 tokens"),
    ],
)
def test_prompts_that_cannot_be_used(name: str, text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    refused(3, words, tmp_path / "s", "--prompts", tmp_path / name)
    assert "F132" in sample(tmp_path / "s", "--prompts", tmp_path / name).output


def test_inputs_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(b"\xff\xfe text")
    (tmp_path / "t.jsonl").write_text('{"content": "a"}\n')
    (tmp_path / "short.txt").write_text("a")
    refused(3, "F100", tmp_path / "s", "--prompts", tmp_path / "nowhere.txt")
    refused(3, "no UTF-8 text", tmp_path / "s", "--text", tmp_path / "t.txt")
    refused(3, "holds no text", tmp_path / "s", "--text", tmp_path / "t.jsonl")
    refused(3, "shorter than two tokens", tmp_path / "s", "--text", tmp_path / "short.txt")
    refused(2, "capture points cannot be read", tmp_path / "s", "--drafter", TARGET)
    assert list(tmp_path.glob("s*")) == [tmp_path / "short.txt"]


def test_a_chat_template_that_refuses(tmp_path: Path) -> None:
    def template(config: dict[str, Any]) -> None:
        config["chat_template"] = "{{ raise_exception('roles must alternate') }}"

    target = edited(tmp_path / "target", tokenizer_config=template)
    refused(3, "roles must alternate", tmp_path / "s", target=target)


def test_targets_that_cannot_be_used(tmp_path: Path) -> None:
    out = tmp_path / "s"
    refused(3, "F100", out, target=tmp_path / "nowhere")
    no_weights = edited(tmp_path / "no_weights")
    (no_weights / "model.safetensors").unlink()
    refused(3, "F130", out, target=no_weights)
    assert target_fingerprint(no_weights) == ""
    no_tokenizer = edited(tmp_path / "no_tokenizer")
    for file in no_tokenizer.glob("tokenizer*"):
        file.unlink()
    refused(3, "F131", out, target=no_tokenizer)

    def code(config: dict[str, Any]) -> None:
        config.update(model_type="home_made", auto_map={"AutoConfig": "c.C", "AutoModelForCausalLM": "m.M"})

    refused(3, "--trust-remote-code runs it", out, target=edited(tmp_path / "own_code", config=code))

    def no_width(config: dict[str, Any]) -> None:
        del config["hidden_size"]

    refused(3, "F113", out, target=edited(tmp_path / "no_width", config=no_width))


def test_a_disk_without_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    refused(4, "1,000 bytes free", tmp_path / "s", "--limit", "1")


def test_a_disk_that_fills_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", "s.part/000000.safetensors")

    monkeypatch.setattr("os.fsync", full)
    refused(4, "No space left on device", tmp_path / "s", "--limit", "1", "--max-new-tokens", "2")


def test_answers_that_are_all_empty(tmp_path: Path) -> None:
    def end(config: dict[str, Any]) -> None:
        config["eos_token_id"] = list(range(512))

    refused(3, "F123", tmp_path / "s", "--limit", "1", target=edited(tmp_path / "target", generation_config=end))


def test_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\n"
        "real = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'transformers' else real(name, package)\n"
    )
    command = [sys.executable, "-m", "converter", "sample", "--target", str(TARGET), "-o", str(tmp_path / "s")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 2
    assert "needs transformers, which is not installed:  pip install 'eagle3-convert[target]'" in done.stderr


# --- fingerprint --------------------------------------------------------------------------------------------


def sharded(folder: Path, weights: dict[str, Tensor]) -> Path:
    shutil.copytree(TARGET, folder, ignore=shutil.ignore_patterns("model.safetensors"))
    names = sorted(weights)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({n: weights[n] for n in part}, folder / file)
    weight_map = {n: file for file, part in halves.items() for n in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_fingerprint(tmp_path: Path) -> None:
    weights = load_file(TARGET / "model.safetensors")
    mark = target_fingerprint(TARGET)
    assert len(mark) == 64
    assert target_fingerprint(sharded(tmp_path / "shards", weights)) == mark
    for k, name in enumerate(("lm_head.weight", "model.embed_tokens.weight", "model.norm.weight")):
        changed = {n: t.clone() for n, t in weights.items()}
        changed[name][-1] += 1
        folder = sharded(tmp_path / str(k), changed)
        assert open_checkpoint(folder).sharded
        assert target_fingerprint(folder) != mark
    assert target_fingerprint(TARGET / "config.json") == ""
