"""A drafter is a stranger's file: what somebody who means harm can write into one, each case by name.

Every case ends in an error that a user can act on, or in nothing: no traceback, no hang,
no memory or files beyond what a
small file may cost,
no code run. Files that are cut or damaged by accident are in tests/checkpoint and tests/test_inputs.py,
words in pages and reports in tests/test_report_html.py and tests/test_report_files.py; tests/fuzz tries all of it at
random.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import resource
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from converter.checkpoint.header import parse_header
from converter.errors import InputError, RulesError
from converter.findings import stops
from converter.pipeline import convert, look
from converter.report.document import as_json
from converter.rules import loading
from converter.rules.names import wrapper_of
from converter.rules.recognition import recognise, whose_tensors
from converter.run import Request
from converter.tokenizer import read_tokenizer
from tests.fuzz.guard import Breach, watched
from tests.support import (
    DRAFTERS,
    PRODUCERS,
    ROOT,
    TARGET,
    Config,
    check,
    codes,
    copy_of,
    eagle3,
    errors,
    quiet,
    request,
    run,
)

SECONDS, MEGABYTES = 5, 512
Edit = Callable[[Config], object]


def drafter(folder: Path, edit: Edit | None = None) -> Path:
    return copy_of("a_plain", folder, edit)  # type: ignore[arg-type]


def refused(source: Path, **options: Any) -> str:
    """The code of the error that ends the look."""
    with pytest.raises(InputError) as caught:
        check(source, "vllm", **options)
    finding = caught.value.finding
    assert finding.fix or finding.expected or finding.found or finding.code == "F100"
    return finding.code


def limited(*arguments: object) -> subprocess.CompletedProcess[str]:
    """`eagle3 ARGUMENTS` in a process that ends at SECONDS of CPU time and MEGABYTES of memory."""

    def limits() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (MEGABYTES << 20, MEGABYTES << 20))

    command = [sys.executable, "-m", "converter", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NO_COLOR": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, preexec_fn=limits, env=environment, timeout=60
    )


# --- JSON -----------------------------------------------------------------------------------------------------


def nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


@pytest.mark.parametrize("depth", [101, 400, 900, 100_000])
def test_deep_json_is_refused_before_anything_walks_it(depth: int, tmp_path: Path) -> None:
    source = drafter(tmp_path / "in")
    (source / "config.json").write_bytes(nested(depth))
    assert refused(source) == "F110"
    assert refused(DRAFTERS / "a_plain", target=source) == "F110"
    for command in (("validate", DRAFTERS / "a_plain", "--baseline", source / "config.json"),
                    ("report", source / "config.json", "-o", tmp_path / "x.md")):  # fmt: skip
        done = eagle3(*command)
        assert done.returncode in (2, 3) and "nested too deeply" in done.stderr


def test_json_as_deep_as_is_allowed_is_walked(tmp_path: Path) -> None:
    source = drafter(tmp_path / "in", lambda config: config.update(more=json.loads(nested(98))))
    assert codes(check(source, "vllm", target=None)) == ["A108", "C204"]


_NO_JSON = (
    '{"a": NaN}', '{"a": Infinity}', '{"a": -Infinity}', '{"a": 1e999}', '{"a": 1, "a": 2}', '{"a": 1, "\\u0061": 2}',
    '{"a": "\\ud800"}', "[" * 10, '{"a": ' + "9" * 5000 + "}",
)  # fmt: skip


@pytest.mark.parametrize("text", _NO_JSON)
def test_what_no_strict_parser_takes(text: str, tmp_path: Path) -> None:
    source = drafter(tmp_path / "in")
    (source / "config.json").write_text(text)
    assert refused(source) == "F110"


def test_keys_that_differ_in_case_are_other_keys(tmp_path: Path) -> None:
    source = drafter(tmp_path / "in", lambda config: config.update(Fc_Norm=True, FC_NORM=[1]))
    report = check(source, "vllm", target=None)
    assert [f.where for f in report.findings if f.code == "C204"] == ["Fc_Norm", "FC_NORM"]


def test_tensor_names_that_differ_in_case_are_other_tensors(tmp_path: Path) -> None:
    def twins(tensors: dict[str, Any]) -> None:
        tensors["FC.weight"] = tensors["fc.weight"].clone()
        tensors["D2T"] = tensors["d2t"].clone()

    report = check(copy_of("a_plain", tmp_path / "in", tensors=twins), "vllm", target=None)
    assert sorted(f.where for f in report.findings if f.code == "T101") == ["D2T", "FC.weight"]


@pytest.mark.parametrize("where", ["key", "value", "deep value", "keys together", "tokenizer key"])
def test_ten_megabytes_of_text_are_not_told(where: str, tmp_path: Path) -> None:
    long = "x" * 10_000_000
    more: dict[str, Any] = {
        "key": {long: 1},
        "value": {"speculators_version": long},
        "deep value": {"a": [[{"b": long}]]},
    }
    for _ in range(90):
        more["keys together"] = {"k" * 4000: more.get("keys together", 1)}  # dotted in findings and the seal
    source = drafter(tmp_path / "in", lambda config: config.update(more.get(where, {})))
    if where != "tokenizer key":
        with pytest.raises(InputError) as caught:
            check(source, "vllm")
        assert caught.value.finding.code == "F110" and len(str(caught.value)) < 500
        return
    (source / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {long: 1}}}))
    assert len(json.dumps(as_json(check(source, "vllm")))) < 100_000


def test_a_chat_template_may_be_long(tmp_path: Path) -> None:
    long = "x" * 1_000_000  # in the config of a target, or of a drafter that took it from there
    source = drafter(tmp_path / "in", lambda config: config.update(chat_template=long))
    target = Path(shutil.copytree(TARGET, tmp_path / "target"))
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "chat_template": long}))
    report = check(source, "vllm", target=target)
    assert not errors(report) and len(json.dumps(as_json(report))) < 100_000
    assert run(source, tmp_path / "out", target=target).outcome == "converted"
    assert sum(p.stat().st_size for p in (tmp_path / "out").iterdir()) < 500_000


def test_many_unknown_keys_are_counted(tmp_path: Path) -> None:
    source = drafter(tmp_path / "in", lambda config: config.update({f"key{i}": i for i in range(20_000)}))
    done = limited("validate", source, "--engine", "vllm", "--report", tmp_path / "r.html")
    assert done.returncode == 0 and "19,900 more config keys" in done.stdout
    assert (tmp_path / "r.html").stat().st_size < 1_000_000


# --- headers --------------------------------------------------------------------------------------------------


def header_of(count: int) -> bytes:
    entry = '"t%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    return ("{" + ",".join(entry % i for i in range(count)) + "}").encode()


def test_a_million_tensors_are_refused_before_they_are_parsed() -> None:
    text, started = header_of(1_000_000), time.process_time()
    with pytest.raises(InputError) as caught:
        parse_header(text, 0, 8, "f")
    assert caught.value.finding.code == "F104" and "1,000,001" in str(caught.value)
    assert time.process_time() - started < 0.5


def test_as_many_tensors_as_a_large_target_has_are_read() -> None:
    assert len(parse_header(header_of(5000), 0, 8, "f").tensors) == 5000


def test_many_tensors_under_a_wrapper() -> None:
    names, started = [f"model.{i}.x" for i in range(8_000)], time.process_time()
    assert recognise({}, names).dialect is None and whose_tensors([*names, "model.fc.weight"]) == {}
    assert wrapper_of(["model." * 60_000]) == "model." * 60_000
    assert time.process_time() - started < SECONDS


# --- numbers --------------------------------------------------------------------------------------------------

_SIZES = ("hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
          "intermediate_size", "max_position_embeddings")  # fmt: skip
_NUMBERS = (0, -1, 10**18, 2**63, 10**30, 1.5, 1e300, "64", [64], {"a": 1}, True)


@pytest.mark.parametrize("key", _SIZES)
def test_sizes_that_cannot_be(key: str, tmp_path: Path) -> None:
    """In the drafter's config, where each is held against the tensors, and in the target's."""
    source = drafter(tmp_path / "in")
    before = json.loads((source / "config.json").read_text())
    target = json.loads((TARGET / "config.json").read_text())
    for value in _NUMBERS:
        document = json.loads(json.dumps(before))
        document["transformer_layer_config"][key] = value
        (source / "config.json").write_text(json.dumps(document))
        report = look(Request(source=str(source), engines=("vllm",)))
        assert stops(report.findings) or key == "max_position_embeddings", (key, value, codes(report))
        (tmp_path / "config.json").write_text(json.dumps({**target, key: value}))
        try:
            look(Request(source=str(DRAFTERS / "a_plain"), engines=("vllm",), target=tmp_path / "config.json"))
        except InputError as problem:
            assert problem.finding.code == "F113"


_FIELDS = (
    "draft_vocab_size", "eagle_aux_hidden_state_layer_ids", "target_hidden_size", "norm_before_fc", "fc_norm",
    "tie_word_embeddings", "dtype", "speculators_config", "transformer_layer_config",
)  # fmt: skip
_KINDS = (
    (0, -1, 10**18, 10**300, 1.5), ("x", "\x1b[2J", [], {}), ([10**18], [-1], [1.5], [None], [[1]], [0] * 5000),
    ({"verifier": 1}, {"verifier": {"architectures": [3]}}, {"a": {}}),
)  # fmt: skip


@pytest.mark.parametrize("key", _FIELDS)
@pytest.mark.parametrize("values", _KINDS)
def test_values_of_other_kinds(key: str, values: tuple[Any, ...], tmp_path: Path) -> None:
    source = drafter(tmp_path / "in")
    before = json.loads((source / "config.json").read_text())
    for value in values:
        (source / "config.json").write_text(json.dumps({**before, key: value}))
        report = look(Request(source=str(source), engines=("vllm",)))
        assert report.findings or report.drafter is not None


# --- words of a stranger ---------------------------------------------------------------------------------------

_WORDS = "\x1b[31m\x07\u202eevil\u2066\x9b1m\u200b</script><script>alert(1)</script>]]>|`[x](http://e.invalid)"
_ALIVE = ("\x1b", "\x07", "\u202e", "\u2066", "\x9b", "\u200b")


def dangerous(config: Config) -> None:
    config[_WORDS] = _WORDS
    config["speculators_version"] = _WORDS
    config["speculators_config"]["verifier"] = {"name_or_path": _WORDS, "architectures": [_WORDS]}


@pytest.mark.parametrize("command", ["validate", "convert", "inspect"])
def test_control_and_direction_characters_reach_no_terminal_and_no_report(command: str, tmp_path: Path) -> None:
    def named(tensors: dict[str, Any]) -> None:
        tensors[_WORDS] = torch.ones(2)

    source = copy_of("a_plain", tmp_path / "in", dangerous, named)
    out = (tmp_path / "out", "--allow", "T101") if command == "convert" else ()
    said = []
    for suffix in ("json", "html", "md", "sarif", "xml") if command != "inspect" else ("json",):
        report = ("--report", tmp_path / f"r.{suffix}") if command != "inspect" else ("--json",)
        done = eagle3(command, source, *out, *report, *(("--force",) if out else ()))
        said += [done.stdout, done.stderr]
        if command != "inspect":
            said.append((tmp_path / f"r.{suffix}").read_text())
    said += [eagle3(command, source, *out, "-v", *(("--force",) if out else ())).stdout]
    for text in said:
        assert not [c for c in _ALIVE if c in text]
        assert "Traceback" not in text
    assert any("evil" in text for text in said)


def test_messages_of_a_usage_error_are_escaped_too(tmp_path: Path) -> None:
    name = tmp_path / "a\x1b[31m\u202eb"
    done = eagle3("report", name / "r.json", "-o", tmp_path / "x.md")
    assert done.returncode == 3 and "\\u001b" in done.stderr and "\\u202e" in done.stderr


# --- code -----------------------------------------------------------------------------------------------------


class Gadget:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.arguments


def gadgets(mark: Path) -> dict[str, Any]:
    import numpy as np

    return {
        "os.system": Gadget(os.system, f"touch {mark}"),
        "subprocess": Gadget(subprocess.check_call, ["touch", str(mark)]),
        "eval": Gadget(eval, f"open({str(mark)!r}, 'w')"),
        "exec": Gadget(exec, f"open({str(mark)!r}, 'w')"),
        "numpy load": Gadget(np.load, str(mark)),
        "numpy fromfile": Gadget(np.ndarray.tofile, np.ones(2), str(mark)),
        "torch load": Gadget(torch.load, str(mark)),
        "torch save": Gadget(torch.save, {}, str(mark)),
        "torch hub": Gadget(torch.hub.load, "org/name", "model"),
        "getattr": Gadget(getattr, Path, "touch"),
    }


@pytest.mark.parametrize("name", [*gadgets(Path())])
def test_a_pickle_s_gadget_is_not_called(name: str, tmp_path: Path) -> None:
    source, mark = drafter(tmp_path / "in"), tmp_path / "mark"
    (source / "model.safetensors").unlink()
    gadget = gadgets(mark)[name]
    plain = pickle.dumps({"fc.weight": gadget}, 2)
    archived = io.BytesIO()
    with zipfile.ZipFile(archived, "w") as archive:
        archive.writestr("archive/data.pkl", plain)
        archive.writestr("archive/version", "3\n")
    for data in (plain, archived.getvalue(), pickle.dumps(gadget, 4)):
        (source / "pytorch_model.bin").write_bytes(data)
        with watched(tmp_path / "nothing"):
            assert refused(source, target=None) in ("F101", "F114")
    assert not mark.exists()


def test_code_in_the_folder_is_named_and_neither_run_nor_carried(tmp_path: Path) -> None:
    source = drafter(tmp_path / "in", lambda config: config.update(auto_map={"AutoModel": "modeling_evil.Model"}))
    (source / "modeling_evil.py").write_text("raise SystemExit('run')")
    settings = {"auto_map": {"AutoTokenizer": ["org/evil--tokens.Tokens", None]}, "tokenizer_class": "Tokens"}
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    with watched(tmp_path):
        report = run(source, tmp_path / "out", "vllm==0.33.0")
    assert report.outcome == "converted" and codes(report) == ["F140"]
    assert sorted(f.where for f in report.findings) == ["auto_map in config.json", "auto_map in tokenizer_config.json"]
    assert not {"modeling_evil.py", "tokenizer_config.json"} & {p.name for p in (tmp_path / "out").iterdir()}
    assert b"auto_map" not in (tmp_path / "out" / "config.json").read_bytes()


def test_a_class_name_that_is_longer_than_a_file_s(tmp_path: Path) -> None:
    source = drafter(tmp_path / "in", lambda config: config.update(auto_map={"AutoModel": "x" * 300 + ".Model"}))
    assert codes(check(source, "vllm==0.33.0")) == []


def test_a_target_s_name_that_is_longer_than_a_file_s(tmp_path: Path) -> None:
    def name(config: Config) -> None:
        config["speculators_config"]["verifier"]["name_or_path"] = "x" * 300

    source = drafter(tmp_path / "in", name)
    report = run(source, tmp_path / "out", target=None, target_arch="LlamaForCausalLM")
    assert report.outcome == "converted"
    [line] = as_json(report)["launch"]
    assert "x" * 300 in line["command"]
    written = convert(request(source, out=tmp_path / "to", to="speculators"), quiet)
    assert written.outcome == "converted"


@pytest.mark.parametrize("named", [[["x"]], [{"x": 1}], {"x": 1}, [None], 7])
def test_a_class_that_is_no_name(named: Any, tmp_path: Path) -> None:
    source = tmp_path / "in"
    shutil.copytree(PRODUCERS / "specforge_hf", source)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "architectures": named}))
    report = check(source, "sglang", "vllm", "tensorrt-llm", "llama.cpp", dialect="specforge")
    assert errors(report) == [] and not any(it.works for it in report.as_it_is.values())
    assert "names the class" in report.as_it_is["sglang==0.5.23"].against[0]


def archive(file: Path) -> None:
    with zipfile.ZipFile(file, "w") as opened:
        opened.writestr("d2t.npy", b"x")


_MAPS: dict[str, Callable[[Path], object]] = {
    "an archive": archive, "a broken archive": lambda file: file.write_bytes(b"PK\x03\x04" + b"x" * 100),
    **{words: lambda file, text=text: file.write_bytes(npy(text)) for words, text in {
        "larger than its file": "{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000,), }",
        "an open bracket": "{'descr': ('", "deep brackets": "(" * 4000, "deep signs": "-" * 9000 + "1",
        "objects": "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", "no Python": "\x00",
        "a key that has no hash": "{[]: 1}", "odd indents": "if 1:\n      a\n   b",
        "a flag as size": "{'descr': '<i8', 'fortran_order': False, 'shape': (True,), }",
        "a size of 20 digits": "{'descr': '<i8', 'fortran_order': False, 'shape': (99999999999999999999,), }",
    }.items()},
}  # fmt: skip


def npy(header: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + b"x" * 8


@pytest.mark.parametrize("name", _MAPS)
def test_a_map_beside_the_checkpoint_that_is_none(name: str, tmp_path: Path) -> None:
    source = drafter(tmp_path / "in")
    _MAPS[name](source / "d2t.npy")
    with watched(tmp_path):
        assert codes(check(source, "vllm==0.33.0")) == []


def test_the_class_names_that_speculators_writes_are_no_code_of_a_stranger(tmp_path: Path) -> None:
    assert "auto_map" in json.loads((DRAFTERS / "a_plain" / "config.json").read_text())
    assert codes(run(DRAFTERS / "a_plain", tmp_path / "out")) == []


# --- files that unfold ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", [
    {"fc.weight": torch.ones(1).expand(10**12)},
    {"model": {"fc.weight": torch.ones(1)}, "optimizer": [{"state": torch.ones(1).expand(10**12)}]},
    {f"t{i}": t for i, t in enumerate([torch.ones(1000)] * 1000)},
])  # fmt: skip
@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_larger_than_their_file(document: Any, zipped: bool, tmp_path: Path) -> None:
    source = drafter(tmp_path / "in")
    (source / "model.safetensors").unlink()
    torch.save(document, source / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    assert refused(source) == "F114"
    assert refused(DRAFTERS / "a_plain", sample=source / "pytorch_model.bin") == "F114"


def test_entries_of_an_archive_that_share_their_bytes(tmp_path: Path) -> None:
    """A zip bomb without compression: many entries of the directory name the same range of the file."""
    source = drafter(tmp_path / "in")
    (source / "model.safetensors").unlink()
    saved = io.BytesIO()
    torch.save({"a": torch.ones(5000)}, saved)
    with zipfile.ZipFile(saved, "a") as archive:
        [entry] = [e for e in archive.filelist if e.filename.endswith("data/0")]
        archive.filelist += [entry] * 1000
        archive._didModify = True  # type: ignore[attr-defined]
    (source / "pytorch_model.bin").write_bytes(saved.getvalue())
    assert refused(source) in ("F101", "F114")


_BOMBS = {
    "aliases": "dialect: eagle\nignore:\n  a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"  a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)),
    "itself": "dialect: eagle\nignore: &a {x: *a}\n", "deep list": "dialect: eagle\nignore: " + "[" * 900 + "]" * 900,
    "deeper list": "dialect: eagle\nignore: " + "[" * 100_000,
    "deep block": "dialect: eagle\nignore:\n" + "".join(" " * (i + 1) + "a:\n" for i in range(600)),
    "merges": "a: &a {b: 1}\n" + "dialect: eagle\nignore: {<<: [" + ", ".join(["*a"] * 60_000) + "]}\n",
    "long": "dialect: eagle\nignore: {a: " + "x" * 2_000_000 + "}\n",
    "date": "dialect: eagle\nignore: {a: 2024-99-99}\n", "integer": "dialect: !!int eagle\n",
    "no integer": "dialect: !!int ''\n", "long integer": "dialect: eagle\nignore: {a: " + "9" * 5000 + "}\n",
    "boolean": "dialect: !!bool eagle\n", "timestamp": "dialect: !!timestamp eagle\n",
    "object": "dialect: !!python/object/apply:os.system [id]\n", "module": "dialect: !!python/name:os.system\n",
    "key": "? {a: 1}\n: b\ndialect: eagle\n", "twice": "dialect: eagle\nignore: {a: b, a: c}\n",
    "many keys": "dialect: eagle\nignore: {" + ", ".join(f"a{i}: b" for i in range(30_000)) + ", a29999: b}\n",
    "bytes": "dialect: eagle\nignore: \x00\x01", "words": "dialect: eagle\n\"\\e[2J\\u202E\": 1\n",
}  # fmt: skip


@pytest.mark.parametrize("name", _BOMBS)
def test_yaml_bombs_in_a_mapping(name: str, tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(_BOMBS[name])
    started = time.process_time()
    with pytest.raises(RulesError, match=r"m\.yaml"), watched():
        loading.add(file)
    assert not loading.added_files() and time.process_time() - started < SECONDS


def test_a_tokenizer_bomb(tmp_path: Path) -> None:
    source = drafter(tmp_path / "in")
    deep: Any = "x"
    for _ in range(90):
        deep = [deep]
    vocabulary = {str(i): 10**18 + i for i in range(5_000)}
    bombs: tuple[Any, ...] = (
        {"model": {"vocab": vocabulary}, "added_tokens": [{"id": 10**18}, {"id": -1}, {"id": []}, deep]},
        {"model": {"vocab": [[deep, 1]] * 1000}}, {"model": deep},
        {"model": {"vocab": {"a": True, "b": 1.5, "c": None}}}, {},
    )  # fmt: skip
    for bomb in bombs:
        (source / "tokenizer.json").write_text(json.dumps(bomb))
        (source / "tokenizer_config.json").write_text(json.dumps({"eos_token": deep, "chat_template": deep}))
        (source / "generation_config.json").write_text(json.dumps({"eos_token_id": deep}))
        assert errors(check(source, "vllm", target=source_target(tmp_path, source))) == []


def source_target(place: Path, tokens: Path) -> Path:
    """The drafter's target with the hostile files of tokens beside its config."""
    folder = place / "target"
    folder.mkdir(exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(tokens / name, folder)
    shutil.copy(TARGET / "config.json", folder)
    return folder


def test_a_chat_template_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ x }}")
    opened = Path.open

    def closed(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.suffix == ".jinja":
            raise PermissionError(13, "Permission denied")
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", closed)
    found = read_tokenizer(tmp_path)
    assert found.template == "" and [f.code for f in found.unread] == ["F100"]


# --- seals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [{"name": ["model.safetensors"]}, {"name": {}}, {"size": 10**18}, [], None, 1, "x"])
def test_a_seal_that_lists_no_files(row: Any, tmp_path: Path) -> None:
    run(DRAFTERS / "a_plain", tmp_path / "out", "vllm==0.33.0")
    file = tmp_path / "out" / "eagle3-seal.json"
    document = json.loads(file.read_text())
    file.write_text(json.dumps({**document, "files": [row], "engines": [row, *document["engines"]]}))
    assert errors(check(tmp_path / "out", "vllm", target=None)) == ["C233"]


# --- what is no file --------------------------------------------------------------------------------------------


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as end:
        here = Path.cwd()
        os.chdir(path.parent)  # a socket's path may have 108 bytes
        try:
            end.bind(path.name)
        finally:
            os.chdir(here)


def circle(path: Path) -> None:
    path.symlink_to(path.name)


_FILES = (
    "config.json", "model.safetensors", "pytorch_model.bin", "eagle3-seal.json", "LICENSE", "chat_template.jinja",
    "tokenizer_config.json", "model.safetensors.index.json",
)  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="needs pipes, sockets and /dev")
@pytest.mark.parametrize("kind", [pipe, device, Path.mkdir, listening, circle])
@pytest.mark.parametrize("name", _FILES)
def test_what_lies_in_a_file_s_place(name: str, kind: Callable[[Path], None], tmp_path: Path) -> None:
    source = drafter(tmp_path / "in")
    (source / name).unlink(missing_ok=True)
    if name == "pytorch_model.bin":
        (source / "model.safetensors").unlink()
    kind(source / name)
    try:
        report = run(source, tmp_path / "out", target=None)
    except InputError as problem:
        assert problem.finding.code in ("F100", "F101", "F107", "F108", "F110", "F111")
        return
    assert report.outcome == "converted" and not (tmp_path / "out" / name).is_symlink()


