"""Drafters and targets named by their ids: huggingface_hub's own client, over HTTP, against a Hub on this machine."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from converter import cli
from converter.checkpoint.finite import scan
from converter.checkpoint.header import read_header
from converter.checkpoint.reader import Checkpoint, open_checkpoint
from converter.errors import InputError, UsageError
from converter.hub.ids import HubId, hub_id
from converter.hub.ranges import _FIRST, RangedCheckpoint, _folder
from converter.hub.snapshot import look_up
from converter.report.explain import catalogue
from converter.source import SEAL, SIGNATURE
from converter.target_weights import RowTable
from tests.hub_client import Client, Done, World, secret
from tests.hub_handler import Asked, Fault
from tests.hub_repository import Repository, files_of
from tests.hub_server import deaf_server, hub_server, unused_port
from tests.support import DRAFTERS, PRODUCERS, SAMPLE, TARGET, run
from tests.test_schemas import assert_published
from tests.test_signing import write_key

A = DRAFTERS / "a_plain"
MEMBER, STRANGER = "hf_member_9f3b61c2", "hf_stranger_4c1d77aa"
JUNK: dict[str, Path | bytes | None] = {
    "optimizer.pt": b"optimizer", "training_state.pt": b"state", "drafter.Q8_0.gguf": b"GGUF", "README.md": b"# A\n",
    "pytorch_model.bin": b"a pickle beside the safetensors", "runs/events.out": b"events", "scheduler.bin": b"bytes",
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _tokens_stay_secret(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Of everything that the tests here wrote and said."""
    with secret((MEMBER, STRANGER), tmp_path_factory.getbasetemp()):
        yield


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("hub")
    with hub_server(folder / "server") as hub:
        hub.tokens = {MEMBER: "member", STRANGER: "stranger"}
        beside: dict[str, Path | bytes | None] = {"tokenizer.json": b"{}", "LICENSE.txt": b"Apache-2.0"}
        hub.create("org/a", {**files_of(A), **beside, **JUNK})
        hub.create("org/own", files_of(DRAFTERS / "k_embedgrad"))
        hub.create("org/target", {**files_of(TARGET), "consolidated.00.pth": b"the same again"})
        for kind in ("private", "gated"):
            hub.create(f"org/{kind}", files_of(A), **{kind: True}).readers.add("member")
        client = Client(folder / "home", HF_ENDPOINT=hub.url)
        yield World(hub, client, folder / "home")
        client.close()


def paths(asked: list[Asked]) -> list[str]:
    return sorted(a.path.rpartition("/")[2] for a in asked)


def blob(repository: Repository, file: str) -> str:
    """What a large file is called in the storage."""
    return repository.entries(repository.refs["main"])[file].sha256


def refused(done: Done, code: str, *words: str) -> None:
    """Exit 3, the code of one finding, and no traceback."""
    assert done.code == 3, done.text
    assert f"error {code}" in done.stderr and "Traceback" not in done.text, done.text
    for word in words:
        assert word in " ".join(done.stderr.split()), done.stderr


# --- how repositories are named -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "repo", "revision", "path"),
    [
        ("org/name", "org/name", "", ""),
        ("org/name@v1.0", "org/name", "v1.0", ""),
        ("org/name@refs/pr/3", "org/name", "refs/pr/3", ""),
        ("org/name@feature/x", "org/name", "feature/x", ""),
        ("hf://org/name", "org/name", "", ""),
        ("hf:/org/name", "org/name", "", ""),  # as a Path has it
        ("hf://models/org/name@main/checkpoints/9", "org/name", "main", "checkpoints/9"),
        ("hf://org/name@refs/pr/3/sub/", "org/name", "refs/pr/3", "sub"),
        ("hf://org/name@feature%2Fx/config.json", "org/name", "feature/x", "config.json"),
    ],
)
def test_ids(text: str, repo: str, revision: str, path: str) -> None:
    named = hub_id(text)
    assert named == HubId(repo, revision, path)
    assert hub_id(named.uri) == named  # which is how messages name it
    if not path:
        assert hub_id(str(named)) == named


@pytest.mark.parametrize("text", ["name", "./org/name", "/org/name", "a/b/c", "org/name/", "out/model.safetensors",
                                  "o--g/name", "org/..", "tests/data", ""])  # fmt: skip
