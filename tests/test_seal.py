"""The record beside a converted drafter: what is in it, and what `eagle3 seal verify` says of the folder later."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import get_token
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from converter import seal
from converter.fingerprint import target_fingerprint
from converter.forward.sample import read_sample
from converter.hub.secrets import masked
from converter.pipeline import look
from tests.support import DRAFTERS, SAMPLE, TARGET, Done, copy_of, eagle3, request, run
from tests.test_schemas import assert_published

MODEL, CONFIG = "model.safetensors", "config.json"
TOKEN = "hf_aTokenThatNobodyHas"


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sealed") / "out"
    assert run(DRAFTERS / "a_plain", out).outcome == "converted"
    return out


@pytest.fixture
def folder(sealed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sealed, tmp_path / "out"))


def edited(folder: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """The folder with its seal changed in place."""
    document = json.loads((folder / seal.NAME).read_text())
    change(document)
    (folder / seal.NAME).write_text(json.dumps(document))
    return folder


def rewritten(folder: Path, change: Callable[[dict[str, Any]], Any], name: str = MODEL) -> Path:
    """The folder with the tensors of a weight file changed in place, torch tensors by name."""
    tensors = dict(load_file(folder / name))
    change(tensors)
    save_file(tensors, folder / name, metadata={"format": "pt"})
    return folder


def verify(folder: Path, *options: object) -> Done:
    return eagle3("seal", "verify", folder, *options)


def verified(folder: Path) -> Any:
    """The JSON document, which is as it is published."""
    done = verify(folder, "--json")
    found = json.loads(done.stdout)
    assert_published(found, "verify")
    assert done.returncode == (0 if found["in_order"] else 1)
    return found


def codes(found: Any) -> list[str]:
    return [finding["code"] for finding in found["findings"]]


def states(found: Any) -> dict[str, str]:
    return {file["name"]: file["state"] for file in found["files"]}


# --- what is in it ------------------------------------------------------------------------------------------


def test_target_and_sample_are_told_from_others(tmp_path: Path) -> None:
    report = run(DRAFTERS / "g_aux024", tmp_path / "out", sample=SAMPLE, positions=64, steps=1)
    document = json.loads((tmp_path / "out" / seal.NAME).read_text())
    assert document == report.sealed
    assert document["target"]["fingerprint"] == target_fingerprint(TARGET) != ""
    sample, proof = document["proof"]["sample"], document["proof"]
    assert sample["sha256"] == hashlib.sha256(SAMPLE.read_bytes()).hexdigest() and sample["files"] == [SAMPLE.name]
    low, high = proof["scores"]["interval"][0]
    assert low <= proof["scores"]["accuracy"][0] <= high and proof["device"] == "cpu"
    told = f"{proof['level']}: accuracy {proof['scores']['accuracy'][0]:.1%} [{low:.1%} to {high:.1%}] ("
    assert told in verify(tmp_path / "out").stdout


def test_without_weights_or_digests_it_says_nothing_of_them(tmp_path: Path) -> None:
    for out, options in (("config", {"target": TARGET / CONFIG}), ("none", {"target": None})):
        assert (
            run(DRAFTERS / "a_plain", tmp_path / out, **options, target_arch="LlamaForCausalLM").sealed["target"][
                "fingerprint"
            ]
            == ""
        )


def test_the_digest_of_a_folder_is_what_sha256sum_prints(tmp_path: Path) -> None:
    folder = tmp_path / "sample"
    (folder / "more").mkdir(parents=True)
    tensors = load_file(SAMPLE)
    for name, first in (("b.safetensors", 0), ("more/a.safetensors", 1)):
        with safe_open(SAMPLE, "np") as file:
            metadata = file.metadata()
        own = {k.replace(f"s{first}.", "s0."): v for k, v in tensors.items() if k.startswith(f"s{first}.")}
        save_file(own, folder / name, metadata=metadata)
    drafter = look(request(DRAFTERS / "g_aux024", target=TARGET)).drafter
    assert drafter is not None
    sample = read_sample(folder, drafter.spec)
    assert sample.file_names == ["b.safetensors", "more/a.safetensors"]
    printed = subprocess.run(["sha256sum", *sample.file_names], cwd=folder, capture_output=True, check=True).stdout
    assert sample.sha256 == hashlib.sha256(printed).hexdigest()
    assert read_sample(folder, drafter.spec, most=1).file_names == ["b.safetensors"]


def test_a_password_in_a_url_is_not_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = "https://user:pa@ss@host/drafter"  # which is also a path
    copy_of("a_plain", tmp_path / "https:" / "user:pa@ss@host" / "drafter")
    monkeypatch.chdir(tmp_path)
    done = eagle3("convert", given, "out", "--target", TARGET, "--json")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "out" / seal.NAME).read_text()
    assert "pa@ss" not in text and "user" not in text
    command = json.loads(text)["command"]
    assert command == json.loads(done.stdout)["command"] and "https://***@host/drafter" in command


def test_the_token_is_not_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    drafter = copy_of("a_plain", tmp_path / f"in-{TOKEN}")
    done = eagle3("convert", drafter, tmp_path / TOKEN, "--target", TARGET, "--json")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / TOKEN / seal.NAME).read_text()
    assert TOKEN not in text and f"{tmp_path}/in-***" in json.loads(text)["command"]
    assert TOKEN not in str(json.loads(done.stdout)["command"])


def test_a_user_without_a_home_has_no_token_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs as an id which its passwd does not list."""

    def nobody(uid: int) -> None:
        raise KeyError(uid)

    for name in ("HOME", "HF_HOME", "HF_TOKEN_PATH", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert masked([TOKEN, "drafter"]) == ["***", "drafter"]


def test_what_is_masked_and_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert get_token() == TOKEN
    words = [
        f"--x={TOKEN}",
        "http://a:b@c",
        "hf://org/name@v1",
        "org/name@v1",
        "//share/x@y",
        "hf_llama_8b_drafter",
        "-v",
    ]
    assert masked(words) == ["--x=***", "http://***@c", *words[2:]]
    assert masked(["hf_" + "aB3" * 12, f"hf_oauth_{'x.y' * 9}"]) == ["***", "***"]  # somebody else's
    assert masked({"a": [f"{TOKEN} and", 1, None]}) == {"a": ["*** and", 1, None]}
    monkeypatch.setenv("HF_TOKEN", "a")  # found in every other word
    assert masked("drafter") == "drafter"
    assert (
        masked("https:/me:secret@host/x hf:/org/name@v1 org/name@v1") == "https:/***@host/x hf:/org/name@v1 org/name@v1"
    )


@pytest.mark.parametrize(("where", "file"), [
    ("HF_HOME", "token"), ("HF_TOKEN_PATH", ""), ("HOME", ".cache/huggingface/token"),
])  # fmt: skip
def test_the_token_is_found_where_the_client_finds_it(
    where: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HOME", "HF_TOKEN_PATH", "XDG_CACHE_HOME", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    place = tmp_path / "home" / file
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f"{TOKEN}\n")
    monkeypatch.setenv(where, str(tmp_path / "home"))
    code = "from huggingface_hub import get_token; print(get_token())"
    client = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert client.stdout.strip() == TOKEN and masked(TOKEN) == "***"


# --- what is said of it later -------------------------------------------------------------------------------


def test_a_folder_as_it_was_sealed(folder: Path) -> None:
    (folder / "README.md").write_text("mine")
    (folder / ".gitattributes").write_text("*.safetensors filter=lfs")
    done = verify(folder)
    first, _, rest = done.stdout.partition("\n")
    assert (done.returncode, first) == (0, "Sealed and unchanged.")
    for words in (str(DRAFTERS / "a_plain"), "sglang 0.5.23", "LlamaForCausalLM, 6 layers", "none: static checks only"):
        assert words in rest
    found = verified(folder)
    assert found["in_order"] and codes(found) == [] and set(states(found).values()) == {"unchanged"}
    assert verify(folder, "-q").stdout == "" and f"{MODEL}\n" in verify(folder, "-v").stdout
    assert verify(folder / seal.NAME).returncode == 0


def test_it_names_the_tensors_that_changed(folder: Path) -> None:
    def change(tensors: dict[str, Any]) -> None:
        for name in ("fc.weight", "lm_head.weight"):
            tensors[name].view(torch.uint8).view(-1)[7] ^= 1

    done = verify(rewritten(folder, change))
    assert done.returncode == 1 and done.stdout.startswith("Changed since it was sealed.\n")
    assert f"{MODEL}: fc.weight, lm_head.weight changed; 14 tensors unchanged" in done.stdout and "C233" in done.stdout
    tensors = verified(folder)["files"][0]["tensors"]
    assert tensors["changed"] == ["fc.weight", "lm_head.weight"] and tensors["unchanged"] == 14
    shown = verify(folder, "-q").stdout
    assert "  made from" not in shown and "C233" in shown


def test_tensors_that_went_and_came(folder: Path) -> None:
    def change(tensors: dict[str, Any]) -> None:
        del tensors["norm.weight"]
        tensors["new.weight"] = torch.zeros(3)

    done, found = verify(rewritten(folder, change)), verified(folder)
    assert found["tensors_gone"] == ["norm.weight"] and found["files"][0]["tensors"]["added"] == ["new.weight"]
    assert "new.weight came new; 15 tensors unchanged" in done.stdout and "no longer there: norm.weight" in done.stdout


def test_a_header_that_changed_alone(folder: Path) -> None:
    tensors = load_file(folder / MODEL)
    save_file(tensors, folder / MODEL, metadata={"format": "pt", "by": "somebody"})
    assert "its header changed, and no tensor's bytes; 16 tensors unchanged" in verify(folder).stdout
    shutil.copy(folder / MODEL, folder / "more.safetensors")
    assert "more.safetensors: not in the seal; 16 tensors as they were sealed\n" in verify(folder).stdout


def test_weights_that_cannot_be_read_any_more(folder: Path) -> None:
    data = (folder / MODEL).read_bytes()
    for left, words in ((data[: len(data) // 2], "ends before its tensors do"), (b"", "is not a safetensors file")):
        (folder / MODEL).write_bytes(left)
        done, found = verify(folder), verified(folder)
        assert "cannot be read any more" in done.stdout and words in found["files"][0]["tensors"]["unreadable"]
        assert done.returncode == 1 and found["tensors_gone"] == []


@pytest.mark.parametrize(
    ("change", "state"),
    [
        (lambda f: (f / CONFIG).write_text((f / CONFIG).read_text() + " "), {CONFIG: "other size"}),
        (lambda f: (f / CONFIG).write_text((f / CONFIG).read_text().replace("0", "1", 1)), {CONFIG: "other contents"}),
        (lambda f: (f / CONFIG).unlink(), {CONFIG: "gone"}),
        (lambda f: shutil.copy(f / MODEL, f / "more.safetensors"), {"more.safetensors": "added"}),
        (lambda f: (f / "pytorch_model.bin").write_bytes(b"x"), {"pytorch_model.bin": "added"}),
        (lambda f: edited(f, lambda d: d.update(files=d["files"][:1])), {CONFIG: "added"}),
    ],
)
def test_files_that_changed(folder: Path, change: Callable[[Path], object], state: dict[str, str]) -> None:
    change(folder)
    found = verified(folder)
    assert {k: v for k, v in states(found).items() if v != "unchanged"} == state
    assert codes(found) == ["C233"] and found["headline"] == "Changed since it was sealed."


def test_shards(tmp_path: Path) -> None:
    drafter = copy_of("a_plain", tmp_path / "in")
    tensors = load_file(drafter / MODEL)
    (drafter / MODEL).unlink()
    names = sorted(tensors)
    files = {"model-00001-of-00002.safetensors": names[:5], "model-00002-of-00002.safetensors": names[5:]}
    for file, part in files.items():
        save_file({n: tensors[n] for n in part}, drafter / file, metadata={"format": "pt"})
    weight_map = {n: file for file, part in files.items() for n in part}
    (drafter / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    run(drafter, tmp_path / "out")
    first, second = (tmp_path / "out" / file for file in files)
    kept = list(load_file(first))

    def zero(tensors: dict[str, Any]) -> None:
        name = next(iter(tensors))
        tensors[name] = torch.zeros_like(tensors[name])

    rewritten(tmp_path / "out", zero, second.name)
    found = verified(tmp_path / "out")
    changed = {f["name"]: len(f["tensors"]["changed"]) for f in found["files"] if f["tensors"]}
    assert changed == {second.name: 1} and found["tensors_gone"] == []
    first.unlink()
    assert sorted(verified(tmp_path / "out")["tensors_gone"]) == sorted(kept)


def test_files_that_were_sealed_without_digests(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    run(DRAFTERS / "a_plain", folder, digest=False)
    done, found = verify(folder), verified(folder)
    assert codes(found) == ["H416"] and states(found) == {MODEL: "same size", CONFIG: "unchanged"}
    assert done.returncode == 0 and done.stdout.startswith("Sealed and unchanged, as far as sizes tell.\n")
    rewritten(folder, lambda tensors: tensors.update(more=torch.zeros(2)))
    assert "more came new; 16 tensors sealed without a digest; 0 tensors unchanged" in verify(folder).stdout


def test_rules_that_changed_since(folder: Path) -> None:
    other = dict.fromkeys(
        ("engines/sglang.yaml", "engines/vllm.yaml", "recognition.yaml", "dialects/gone.yaml"), "0" * 64
    )
    mine = {"engines/mine (--mapping)": "1" * 64}
    moved = edited(folder, lambda d: d["rules"].update(other, **mine)).rename(folder.parent / "my out")
    found = verified(moved)
    assert shlex.quote(str(moved)) in found["findings"][0]["fix"][0]
    assert found["rules_changed"] == ["dialects/gone.yaml", "engines/sglang.yaml", "recognition.yaml"]
    assert codes(found) == ["H417"] and found["in_order"] and found["findings"][0]["severity"] == "note"


def test_an_older_seal_is_read(folder: Path) -> None:
    def older(document: dict[str, Any]) -> None:
        for part, key in (("target", "fingerprint"), ("target", "commit"), ("target", "layers"), ("source", "commit")):
            del document[part][key]
        del document["launch"], document["to"]

    assert codes(verified(edited(folder, older))) == []
    assert codes(verified(edited(folder, lambda d: d.update(added={"later": 1})))) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(schema="eagle3-convert/seal/2"), ("eagle3-convert/seal/2", "pip install --upgrade")),
        (lambda d: d.update(schema="mine"), ('schema: found "mine"',)),
        (lambda d: d.pop("proof"), ("proof: missing",)),
        (lambda d: d["files"][1].update(sha256="abc"), ('files[1].sha256: found "abc"',)),
        (lambda d: d["proof"].update(level="certain"), ("proof.level: found",)),
        *[(lambda d, n=name: d["files"][0].update(name=n), ("files[0].name: found", "the name of a file in the folder"))
          for name in ("../secrets", "/etc/passwd", "..", "", "a/b", "a\\b")],
    ],
)  # fmt: skip
def test_a_seal_that_cannot_be_relied_on(
    folder: Path, change: Callable[[dict[str, Any]], object], words: tuple[str, ...]
) -> None:
    done = verify(edited(folder, change), "--json")
    found = json.loads(done.stdout)
    assert_published(found, "error")
    assert done.returncode == 3 and [f["code"] for f in found["findings"]] == ["H415"]
    assert all(word in done.stderr.replace("\n", " ") for word in words) or all(word in str(found) for word in words)


def test_what_is_no_seal_at_all(folder: Path, tmp_path: Path) -> None:
    for text in ('{"schema": ', "[]", '{"a": 1, "a": 2}'):
        (folder / seal.NAME).write_text(text)
        done = verify(folder)
        assert done.returncode == 3 and "H415" in done.stderr and "damaged" in done.stderr
    (folder / seal.NAME).unlink()
    done = verify(folder)
    assert done.returncode == 1 and done.stdout.startswith("Not sealed.\n") and "H413" in done.stdout
    assert verified(folder)["seal"] is None
    missing = verify(tmp_path / "nothing", "--json")
    assert missing.returncode == 3 and json.loads(missing.stdout)["findings"][0]["code"] == "F100"


def test_a_disk_that_fails_is_told_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: Path) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(seal, "sha256_of", fails)
    for done in (verify(folder), eagle3("card", folder)):
        assert done.returncode == 3 and "F100" in done.stderr and "Input/output error" in done.stderr, done


def test_text_of_a_stranger_is_shown_escaped(folder: Path) -> None:
    edited(folder, lambda d: d["source"].update(given="\x1b[31mred"))
    assert "\x1b[31m" not in verify(folder).stdout