@pytest.mark.skipif(sys.platform != "linux", reason="needs pipes, sockets and /dev")
@pytest.mark.parametrize("kind", [pipe, device, Path.mkdir, listening, circle])
def test_what_lies_in_a_sample_s_place(kind: Callable[[Path], None], tmp_path: Path) -> None:
    folder = tmp_path / "sample"
    folder.mkdir()
    kind(folder / "hs_0.safetensors")
    for sample in (folder, folder / "hs_0.safetensors"):
        assert refused(DRAFTERS / "a_plain", sample=sample) in ("F100", "F101", "F107", "F120")


@pytest.mark.skipif(sys.platform != "linux", reason="needs pipes, sockets and /dev")
@pytest.mark.parametrize("kind", [pipe, device, Path.mkdir, listening, circle])
def test_what_lies_in_a_target_s_place(kind: Callable[[Path], None], tmp_path: Path) -> None:
    folder = tmp_path / "target"
    folder.mkdir()
    kind(folder / "config.json")
    assert refused(DRAFTERS / "a_plain", target=folder) in ("F100", "F110")


@pytest.mark.parametrize("where", ["IN", "OUT", "beside", "report"])
def test_links_in_a_circle(where: str, tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    source = drafter(tmp_path / "in")
    (source / "a").symlink_to("b")
    (source / "b").symlink_to("a")
    arguments: dict[str, tuple[object, ...]] = {
        "IN": ("convert", loop, tmp_path / "out"), "OUT": ("convert", source, loop),
        "beside": ("convert", source, tmp_path / "out"), "report": ("validate", source, "--report", loop / "r.json"),
    }  # fmt: skip
    done = eagle3(*arguments[where], "--engine", "vllm")
    assert done.returncode == {"IN": 3, "OUT": 2, "beside": 0, "report": 2}[where], done.stderr
    assert done.stderr or done.stdout


def test_a_link_out_of_the_folder_is_not_carried_over(tmp_path: Path) -> None:
    source, secret = drafter(tmp_path / "in"), tmp_path / "id_rsa"
    secret.write_text("secret")
    (source / "LICENSE").symlink_to(secret)
    (source / "NOTICE").symlink_to("../id_rsa")
    (source / "LICENCE").write_text("mine")
    (source / "LICENSE.txt").symlink_to("LICENCE")
    report = run(source, tmp_path / "out", "vllm==0.33.0")
    assert report.outcome == "converted" and codes(report) == ["F141"]
    assert sorted(Path(f.where).name for f in report.findings) == ["LICENSE", "NOTICE"]
    assert {p.name for p in (tmp_path / "out").iterdir() if p.name.startswith(("L", "N"))} == {"LICENCE", "LICENSE.txt"}
    assert not (tmp_path / "out" / "LICENSE.txt").is_symlink()


def test_links_of_the_cache_are_carried_over(tmp_path: Path) -> None:
    cache = tmp_path / "models--org--name"
    source = drafter(cache / "snapshots" / "0123")
    (cache / "blobs").mkdir()
    (cache / "blobs" / "abc").write_text("a licence")
    (source / "LICENSE").symlink_to("../../blobs/abc")
    report = run(source, tmp_path / "out", "vllm==0.33.0")
    assert codes(report) == [] and (tmp_path / "out" / "LICENSE").read_text() == "a licence"


# --- reports and baselines --------------------------------------------------------------------------------------


@pytest.mark.parametrize("edit", [
    lambda d: d.update(findings=[d["findings"]] * 3), lambda d: d.update(engines={}), lambda d: d.update(spec=[1]),
    lambda d: d.update(input={"bytes": 10**400}), lambda d: d["input"].update(bytes=10**300),
    lambda d: d["input"].update(tensors=-1), lambda d: d.update(outcome="\x1b[2J"),
    lambda d: d.update(schema=["eagle3-convert/report/1"]), lambda d: d.update(schema={}),
    lambda d: d.update(launch=[{"engine": 1}]), lambda d: d.update(headline="<script>" * 1000), lambda d: d.clear(),
])  # fmt: skip
@pytest.mark.parametrize("suffix", ["html", "md"])
def test_a_hostile_report_is_laid_out_or_refused(edit: Edit, suffix: str, tmp_path: Path) -> None:
    document = json.loads(json.dumps(as_json(check(DRAFTERS / "b_nbr", "sglang"))))
    edit(document)
    (tmp_path / "r.json").write_text(json.dumps(document))
    done = eagle3("report", tmp_path / "r.json", "-o", tmp_path / f"r.{suffix}")
    assert done.returncode in (0, 3)
    assert done.returncode == 0 or "is no report of eagle3-convert" in done.stderr
    if done.returncode == 0:
        assert "<script>" not in (tmp_path / f"r.{suffix}").read_text()


@pytest.mark.parametrize("rows", [
    [{"drafter": "*", "code": "C204", "title": "", "engine": "", "where": "x", "count": 10**18}],
    [{"drafter": "../" * 5000, "code": "C204", "title": "\x1b[2J", "engine": "\u202e", "where": "\0", "count": 1}],
    [{"drafter": "*", "code": "C204", "title": "", "engine": "", "where": "x", "count": -1}], [[]], [None] * 2000, {},
    1,
])  # fmt: skip
def test_a_hostile_baseline_is_used_or_refused(rows: Any, tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text(json.dumps({"schema": "eagle3-convert/baseline/1", "accepted": rows}))
    done = eagle3("validate", DRAFTERS / "a_plain", "--engine", "vllm", "--baseline", tmp_path / "b.json")
    assert done.returncode in (0, 2)
    assert not [c for c in _ALIVE if c in done.stdout + done.stderr]


# --- the guard of the fuzz targets --------------------------------------------------------------------------------


def test_the_guard_sees_what_it_should(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (inside / "evil.py").write_text("x = 1")

    def connect() -> None:
        with socket.socket() as end:
            end.connect(("127.0.0.1", 9))

    breaches: tuple[Callable[[], object], ...] = (
        lambda: (outside / "f").write_text("x"), lambda: (outside / "d").mkdir(),
        lambda: outside.rename(tmp_path / "moved"), lambda: (inside / "link").rename(outside / "link"),
        lambda: os.system("true"), lambda: subprocess.run(["true"], check=False), connect,
        lambda: exec(compile("1", str(inside / "evil.py"), "exec")), lambda: (inside / "evil.py").read_text(),
        lambda: pickle.loads(pickle.dumps(os.getcwd)), lambda: (outside / "f").symlink_to("x"),
        lambda: shutil.rmtree(outside),
    )  # fmt: skip
    for breach in breaches:
        with pytest.raises(Breach), watched(inside):
            breach()
    with pytest.raises(Breach), watched(inside), contextlib.suppress(BaseException):  # caught on the way
        os.system("true")
    with watched(inside):
        (inside / "f").write_text("x")
        (inside / "f").rename(inside / "g")
        (tmp_path / "in" / "g").unlink()