def test_paths_are_no_ids(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(A.parents[3])
    assert hub_id(text) is None


@pytest.mark.parametrize("text", ["hf://name", "hf://datasets/org/name", "hf://org/name/../x", "hf://org/name@"])
def test_uris_that_name_no_model(text: str) -> None:
    with pytest.raises(UsageError, match="expected hf://org/name"):
        hub_id(text)


def forget(world: World, name: str) -> None:
    """As if the client had never asked for it."""
    shutil.rmtree(world.home / "hub" / f"models--{name.replace('/', '--')}", ignore_errors=True)
    shutil.rmtree(world.home / "assets" / "eagle3-convert" / name.replace("/", "--"), ignore_errors=True)


# --- drafters -----------------------------------------------------------------------------------------------


def test_a_drafter_is_converted_as_its_folder_is(world: World, tmp_path: Path) -> None:
    forget(world, "org/a")
    commit = world.hub.repositories["org/a"].refs["main"]
    done = world("convert", "org/a", tmp_path / "out", "--json")
    assert done.code == 0, done.text
    assert f"from org/a, commit {commit[:7]}" in done.stderr
    # Config, weights and what is carried over; the training state, the pickle and the rest stay where they are.
    fetched = {a.path for a in world.hub.downloads()}
    weights = blob(world.hub.repositories["org/a"], "model.safetensors")
    assert sorted(p.rpartition("/")[2] for p in fetched) == sorted(
        ["config.json", "LICENSE.txt", "tokenizer.json", weights]
    )
    assert {a.path.split("/")[2] for a in world.hub.asked if a.path.startswith("/api/models/org")} == {"models"}
    assert all("/org/a" in a.path for a in world.hub.asked)  # nothing of the target that its config names

    shutil.copytree(A, tmp_path / "a")
    (tmp_path / "a" / "LICENSE.txt").write_bytes(b"Apache-2.0")
    (tmp_path / "a" / "tokenizer.json").write_bytes(b"{}")
    assert world("convert", tmp_path / "a", tmp_path / "other").code == 0
    assert world.hub.asked == []
    names = sorted(p.name for p in (tmp_path / "out").iterdir())
    assert names == sorted(p.name for p in (tmp_path / "other").iterdir())
    for name in set(names) - {"eagle3-seal.json"}:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "other" / name).read_bytes(), name
    sealed = json.loads((tmp_path / "out" / "eagle3-seal.json").read_text())
    assert (sealed["source"]["given"], sealed["source"]["commit"]) == ("org/a", commit)
    assert json.loads((tmp_path / "other" / "eagle3-seal.json").read_text())["source"]["commit"] == ""
    assert_published(sealed, "seal")
    assert done.json["input"]["commit"] == commit
    assert_published(done.json, "report")


def snapshot(world: World, name: str) -> Path:
    """The folder of a repository's newest commit in the cache."""
    commit = world.hub.repositories[name].refs["main"]
    return world.home / "hub" / f"models--{name.replace('/', '--')}" / "snapshots" / commit


def without_places(document: dict[str, Any], places: Mapping[str | Path, str]) -> dict[str, Any]:
    """A report without where its files are: each of `places` by its word."""
    text = json.dumps({k: v for k, v in document.items() if k not in ("command", "input")})
    for place, word in places.items():
        text = text.replace(str(place), word)
    return json.loads(text)  # type: ignore[no-any-return]


@pytest.mark.parametrize("folder", [DRAFTERS / "e_2layers", PRODUCERS / "specforge_sglang", PRODUCERS / "angelslim"])
def test_verdicts_are_those_of_the_folder(world: World, folder: Path) -> None:
    name = f"org/{folder.name}"
    world.hub.create(name, files_of(folder))
    there = world("validate", name, "--target", TARGET, "--json").json
    here = world("validate", folder, "--target", TARGET, "--json").json
    # What works as it lies is launched from where it lies: the very files that were validated. To convert it, its name
    # is typed.
    places = {snapshot(world, name): "DRAFTER", name: "DRAFTER"}
    assert without_places(there, places) == without_places(here, {folder: "DRAFTER"})
    assert there["input"]["bytes"] == here["input"]["bytes"]


