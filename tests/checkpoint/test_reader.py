"""The forms in which checkpoints lie on disk, whole and damaged."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from converter.checkpoint.header import TensorInfo, build_header
from converter.checkpoint.reader import INDEX, SINGLE, Checkpoint, open_checkpoint, preadinto
from converter.errors import InputError
from converter.findings import Finding

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
A, B, C = np.arange(6, dtype="<f4").reshape(2, 3), np.arange(4, dtype="<i8"), np.ones((2, 2, 2), dtype="<f2")


def refused(path: Path) -> Finding:
    with pytest.raises(InputError) as caught:
        open_checkpoint(path)
    return caught.value.finding


def index(folder: Path, weight_map: Any) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    save_file({"a": A, "b": B}, tmp_path / FIRST, {"format": "pt"})
    save_file({"c": C}, tmp_path / SECOND)
    index(tmp_path, {"a": FIRST, "b": FIRST, "c": SECOND})
    return tmp_path


def same(checkpoint: Checkpoint, wanted: dict[str, np.ndarray[Any, Any]]) -> None:
    assert set(checkpoint.tensors) == set(wanted)
    for name, values in wanted.items():
        np.testing.assert_array_equal(checkpoint.read(name), values, strict=True)


# --- forms that are read ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [SINGLE, "drafter.safetensors"])
@pytest.mark.parametrize("as_file", [False, True])
def test_one_file(name: str, as_file: bool, tmp_path: Path) -> None:
    save_file({"a": A, "b": B}, tmp_path / name, {"format": "pt"})
    (tmp_path / "optimizer.pt").write_bytes(b"x")
    checkpoint = open_checkpoint(tmp_path / name if as_file else tmp_path)
    same(checkpoint, {"a": A, "b": B})
    assert not checkpoint.sharded
    assert checkpoint.metadata == {name: {"format": "pt"}}
    assert checkpoint.nbytes == (tmp_path / name).stat().st_size


def test_model_safetensors_counts_among_several(tmp_path: Path) -> None:
    save_file({"a": A}, tmp_path / SINGLE)
    save_file({"a": A + 1}, tmp_path / "other.safetensors")
    same(open_checkpoint(tmp_path), {"a": A})


def test_shards(shards: Path) -> None:
    checkpoint = open_checkpoint(shards)
    same(checkpoint, {"a": A, "b": B, "c": C})
    assert checkpoint.sharded
    assert [f.name for f in checkpoint.files] == [FIRST, SECOND]
    assert checkpoint.metadata == {FIRST: {"format": "pt"}, SECOND: {}}
    assert checkpoint.nbytes == sum((shards / f).stat().st_size for f in (FIRST, SECOND))


def test_one_shard_named_like_a_single_file(tmp_path: Path) -> None:
    save_file({"a": A}, tmp_path / SINGLE)
    index(tmp_path, {"a": SINGLE})
    assert open_checkpoint(tmp_path).sharded


def test_links_as_a_download_cache_has_them(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("snapshot")
    for file in shards.iterdir():
        (folder / file.name).symlink_to(file)
    same(open_checkpoint(folder), {"a": A, "b": B, "c": C})


def test_order_is_that_of_the_bytes(tmp_path: Path) -> None:
    infos = {"z": TensorInfo("U8", (1,), 2, 3), "a": TensorInfo("U8", (2,), 0, 2), "e": TensorInfo("U8", (0,), 2, 2)}
    (tmp_path / SINGLE).write_bytes(build_header(infos, {}) + b"xyz")
    checkpoint = open_checkpoint(tmp_path)
    assert [t.offset - checkpoint.tensors["a"].offset for t in checkpoint.tensors.values()] == [0, 2, 2]
    assert next(iter(checkpoint.tensors)) == "a"
    assert checkpoint.read("e").size == 0
    assert checkpoint.read("z").tobytes() == b"z"


# --- forms that are refused ---------------------------------------------------------------------------------


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert refused(tmp_path / "absent").code == "F100"


def test_empty_folder(tmp_path: Path) -> None:
    assert refused(tmp_path).code == "F107"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "last.ckpt"])
def test_only_pickles(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"x")
    finding = refused(tmp_path)
    assert finding.code == "F107"
    assert name in finding.found and finding.fix


def test_a_pickle_named_as_the_file(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.xx")
    assert refused(tmp_path / "pytorch_model.bin").code == "F101"


def test_several_files_without_an_index(shards: Path) -> None:
    (shards / INDEX).unlink()
    finding = refused(shards)
    assert finding.code == "F108"
    assert FIRST in finding.found and SECOND in finding.found
    assert FIRST in finding.fix[0]


def test_one_of_several_shards(shards: Path, tmp_path: Path) -> None:
    finding = refused(shards / SECOND)
    assert finding.code == "F108" and finding.fix == (f"name the folder: {shards}",)
    assert "not there" not in finding.message
    (shards / INDEX).unlink()
    finding = refused(shards / SECOND)
    assert finding.code == "F108" and "the others" in finding.message and "whole" in finding.fix[0]


def test_a_single_file_beside_an_index_of_others(shards: Path) -> None:
    save_file({"a": A}, shards / SINGLE)
    finding = refused(shards)
    assert finding.code == "F108"
    assert str(shards / SINGLE) in finding.fix[0]
    same(open_checkpoint(shards / SINGLE), {"a": A})


def test_a_missing_shard(shards: Path) -> None:
    (shards / SECOND).unlink()
    finding = refused(shards)
    assert finding.code == "F108"
    assert SECOND in finding.found and FIRST not in finding.found


def test_a_shard_that_is_a_folder_or_a_link_to_nothing(shards: Path) -> None:
    (shards / SECOND).unlink()
    (shards / SECOND).mkdir()
    assert refused(shards).code == "F108"
    (shards / SECOND).rmdir()
    (shards / SECOND).symlink_to("gone")
    assert refused(shards).code == "F108"


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../x.safetensors",
        "..",
        ".",
        "",
        "sub/x.safetensors",
        "./" + FIRST,
        "sub/../" + FIRST,
        FIRST + "/",
    ],
)
def test_an_index_that_names_a_place_outside(name: str, shards: Path) -> None:
    outside = shards / "sub"
    outside.mkdir()
    save_file({"c": C}, outside / "x.safetensors")
    index(shards, {"a": FIRST, "b": FIRST, "c": name})
    finding = refused(shards)
    assert finding.code == "F108"
    assert "outside" in finding.message


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "層" * 100], ids=["long", "nul", "long in bytes"])
def test_an_index_that_names_an_impossible_file(name: str, shards: Path) -> None:
    index(shards, {"a": FIRST, "b": FIRST, "c": name})
    finding = refused(shards)
    assert finding.code == "F108"
    assert "missing" in finding.message


@pytest.mark.parametrize(
    "weight_map",
    [
        {"a": FIRST, "c": SECOND},
        {"a": FIRST, "b": FIRST, "c": FIRST},
        {"a": SECOND, "b": FIRST, "c": SECOND},
        {"a": FIRST, "b": FIRST, "c": SECOND, "d": SECOND},
    ],
    ids=["left out", "second in first", "first in second", "in no file"],
)
def test_an_index_that_disagrees_with_the_files(weight_map: dict[str, str], shards: Path) -> None:
    index(shards, weight_map)
    finding = refused(shards)
    assert finding.code == "F108"
    assert "disagree" in finding.message


@pytest.mark.parametrize("weight_map", [None, [], {}, "x", {"a": 1}, {"a": None}, {"a": [FIRST]}])
def test_an_index_without_a_map(weight_map: Any, shards: Path) -> None:
    index(shards, weight_map)
    assert refused(shards).code == "F108"


@pytest.mark.parametrize("text", ["", "[]", '{"weight_map": {"a": "x", "a": "y"}}', "[" * 10_000])
def test_an_index_that_is_no_json(text: str, shards: Path) -> None:
    (shards / INDEX).write_text(text)
    assert refused(shards).code == "F110"


def test_an_index_that_is_a_link_to_nothing_is_not_overlooked(tmp_path: Path) -> None:
    save_file({"a": A}, tmp_path / FIRST)
    (tmp_path / INDEX).symlink_to("gone")
    assert refused(tmp_path).code == "F100"


def test_a_file_that_is_a_link_to_nothing(tmp_path: Path) -> None:
    (tmp_path / SINGLE).symlink_to("gone")
    assert refused(tmp_path).code == "F100"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / SINGLE).symlink_to("pipe")
    assert refused(tmp_path).code == "F107"
    assert refused(tmp_path / "pipe").code == "F107"


def test_a_tensor_in_two_shards(shards: Path) -> None:
    save_file({"c": C, "a": A}, shards / SECOND)
    finding = refused(shards)
    assert finding.code == "F106"
    assert FIRST in finding.where and SECOND in finding.where


def test_a_damaged_shard(shards: Path) -> None:
    with (shards / SECOND).open("r+b") as file:
        file.truncate((shards / SECOND).stat().st_size - 1)
    assert refused(shards).code == "F103"


# --- folders of checkpoints ---------------------------------------------------------------------------------


@pytest.mark.parametrize("newest", ["0", "2", "10"])
def test_a_folder_of_checkpoints(newest: str, tmp_path: Path) -> None:
    for number in ("0", "1", "2", "10"):
        (tmp_path / number).mkdir()
        file = tmp_path / number / SINGLE
        save_file({"a": A}, file)
        os.utime(file, (2e9, 2e9) if number == newest else (1e9, 1e9))
    (tmp_path / "logs").mkdir()
    finding = refused(tmp_path)
    assert finding.code == "F107"
    assert finding.found == "0, 1, 2, 10"
    assert finding.fix[0].endswith(str(tmp_path / newest))


def test_a_folder_of_checkpoints_with_a_link_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / SINGLE).symlink_to("gone")
    assert refused(tmp_path).code == "F107"


# --- reading values -----------------------------------------------------------------------------------------


def test_parts_along_the_first_axis(shards: Path) -> None:
    checkpoint = open_checkpoint(shards)
    for name, values in {"a": A, "b": B, "c": C}.items():
        for some in ([], [0], [*range(len(values)), 0], list(range(len(values)))[::-1]):
            np.testing.assert_array_equal(checkpoint.picked(name, some), values[some], strict=True)


@pytest.mark.parametrize(("start", "count"), [(0, 2), (0, 1), (1, 1), (1, 5), (2, 1), (9, 3), (0, 0)])
def test_some_rows_of_a_tensor(start: int, count: int, shards: Path) -> None:
    save_file({"c": C, "empty": np.zeros((0, 3), "f4"), "narrow": np.zeros((2, 0), "f4")}, shards / SECOND)
    index(shards, {"a": FIRST, "b": FIRST, "c": SECOND, "empty": SECOND, "narrow": SECOND})
    checkpoint = open_checkpoint(shards)
    for name in ("a", "b", "c", "empty", "narrow"):
        wanted = checkpoint.read(name)[start : start + count]
        np.testing.assert_array_equal(checkpoint.rows(name, start, count), wanted, strict=True)


@pytest.mark.parametrize("part", [-1, 2, 3, 10**9])
def test_a_part_that_is_not_there(part: int, shards: Path) -> None:
    with pytest.raises(IndexError):
        open_checkpoint(shards).picked("a", [0, part])


def test_a_part_of_a_tensor_without_parts(tmp_path: Path) -> None:
    save_file({"scalar": np.array(3, "f4"), "empty": np.zeros((0, 3), "f4")}, tmp_path / SINGLE)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.read("scalar").shape == ()
    assert checkpoint.read("empty").shape == (0, 3)
    for name in ("scalar", "empty"):
        with pytest.raises(IndexError):
            checkpoint.picked(name, [0])


@pytest.mark.parametrize("dtype", ["F4", "F6_E2M3", "F6_E3M2"])
def test_a_packed_dtype_is_opened_but_not_read(dtype: str, tmp_path: Path) -> None:
    size = 2 if dtype == "F4" else 3
    (tmp_path / SINGLE).write_bytes(build_header({"a": TensorInfo(dtype, (4,), 0, size)}, {}) + bytes(size))
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(InputError) as caught:
        checkpoint.read("a")
    assert caught.value.finding.code == "F105"


def test_reading_where_the_system_has_no_preadv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "preadv", raising=False)
    (tmp_path / "f").write_bytes(b"0123456789")
    buffer = bytearray(4)
    with (tmp_path / "f").open("rb", buffering=0) as file:
        assert preadinto(file.fileno(), memoryview(buffer), 3) == 4
        assert bytes(buffer) == b"3456"
        assert preadinto(file.fileno(), memoryview(buffer), 8) == 2
        assert preadinto(file.fileno(), memoryview(buffer), 10) == 0


# --- files that change while they are read ------------------------------------------------------------------


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


def overwrite(path: Path) -> None:
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(1, 1))


def replace(path: Path) -> None:
    stat, data = path.stat(), path.read_bytes()
    other = path.with_name("other")
    other.write_bytes(data)
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    other.rename(path)


def shorten(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize("change", [append, overwrite, replace, shorten, Path.unlink])
@pytest.mark.parametrize("name", [FIRST, SECOND])
def test_a_change_is_noticed(change: Any, name: str, shards: Path) -> None:
    checkpoint = open_checkpoint(shards)
    checkpoint.read("a")
    checkpoint.assert_unchanged()
    change(shards / name)
    with pytest.raises(InputError) as caught:
        checkpoint.assert_unchanged()
    assert caught.value.finding.code == "F109"
    assert name in caught.value.finding.message


def test_a_change_between_header_and_stamp_is_noticed(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is replaced by another just after its header was read."""
    from converter.checkpoint import reader

    read = reader.read_header

    def read_then_replaced(path: Path) -> Any:
        header = read(path)
        if path.name == SECOND:
            save_file({"c": C + 1}, path)
            os.utime(path, ns=(1, 1))
        return header

    monkeypatch.setattr(reader, "read_header", read_then_replaced)
    checkpoint = open_checkpoint(shards)
    with pytest.raises(InputError) as caught:
        checkpoint.assert_unchanged()
    assert caught.value.finding.code == "F109"


def test_reading_a_file_that_became_shorter_or_went_away(shards: Path) -> None:
    checkpoint = open_checkpoint(shards)
    shorten(shards / SECOND)
    with pytest.raises(InputError) as caught:
        checkpoint.read("c")
    assert caught.value.finding.code == "F109"
    (shards / SECOND).unlink()
    with pytest.raises(InputError) as caught:
        checkpoint.read("c")
    assert caught.value.finding.code == "F100"