def test_shards_and_a_pickle(world: World, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file
    from torch import save

    tensors = load_file(A / "model.safetensors")
    files: dict[str, Path | bytes | None] = {"config.json": A / "config.json"}
    weight_map = {}
    for i, name in enumerate(sorted(tensors)):
        weight_map[name] = f"model-0000{1 + i % 2}-of-00002.safetensors"
    for shard in set(weight_map.values()):
        save_file({n: t for n, t in tensors.items() if weight_map[n] == shard}, tmp_path / shard)
        files[shard] = tmp_path / shard
    files["model.safetensors.index.json"] = json.dumps({"metadata": {}, "weight_map": weight_map}).encode()
    repository = world.hub.create("org/sharded", {**files, **JUNK})
    assert world("diff", "org/sharded", "org/a").code == 0
    assert len([a for a in world.hub.downloads() if a.path.startswith("/lfs/org/sharded")]) == 2

    repository.commit({"model-00002-of-00002.safetensors": None})
    refused(world("validate", "org/sharded"), "F108", "no model-00002-of-00002.safetensors")
    assert world.hub.downloads() == [] or paths(world.hub.downloads()) == [
        "config.json",
        "model.safetensors.index.json",
    ]
    repository.commit({**files, "model.safetensors": A / "model.safetensors"})
    refused(world("validate", "org/sharded"), "F108", "hf://org/sharded/model.safetensors")
    assert world("diff", "hf://org/sharded/model.safetensors", "org/a").code == 0

    save(tensors, tmp_path / "pytorch_model.bin")
    world.hub.create(
        "org/pickle", {"config.json": A / "config.json", "pytorch_model.bin": tmp_path / "pytorch_model.bin"}
    )
    assert world("diff", "org/pickle", "org/a").code == 0


def test_revisions_and_folders(world: World) -> None:
    files = {f"checkpoints/{k}/{n}": p for k in (0, 2, 9, 10) for n, p in files_of(A).items()}
    run = world.hub.create("org/run", {**files, "checkpoints/best/config.json": b"{}", "README.md": b"#"})
    first = run.refs["main"]
    run.point("v1.0", run.commit({f"drafter/{n}": p for n, p in files_of(DRAFTERS / "b_nbr").items()}, branch="dev"))
    run.point("refs/pr/1", first)

    done = world("validate", "org/run")
    refused(done, "H409", "checkpoints/0, checkpoints/2, checkpoints/9, checkpoints/10",
            "the newest is hf://org/run/checkpoints/10")  # fmt: skip
    assert world.hub.downloads() == []
    refused(world("validate", "hf://org/run/checkpoints"), "H409", "hf://org/run/checkpoints/10")
    refused(world("validate", "org/run@v1.0"), "H409", "name it: hf://org/run@v1.0/drafter")
    for name in (
        "hf://org/run/checkpoints/9",
        f"hf://org/run@{first}/checkpoints/9",
        "hf://org/run@refs/pr/1/checkpoints/9",
    ):
        done = world("inspect", name, "--json")
        assert done.code == 0, done.text
        assert (done.json["input"]["given"], done.json["input"]["commit"]) == (name, first)
    assert_published(done.json, "inspect")
    done = world("diff", "hf://org/run/checkpoints/9", "hf://org/run@v1.0/drafter", "--json")
    assert done.code == 1 and done.json["b"]["commit"] == run.refs["v1.0"]
    assert_published(done.json, "diff")
    assert not world("validate", "org/a", "-q").text
    assert f"commit {first[:7]}" in world("diff", "hf://org/run/checkpoints/9", "org/a").stdout


def test_a_branch_that_moves(world: World) -> None:
    moving = world.hub.create("org/moving", files_of(A))
    assert world("inspect", "org/moving", "--json").json["input"]["commit"] == moving.refs["main"]
    second = moving.commit(files_of(DRAFTERS / "b_nbr"))
    found = world("inspect", "org/moving", "--json").json
    assert found["input"]["commit"] == second
    assert found["spec"]["norm_before_residual"]["value"] is True


def test_a_branch_that_does_not_rest(world: World) -> None:
    """Somebody commits whenever it is asked for by its name; what is read is one commit all the same."""
    busy = world.hub.create("org/restless", files_of(A))
    told: list[str] = []

    def commit() -> None:
        told.append(busy.commit({"note.txt": str(len(told)).encode()}))

    world.hub.faults = [
        Fault("/api/models/org/restless", times=100, do=commit),
        Fault("org/restless/resolve/main/", method="HEAD", times=100, do=commit),
    ]
    done = world("validate", "org/restless", "--json")
    world.hub.faults = []
    assert done.code == 0, done.text
    assert len(told) == 6 and done.json["input"]["commit"] == told[4]


def test_nothing_is_fetched_twice(world: World) -> None:
    world("validate", "org/a", "--target", "org/target")
    done = world("validate", "org/a", "--target", "org/target")
    assert done.code == 0 and world.hub.asked
    assert world.hub.downloads() == []
    assert {a.method for a in world.hub.asked} == {"GET"} and paths(world.hub.asked)[:1] == ["a"]

    offline = Client(world.home, HF_HUB_OFFLINE="1", HF_ENDPOINT=world.hub.url)
    again = offline("validate", "org/a", "--target", "org/target")
    assert (again.code, again.stdout) == (0, done.stdout)
    assert offline("validate", "org/a@main", "--target", "org/target@main").code == 0
    refused(offline("validate", "org/never"), "H405", "HF_HUB_OFFLINE", "no folder org/never", "hf download org/never")
    assert "no folder" not in offline("validate", "hf://org/never").stderr
    refused(offline("validate", "org/a@dev"), "H405")
    refused(offline("validate", "org/a", "--target", "org/never"), "H405", "no folder org/never")
    # A cache that holds a part of a drafter, and of a target its config alone.
    world.hub.create("org/partly", files_of(A))
    world.hub.create("org/config", files_of(TARGET))
    world.client.api("snapshot_download", "org/partly", allow_patterns=["config.json"])
    world.client.api("snapshot_download", "org/config", allow_patterns=["config.json"])
    refused(offline("validate", "org/partly"), "H405")
    refused(offline("validate", "org/a", "--target", "org/config"), "H405")
    assert offline("validate", "org/a", "--target", "hf://org/config/config.json").code == 0
    offline.close()

    # Unreachable is not offline: what the cache last saw is taken, with a word.
    nobody = Client(world.home, HF_ENDPOINT=f"http://127.0.0.1:{unused_port()}")
    there = nobody("validate", "org/a", "--target", "org/target")
    assert there.code == 0 and there.stdout.count("H412") == 2, there.text
    assert "H412" not in again.text + done.text
    commit = world.hub.repositories["org/a"].refs["main"]
    assert "H412" not in nobody("validate", f"org/a@{commit}").text
    missing = nobody("validate", "org/never")
    refused(missing, "H406", "cannot be reached", "no folder org/never", "HF_ENDPOINT")
    assert missing.seconds < 10  # the client's own attempts take 23
    nobody.close()


def test_a_server_that_says_nothing(tmp_path: Path) -> None:
    with deaf_server() as url:
        client = Client(tmp_path, HF_ENDPOINT=url.replace("://", "://user:secret@"), HF_HUB_ETAG_TIMEOUT="1")
        done = client("validate", "org/a")
        client.close()
    refused(done, "H406", f"{url} cannot be reached")
    assert done.seconds < 15 and "secret" not in done.text


@pytest.mark.parametrize(
    "answer",
    [{"sha": "a" * 40, "lastModified": "yesterday"}, {"sha": "a" * 40, "siblings": ["config.json"]}, {"siblings": []}]
    + [{"sha": commit, "siblings": []} for commit in (5, ["a"], "x/../../tmp", "main")],
    ids=["a date", "names", "no commit", "a number", "a list", "a path", "a branch"],
)
def test_a_server_that_is_no_hub(answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.hf_api import ModelInfo

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: ModelInfo(id="org/a", **answer))
    with pytest.raises(InputError) as caught:
        look_up(HubId("org/a"), "config.json")
    assert caught.value.finding.code == "H407" and "does not answer as a Hub" in caught.value.finding.message


# --- targets ------------------------------------------------------------------------------------------------


def spans(file: Path, name: str) -> str:
    """The range of a tensor in a safetensors file, as it is asked for."""
    header = read_header(file)
    tensor = header.tensors[name]
    return f"bytes={header.data_start + tensor.start}-{header.data_start + tensor.end - 1}"


def test_of_a_target_only_the_tables_are_fetched(world: World, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(TARGET / "model.safetensors")
    tables = {n: t for n, t in tensors.items() if not n.startswith("model.layers.")}
    shards = {
        "model-00001-of-00003.safetensors": {n: t for n, t in tensors.items() if n not in tables},
        "model-00002-of-00003.safetensors": tables | {"model.layers.0.mlp.big": torch.zeros(2 << 20)},
        "model-00003-of-00003.safetensors": {"model.visual.big": torch.zeros(2 << 20)},
    }
    files = {n: p for n, p in files_of(TARGET).items() if n != "model.safetensors"}
    weight_map = {}
    for shard, held in shards.items():
        save_file(held, tmp_path / shard)
        files[shard] = tmp_path / shard
        weight_map |= dict.fromkeys(held, shard)
    index = json.dumps({"weight_map": weight_map})
    files["model.safetensors.index.json"] = index.encode()
    repository = world.hub.create("org/big", files)
    held = blob(repository, "model-00002-of-00003.safetensors")
    command = ("validate", "org/a", "--sample", SAMPLE, "--json", "--target")

    # The first table breaks off, and then the Hub has no time.
    shard = tmp_path / "model-00002-of-00003.safetensors"
    table, *others = (
        spans(shard, name) for name in ("lm_head.weight", "model.embed_tokens.weight", "model.norm.weight")
    )
    start, end = (int(n) for n in table.removeprefix("bytes=").split("-"))
    world.hub.faults = [Fault(held, after=10_000, range=table), Fault(held, 503, range=table, times=9)]
    refused(world(*command, "org/big"), "H407", "answers 503")
    assert [a.range for a in world.hub.downloads() if held in a.path] == [f"bytes=0-{_FIRST - 1}", table]
    sent = sum(a.sent for a in world.hub.downloads() if a.path.startswith("/lfs/org/big"))
    world.hub.faults = []
    # The client writes blocks of 10 MB; this is what is left of a longer table.
    (part,) = world.home.glob("assets/eagle3-convert/org--big/**/*.part")
    part.write_bytes(shard.read_bytes()[start : start + 10_000])

    done = world(*command, "org/big")
    assert done.code == 0 and done.json["target"]["commit"] == repository.refs["main"], done.text
    ranges = [a.range for a in world.hub.downloads()]
    assert sorted(ranges) == sorted([f"bytes={start + 10_000}-{end}", *others])
    sent += sum(a.sent for a in world.hub.downloads())
    assert sent == 3 * _FIRST + sum(t.nbytes for n, t in tables.items())

    folder = tmp_path / "big"
    shutil.copytree(tmp_path, folder, ignore=shutil.ignore_patterns("big"))
    (folder / "config.json").write_bytes((TARGET / "config.json").read_bytes())
    (folder / "model.safetensors.index.json").write_text(index)
    local = world(*command, folder).json
    assert (local["embedding"], done.json["embedding"]) == ("target's", "target's")
    assert local["proof"] == done.json["proof"] and local["proof"]["level"] in ("anchored", "measured")


def test_what_a_target_says_of_tokens(world: World, tmp_path: Path) -> None:
    """With its weights by ranges, the verdict is that of the whole folder."""
    target, drafter = shutil.copytree(TARGET, tmp_path / "target"), shutil.copytree(A, tmp_path / "in")
    tokenizer = json.loads((TARGET / "tokenizer.json").read_text())
    names = list(tokenizer["model"]["vocab"])
    (drafter / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {n: i for i, n in enumerate(names[::-1])}}}))
    tokenizer["added_tokens"].append({"id": 600, "content": "<end of an answer>"})
    (target / "tokenizer.json").write_text(json.dumps(tokenizer))
    (target / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end of an answer>"}))
    for folder in (target, drafter):
        (folder / "chat_template.jinja").write_text(f"{{{{ {folder.name} }}}}")
    (target / "adapter_config.json").write_text("{}")
    world.hub.create("org/talks", {**files_of(target), **JUNK})
    command = ("validate", drafter, "--json", "--target")

    there = world(*command, "org/talks").json
    whole = {Path(a.path).name for a in world.hub.downloads() if not a.range}
    assert whole == {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json",
                     "chat_template.jinja", "adapter_config.json"}  # fmt: skip
    codes = {f["code"] for f in there["findings"]}
    assert codes >= {"C237", "C238", "C239", "C242", "V212"}
    here = world(*command, target).json
    for document in (here, there):
        document["target"] = {k: v for k, v in document["target"].items() if k not in ("where", "commit")}
    assert without_places(there, {"org/talks": "TARGET"}) == without_places(here, {target: "TARGET"})
    commit = world.hub.repositories["org/talks"].refs["main"]
    for given in (f"org/talks@{commit}", "hf://org/talks/config.json"):
        told = {f["code"] for f in world(*command, given).json["findings"]}
        assert (told >= codes) == (commit in given) and ("C237" in told) == (commit in given), given


def test_every_way_of_reading_brings_the_tensor_first(tmp_path: Path) -> None:
    """The target's tensors are elsewhere until one is read, and each is brought once."""
    file = TARGET / "model.safetensors"
    name, whole = "lm_head.weight", open_checkpoint(TARGET)
    asked: list[tuple[str, str]] = []

    def fetch(of: str, first: int, end: int, place: Path, what: str) -> None:
        asked.append((of, what))
        place.write_bytes(file.read_bytes()[first:end])

    readings: list[Callable[[Checkpoint], Any]] = [
        lambda c: c.read(name), lambda c: c.rows(name, 5, 7), lambda c: list(c.parts(name)),
        lambda c: c.picked(name, [9, 2]), lambda c: RowTable(c, name).picked([1]),
        lambda c: list(RowTable(c, name).blocks()),
        lambda c: c.cut({name: [8, 504]}).read(f"{name}[8:512]"),
        lambda c: [(s.not_finite, s.first) for s in scan(c, [name]).values()],
    ]  # fmt: skip
    for i, reading in enumerate(readings):
        (folder := tmp_path / str(i)).mkdir()
        ranged = RangedCheckpoint({file.name: (file.stat().st_size, read_header(file))}, folder, fetch)
        for _ in range(2):
            np.testing.assert_array_equal(np.asarray(reading(ranged)), np.asarray(reading(whole)))
        assert asked == [(file.name, name)] * (i + 1)
    # Only here, and where the input's bytes are moved to the output, is a tensor's file opened.
    converter = Path(cli.__file__).parents[1]
    opening = [p.name for p in converter.rglob("*.py") if re.search(r"(stored|tensor)\.file\.open\(", p.read_text())]
    assert opening == ["reader.py"]


def test_folders_of_a_target_are_kept_apart(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_ASSETS_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", str(tmp_path), raising=False)
    places = [_folder(HubId("org/run", "a" * 40, path)) for path in ("", "a/b", "a--b", "a b")]
    assert len(set(places)) == 4 and all(place.is_relative_to(tmp_path) for place in places)


def test_a_target_by_its_config_alone_and_one_without_safetensors(world: World) -> None:
    config = TARGET / "config.json"
    world.hub.create("org/pth", {"config.json": config, "consolidated.00.pth": b"all"})
    world("inspect", "org/a")  # then all that is fetched is the target's
    for target in ("hf://org/target/config.json", "org/pth"):
        done = world("validate", "org/a", "--target", target, "--json")
        assert done.code == 0 and done.json["target"]["layers"] == 6
        assert {a.path.partition("/resolve/")[2].partition("/")[2] for a in world.hub.downloads()} <= {"config.json"}
    launch = world("validate", "org/a", "--target", "hf://org/target@main/config.json", "--json").json["target"]
    assert launch["name"] == "org/target"


def test_a_target_that_is_in_the_cache_is_not_fetched(world: World) -> None:
    world.hub.create("org/served", files_of(TARGET))
    world.client.api("snapshot_download", "org/served")
    world("inspect", "org/own")
    done = world("validate", "org/own", "--target", "org/served", "--json")
    assert done.json["embedding"] == "target's" and world.hub.downloads() == []


def test_a_server_without_ranges(world: World) -> None:
    repository = world.hub.create("org/whole", files_of(TARGET))
    held = blob(repository, "model.safetensors")
    world.hub.faults = [Fault(held, ranges=False)]
    refused(world("validate", "org/a", "--target", "org/whole"), "H411", "hf://org/whole/config.json")
    world.hub.faults = [Fault(held, ranges=False, range="bytes=5920-")]  # its second table
    refused(world("validate", "org/a", "--target", "org/whole"), "H411")
    assert world("validate", "org/a", "--target", "org/whole").code == 0


def test_damaged_targets_are_refused(world: World) -> None:
    config = TARGET / "config.json"
    world.hub.create("org/damaged", {"config.json": config, "model.safetensors": b"\xff" * 4000})
    refused(world("validate", "org/a", "--target", "org/damaged"), "F101", "org/damaged/model.safetensors")


# --- what cannot be had -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "token", "code", "words"),
    [
        ("org/missing", "", "H401", ("no such repository, or it is private", "hf auth login", "no folder org/missing")),
        ("org/missing", MEMBER, "H401", ("your token may not read it",)),
        ("org/private", "", "H401", ("or it is private", "HF_TOKEN")),
        ("org/private", STRANGER, "H401", ("your token may not read it",)),
        ("org/private", "hf_of_nobody_81b2", "H404", ("does not accept the token", "401 with the token of HF_TOKEN")),
        ("org/a", "hf_übel", "H404", ("the token of HF_TOKEN holds characters that no token has",)),
        ("org/gated", "", "H402", ("/org/gated", "hf auth login")),
        ("org/gated", STRANGER, "H402", ("ask for access",)),
        ("org/a@nope", "", "H403", ("no revision nope",)),
        ("org/a-", "", "H401", ("no repository can be named",)),
        ("hf://org/a/nothing.safetensors", "", "F115", ("no file nothing.safetensors",)),
    ],
)
def test_repositories_that_cannot_be_read(
    world: World, name: str, token: str, code: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    forget(world, name)
    done = world("convert", name, tmp_path / "out", "--json", "--report", tmp_path / "r.html", token=token)
    refused(done, code, *words)
    assert done.json["findings"][0]["code"] == code and not (tmp_path / "out").exists()
    if name != "hf://org/a/nothing.safetensors":
        target = world("inspect", "org/a", "--target", name, token=token)
        refused(target, code, *words)
        refused(world("sample", "--target", name, "-o", tmp_path / "s", token=token), code)
    assert not token or token not in done.text + (tmp_path / "r.html").read_text()


def test_those_who_may_read_them_do_and_the_token_stays_secret(world: World, tmp_path: Path) -> None:
    for name in ("org/private", "org/gated"):
        out, report = tmp_path / name[4:], tmp_path / f"{name[4:]}.json"
        done = world("convert", name, out, "--target", name.replace("gated", "target").replace("private", "target"),
                     "-v", "--report", report, token=MEMBER)  # fmt: skip
        assert done.code == 0 and "Traceback" not in done.text, done.text
        signed = {a.path.split("/")[1] for a in world.hub.asked if a.signed}
        assert signed <= {"api", "org"} and any(a.path.startswith("/lfs/") for a in world.hub.asked)
        assert MEMBER not in done.text
    written = [p for folder in (tmp_path, world.home) for p in folder.rglob("*") if p.is_file()]
    assert len(written) > 10
    assert [p for p in written if MEMBER.encode() in p.read_bytes()] == []


def test_repositories_without_a_drafter(world: World) -> None:
    config, weights = A / "config.json", A / "model.safetensors"
    repositories: dict[str, tuple[dict[str, Path | bytes | None], tuple[str, ...]]] = {
        "org/words": ({"README.md": b"# soon"}, (".gitattributes, README.md",)),
        "org/gguf": ({"config.json": config, "m.Q4_0.gguf": b"GGUF"}, ("config.json, m.Q4_0.gguf",)),
        "org/bare": ({"model.safetensors": weights}, ("push the config.json",)),
        "org/state": (
            {"config.json": config, "training_state.pt": b"x"},
            ("hf download org/state", "training_state.pt"),
        ),
    }
    for name, (files, words) in repositories.items():
        world.hub.create(name, files)
        refused(world("validate", name), "H408", f"no drafter in {name}", *words)
        assert world.hub.downloads() == [] or paths(world.hub.downloads()) == ["config.json"]
    world.hub.create("org/folder", {"it's/config.json": config, "it's/training_state.pt": b"x"})
    get = shlex.join(["hf", "download", "org/folder", "--local-dir", "drafter", "--include", "it's/*"])
    refused(world("validate", "hf://org/folder/it's"), "H408", get)
    world.hub.create("org/two", {"config.json": config, "a.safetensors": weights, "b.safetensors": weights})
    refused(world("validate", "org/two"), "F108", "e.g. hf://org/two/a.safetensors")
    world.hub.create("org/odd", {"config.json": config, "drafter.safetensors": weights})
    assert world("diff", "org/odd", "org/a").code == 0


def test_a_busy_hub_and_a_connection_that_breaks(world: World) -> None:
    repository = world.hub.create("org/busy", files_of(A))
    held = blob(repository, "model.safetensors")
    world.hub.faults = [
        Fault("/api/models/org/busy", 429, retry_after="0"),
        Fault("/api/models/org/busy", 503, retry_after="0"),
        Fault(held, after=70_000),
    ]
    done = world("validate", "org/busy")
    assert done.code == 0, done.text
    assert [a.status for a in world.hub.asked if a.path.startswith("/api")] == [429, 503, 200]
    tries = [a.sent for a in world.hub.downloads() if held in a.path]
    assert tries == [70_000, (A / "model.safetensors").stat().st_size]  # less than a block was not kept

    world.hub.create("org/down", files_of(A))
    world.hub.faults = [Fault("/api/models/org/down", 429, retry_after="0", times=9)]
    refused(world("validate", "org/down"), "H407", "answers 429", "ask less often")
    world.hub.faults = [Fault("/api/models/org/down", 500, retry_after="0", times=9)]
    refused(world("validate", "org/down"), "H407", "answers 500")
    world.hub.faults = []
    assert world("validate", "org/down").code == 0
    # Once it is in the cache, a Hub that is down is no hindrance.
    world.hub.faults = [Fault("/api/models/org/down", 503, retry_after="0", times=9)]
    done = world("validate", "org/down")
    assert done.code == 0 and "H412" in done.text
    world.hub.faults = []


# --- folders and ids ----------------------------------------------------------------------------------------


def test_folders_come_first(world: World, tmp_path: Path) -> None:
    world("validate", "org/a")  # which puts it into the cache
    for name in ("org/a", "checkpoints/9"):
        shutil.copytree(DRAFTERS / "b_nbr", tmp_path / name)
    done = world("validate", "org/a", "--json", cwd=tmp_path)
    assert world.hub.asked == [] and done.json["spec"]["norm_before_residual"]["value"] is True
    (said,) = [f for f in done.json["findings"] if f["code"] == "F136"]
    assert said["severity"] == "note" and said["fix"] == ["to take the repository: hf://org/a"]
    assert "F136" not in world("validate", "checkpoints/9", cwd=tmp_path).text
    done = world("validate", "hf://org/a", "--json", cwd=tmp_path)
    assert done.json["spec"]["norm_before_residual"]["value"] is False and "F136" not in done.text
    # OUT may have the name of the repository: that is not written to.
    assert world("convert", "org/own", "org/own", cwd=tmp_path).code == 0

    (tmp_path / "org" / "empty").mkdir()
    refused(world("validate", "org/empty", cwd=tmp_path), "F107", "was meant: hf://org/empty")
    refused(world("validate", "https://huggingface.co/org/a/tree/main/x"), "F100", "did you mean hf://org/a@main/x?")
    done = world("validate", "hf://org")
    assert done.code == 2 and "expected hf://org/name" in done.stderr


# --- seals --------------------------------------------------------------------------------------------------


def test_a_seal_is_verified_where_it_lies(world: World, tmp_path: Path) -> None:
    """With no more fetched than has to be read; in the cache files are links."""
    keys = write_key(tmp_path / "key.pem", ec.generate_private_key(ec.SECP256R1()))
    out = tmp_path / "out"
    run(A, out, sign=str(keys.private))
    (out / "README.md").write_text("a card")
    repository = world.hub.create("org/sealed", {**files_of(out), "optimizer.pt": b"states", "runs/events": b"x"})
    done = world("seal", "verify", "org/sealed", "--signed", keys.public, "--json")
    assert done.code == 0 and done.json["headline"] == "Sealed, signed and unchanged.", done.text
    assert_published(done.json, "verify")
    assert done.json["commit"] == repository.refs["main"] and done.json["signature"]["holds"] is True
    sealed = {"config.json", "model.safetensors", SEAL, SIGNATURE}
    assert {a.path.rpartition("/")[2] for a in world.hub.downloads()} <= sealed | {
        blob(repository, name) for name in sealed
    }
    offline = Client(world.home, HF_HUB_OFFLINE="1", HF_ENDPOINT=world.hub.url)
    again = offline("seal", "verify", "org/sealed", "--signed", keys.public, "--json")
    assert again.code == 0 and again.json["files"] == done.json["files"]
    refused(offline("seal", "verify", "org/never"), "H405")
    offline.close()

    data = bytearray((out / "model.safetensors").read_bytes())
    data[-1] ^= 1
    repository.commit({**files_of(out), "model.safetensors": bytes(data)}, branch="tampered")
    done = world("seal", "verify", "org/sealed@tampered")
    assert done.code == 1 and "t2d changed; 15 tensors unchanged" in done.stdout and "C233" in done.stdout
    done = world("seal", "verify", "org/sealed@tampered", "--signed", keys.public)
    assert done.code == 1 and "H436" in done.stdout
    repository.commit({SEAL: (out / SEAL).read_bytes()}, branch="lost")
    lost = world("seal", "verify", "org/sealed@lost", "--json")
    assert lost.code == 1 and {f["state"] for f in lost.json["files"]} == {"gone"}
    done = world("seal", "verify", "org/a")
    assert done.code == 1 and "H413" in done.stdout
    refused(world("seal", "verify", "org/missing"), "H401")


def test_the_server_speaks_to_the_client(world: World) -> None:
    """What later commands will ask of a Hub: who asks, and a tree in pages."""
    assert world.client.api("whoami", token=MEMBER)["name"] == "member"
    world.hub.page = 3
    names = [f["path"] for f in world.client.api("list_repo_tree", "org/a", recursive=True)]
    world.hub.page = 1000
    assert sorted(names) == sorted([*world.hub.repositories["org/a"].entries(
        world.hub.repositories["org/a"].refs["main"]), "runs"])  # fmt: skip
    top = world.client.api("list_repo_tree", "org/a", "runs", revision="main")
    assert [f["path"] for f in top] == ["runs/events.out"]
    asked = [a.query.get("cursor") for a in world.hub.asked if "/tree/" in a.path]
    assert ["3"] in asked and ["6"] in asked


def test_every_code_of_the_hub_is_shown_here() -> None:
    text = Path(__file__).read_text()
    assert [code for code in catalogue() if "H401" <= code <= "H412" and f'"{code}"' not in text] == []
