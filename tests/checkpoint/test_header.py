"""Headers against the real safetensors library: the same verdict, or an error with a code; never anything else."""

from __future__ import annotations

import json
import pickle
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from converter.checkpoint.header import DTYPE_BITS, MAX_HEADER, TensorInfo, build_header, parse_header, read_header
from converter.checkpoint.jsonfile import MAX_BYTES, read_object
from converter.checkpoint.reader import open_checkpoint
from converter.checkpoint.writer import OutputTensor, write_safetensors
from converter.errors import InputError

many = settings(
    max_examples=100, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
some = settings(many, max_examples=30)

Contents = dict[str, tuple[str, tuple[int, ...], bytes]]

NUMPY = ["?", "u1", "i1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8", "<c8"]
names = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12), st.sampled_from(["", "層.重み", "a/b"])
)
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
metadatas = st.dictionaries(names, names, max_size=3)


def filler(first: int, size: int) -> bytes:
    return bytes((first + 7 * i) % 256 for i in range(size))


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    dtype, shape = np.dtype(draw(st.sampled_from(NUMPY))), draw(shapes)
    data = filler(draw(st.integers(0, 255)), int(np.prod(shape, dtype=int)) * dtype.itemsize)
    if dtype == np.bool_:
        data = bytes(b % 2 for b in data)
    return np.frombuffer(data, dtype).reshape(shape)


@st.composite
def contents(draw: st.DrawFn) -> Contents:
    """Tensors of every dtype that the format has."""
    result: Contents = {}
    for name in draw(st.lists(names.filter(lambda n: n != "__metadata__"), unique=True, max_size=5)):
        dtype, shape = draw(st.sampled_from(sorted(DTYPE_BITS))), draw(shapes)
        bits = int(np.prod(shape, dtype=int)) * DTYPE_BITS[dtype]
        if bits % 8:
            shape, bits = (*shape, 4), bits * 4
        result[name] = (dtype, shape, filler(draw(st.integers(0, 255)), bits // 8))
    return result


def by_library(file: bytes) -> Contents | None:
    """What the safetensors library reads; None where it refuses."""
    try:
        entries = deserialize(file)
    except SafetensorError:
        return None
    return {name: (e["dtype"], tuple(e["shape"]), bytes(e["data"])) for name, e in entries}


def by_us(path: Path, file: bytes) -> Contents | None:
    """What we read; None where we refuse, which must be with a code of the F1xx kind and without delay."""
    path.write_bytes(file)
    started = time.monotonic()
    try:
        header = read_header(path)
    except InputError as problem:
        assert problem.finding.code in ("F101", "F102", "F103", "F104")
        assert len(problem.finding.message) < 500 and len(problem.finding.expected) < 500
        problem.finding.message.encode()
        return None
    finally:
        assert time.monotonic() - started < 5
    return {
        name: (info.dtype, info.shape, file[header.data_start + info.start : header.data_start + info.end])
        for name, info in header.tensors.items()
    }


def agree(path: Path, file: bytes) -> None:
    ours = by_us(path, file)
    if ours is not None:
        assert ours == by_library(file)


def with_header(text: bytes, data: bytes = b"") -> bytes:
    return len(text).to_bytes(8, "little") + text + data


def refusal(file: bytes, path: Path) -> str:
    path.write_bytes(file)
    with pytest.raises(InputError) as caught:
        read_header(path)
    return caught.value.finding.code


# --- well-formed files --------------------------------------------------------------------------------------


@many
@given(tensors=st.dictionaries(names.filter(lambda n: n != "__metadata__"), arrays(), max_size=5), metadata=metadatas)
def test_reads_what_the_library_wrote(
    tensors: dict[str, np.ndarray[Any, Any]], metadata: dict[str, str], tmp_path: Path
) -> None:
    file = save(tensors, metadata or None)
    assert by_us(tmp_path / "f", file) == by_library(file)
    assert read_header(tmp_path / "f").metadata == metadata
    checkpoint = open_checkpoint(tmp_path / "f")
    assert set(checkpoint.tensors) == set(tensors)
    for name, values in tensors.items():
        ours = checkpoint.read(name)
        assert (ours.dtype, ours.shape, ours.tobytes()) == (values.dtype, values.shape, values.tobytes())
        for i in range(values.shape[0] if values.ndim else 0):
            assert checkpoint.rows(name, i, 1).tobytes() == values[i].tobytes()


@pytest.mark.parametrize("length", range(64, 2300, 8))
def test_every_header_length_is_read(length: int, tmp_path: Path) -> None:
    """Some lengths begin with the first byte of a pickle (0x80) or, at 19,280, of a zip archive."""
    _read_length(length, tmp_path / "f")


def test_a_header_length_that_looks_like_a_zip_archive(tmp_path: Path) -> None:
    _read_length(int.from_bytes(b"PK", "little"), tmp_path / "f")


def _read_length(length: int, path: Path) -> None:
    text = b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}'.ljust(length)
    file = with_header(text, b"ab")
    assert by_us(path, file) == by_library(file) == {"a": ("U8", (2,), b"ab")}


@some
@given(wanted=contents(), metadata=metadatas)
def test_the_library_reads_what_we_wrote(wanted: Contents, metadata: dict[str, str], tmp_path: Path) -> None:
    source = tmp_path / "source"
    data = b"".join(data for _, _, data in wanted.values())
    infos: dict[str, TensorInfo] = {}
    for name, (dtype, shape, values) in wanted.items():
        start = sum(i.nbytes for i in infos.values())
        infos[name] = TensorInfo(dtype, shape, start, start + len(values))
    built = build_header(infos, metadata) + data
    assert len(built) % 8 == len(data) % 8
    assert by_library(built) == wanted == by_us(source, built)

    checkpoint = open_checkpoint(source)
    tensors = [
        OutputTensor(n, t.info.dtype, t.info.shape, t) for n, t in sorted(checkpoint.tensors.items(), reverse=True)
    ]
    out = tmp_path / "out"
    out.unlink(missing_ok=True)
    written = write_safetensors(out, tensors, metadata)
    assert by_library(out.read_bytes()) == wanted
    assert written.size == out.stat().st_size
    assert set(written.xxh3) == set(wanted)
    assert read_header(out).metadata == metadata


# --- damaged files ------------------------------------------------------------------------------------------


@many
@given(wanted=contents(), data=st.data())
def test_bytes_changed(wanted: Contents, data: st.DataObject, tmp_path: Path) -> None:
    file = bytearray(_valid(wanted))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, max(0, len(file) - 1)))
        piece = data.draw(
            st.sampled_from([b"", b"\xff", b"\0", b" ", b"-", b"1", b"9", b"[", b'"', b"\\ud800", b",", b"e9"])
        )
        match data.draw(st.sampled_from(["flip", "replace", "insert", "truncate", "extend"])):
            case "flip":
                file[place] ^= 1 << data.draw(st.integers(0, 7))
            case "replace":
                file[place : place + 1] = piece
            case "insert":
                file[place:place] = piece
            case "truncate":
                del file[place:]
            case "extend":
                file += piece
        if not file:
            break
    agree(tmp_path / "f", bytes(file))


@many
@given(wanted=contents(), data=st.data())
def test_header_text_changed(wanted: Contents, data: st.DataObject, tmp_path: Path) -> None:
    """As above, with the length put right again, so that the change reaches the JSON and not the length."""
    file = _valid(wanted)
    length = int.from_bytes(file[:8], "little")
    text, rest = bytearray(file[8 : 8 + length]), file[8 + length :]
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(text)))
        count = data.draw(st.integers(0, 2))
        text[place : place + count] = data.draw(st.sampled_from(PIECES))
    agree(tmp_path / "f", with_header(bytes(text), rest))


PIECES = [b"", b"0", b"1", b"-0", b"-1", b".0", b"e0", b"null", b"true", b"NaN", b"Infinity", b"1e999",
    b" ", b"\t", b"\0",
    b'"', b"\\", b"\\u0000", b"\\ud800", b"\\ud83d\\ude00", b"\xed\xa0\x80", b"\xff", b"\xef\xbb\xbf", b",", b":", b"[",
    b"]", b"{", b"}", b"[]", b"{}", b"9" * 30, b"//", b'"x":1,', b"\x1f", "é".encode()]  # fmt: skip

WEIRD: list[Any] = [
    None, True, False, -1, 0, 1, 2, 4, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64, 10**40, 0.0, 1.0, 1.5,
    "", "8", [], {},
    [True], [False], [0], [1], [-1], [1.0], [None], ["1"], [[1]], [0, 0], [0, 1], [1, 0], [0, 4],
    [2**62] * 5, [0, 2**62, 2**62],
    [2**62, 2**62, 0], [2**63], [0, 2**63], [2**64], [2**33, 2**33], [2**32, 2**32], [1] * 300, [0, 0, 0],
    "F32", "F64", "f32", "F4", "F6_E2M3", "BF16", "F8_E4M3", "U128", "BOOL",
]  # fmt: skip


@many
@given(wanted=contents().filter(bool), data=st.data())
def test_fields_changed(wanted: Contents, data: st.DataObject, tmp_path: Path) -> None:
    """Sizes, offsets, dtypes and shapes that contradict each other; holes and overlaps."""
    file = _valid(wanted)
    length = int.from_bytes(file[:8], "little")
    document, rest = json.loads(file[8 : 8 + length]), file[8 + length :]
    for _ in range(data.draw(st.integers(1, 2))):
        name = data.draw(st.sampled_from(sorted(wanted)))
        entry = document.get(name)
        if not isinstance(entry, dict):
            break
        field = data.draw(st.sampled_from(["dtype", "shape", "data_offsets"]))
        match data.draw(
            st.sampled_from(["weird", "shift", "start", "end", "swap", "drop", "more", "whole", "inner", "meta"])
        ):
            case "weird":
                entry[field] = data.draw(st.sampled_from(WEIRD))
            case "shift" if _offsets(entry):
                by = data.draw(st.integers(-9, 9))
                entry["data_offsets"] = [n + by for n in entry["data_offsets"]]
            case "start" if _offsets(entry):
                entry["data_offsets"][0] += data.draw(st.integers(-9, 9))
            case "end" if _offsets(entry):
                entry["data_offsets"][1] += data.draw(st.integers(-9, 9))
            case "swap":
                other = document.get(data.draw(st.sampled_from(sorted(wanted))))
                if isinstance(other, dict) and field in entry and field in other:
                    entry[field], other[field] = other[field], entry[field]
            case "drop":
                entry.pop(field, None)
            case "more":
                entry[data.draw(names)] = data.draw(st.sampled_from(WEIRD))
            case "whole":
                document[name] = data.draw(st.sampled_from(WEIRD))
            case "inner" if isinstance(entry.get("shape"), list) and entry["shape"]:
                entry["shape"][-1] = data.draw(st.sampled_from(WEIRD))
            case "meta":
                document["__metadata__"] = data.draw(st.sampled_from([*WEIRD, {"a": 1}, {"a": None}, {"a": ["b"]}]))
    agree(tmp_path / "f", with_header(json.dumps(document).encode(), rest))


def _valid(wanted: Contents) -> bytes:
    cursor, infos = 0, {}
    for name, (dtype, shape, values) in wanted.items():
        infos[name] = TensorInfo(dtype, shape, cursor, cursor + len(values))
        cursor += len(values)
    return build_header(infos, {"format": "pt"}) + b"".join(values for _, _, values in wanted.values())


def _offsets(entry: Mapping[str, Any]) -> bool:
    offsets = entry.get("data_offsets")
    return isinstance(offsets, list) and len(offsets) == 2 and all(type(n) is int for n in offsets)


@some
@given(st.binary(max_size=200))
def test_any_bytes_at_all(tmp_path: Path, file: bytes) -> None:
    agree(tmp_path / "f", file)
    agree(tmp_path / "f", with_header(file))


def entry(name: str = "a", start: int = 0, end: int = 4, shape: str = "[1]", dtype: str = '"F32"') -> str:
    return f'"{name}":{{"dtype":{dtype},"shape":{shape},"data_offsets":[{start},{end}]}}'


DAMAGED = {
    "overlap": (entry() + "," + entry("b", 2, 6), 6, "F104"),
    "two tensors in the same place": (entry() + "," + entry("b"), 4, "F104"),
    "hole": (entry() + "," + entry("b", 8, 12), 12, "F104"),
    "does not start at 0": (entry("a", 4, 8), 8, "F104"),
    "end before start": (entry("a", 4, 0), 4, "F104"),
    "wrong size": (entry(shape="[2]"), 4, "F104"),
    "trailing bytes": (entry(), 5, "F104"),
    "cut short": (entry(), 3, "F103"),
    "no data at all": (entry(), 0, "F103"),
    "the same name twice": (entry() + "," + entry("a", 4, 8), 8, "F104"),
    "the same field twice": ('"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}', 4, "F104"),
    "negative shape": (entry(shape="[-1]"), 4, "F104"),
    "two negative sizes": (entry(shape="[-1,-1]"), 4, "F104"),
    "minus zero": (entry(end=0, shape="[-0]"), 0, "F104"),
    "bool for a size": (entry(shape="[true]"), 4, "F104"),
    "float for a size": (entry(shape="[1.0]"), 4, "F104"),
    "text for a size": (entry(shape='["1"]'), 4, "F104"),
    "size 2^63": (entry(shape=f"[{2**63}]"), 4, "F104"),
    "sizes that wrap to 4 bytes": (entry(shape=f"[{2**62 + 1},4]", end=16), 16, "F104"),
    "a zero behind sizes beyond 64 bits": (entry(shape=f"[{2**62},{2**62},0]", end=0), 0, "F104"),
    "a product of 5,600 digits": (entry(shape=json.dumps([2**62] * 300)), 4, "F104"),
    "a number of 5,000 digits": (entry(shape="[" + "9" * 5000 + "]"), 4, "F104"),
    "offsets of 2^70": (entry(end=2**70), 4, "F104"),
    "three offsets": ('"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}', 4, "F104"),
    "unknown dtype": (entry(dtype='"F128"'), 4, "F104"),
    "dtype in lower case": (entry(dtype='"f32"'), 4, "F104"),
    "dtype is a list": (entry(dtype="[]"), 4, "F104"),
    "half a byte": (entry(dtype='"F4"', shape="[3]", end=1), 1, "F104"),
    "half a surrogate pair in a name": (entry("\\ud800"), 4, "F104"),
    "a control character in a name": (entry("\x01"), 4, "F104"),
    "NaN": (entry(shape="[NaN]"), 4, "F104"),
    "metadata that is no map": ('"__metadata__":[],' + entry(), 4, "F104"),
    "metadata of numbers": ('"__metadata__":{"a":1},' + entry(), 4, "F104"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged(case: str, tmp_path: Path) -> None:
    text, size, code = DAMAGED[case]
    file = with_header(b"{" + text.encode() + b"}", bytes(size))
    assert refusal(file, tmp_path / "f") == code
    if not case.startswith("the same "):  # the library takes the last of two
        assert by_library(file) is None


@pytest.mark.parametrize(
    "text",
    [b"", b" ", b"null", b"[]", b'"a"', b"{", b"{}x", b"{}\0", b"\xff", b"{'a':1}", b"[" * 100_000, b'{"a":' * 100_000],
    ids=lambda t: t[:12].decode("latin-1") + f" {len(t)}",
)  # fmt: skip
def test_no_json_object(text: bytes, tmp_path: Path) -> None:
    assert refusal(with_header(text), tmp_path / "f") == "F104"
    assert by_library(with_header(text)) is None


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-8-sig"])
def test_only_plain_utf8(encoding: str, tmp_path: Path) -> None:
    file = with_header(("{" + entry() + "}").encode(encoding), bytes(4))
    assert refusal(file, tmp_path / "f") == "F104"
    assert by_library(file) is None


def test_deep_nesting_in_one_entry(tmp_path: Path) -> None:
    deep = "[" * 50_000 + "]" * 50_000
    assert refusal(with_header(("{" + entry(shape=deep) + "}").encode()), tmp_path / "f") == "F104"


def test_a_shape_of_a_million_large_sizes_is_refused_at_once() -> None:
    text = ("{" + entry(shape=json.dumps([2**62] * 1_000_000)) + "}").encode()
    started = time.monotonic()
    with pytest.raises(InputError) as caught:
        parse_header(text, 4, 8, "f")
    assert time.monotonic() - started < 10
    assert caught.value.finding.code == "F104"
    assert len(caught.value.finding.message) < 500


# --- other things under the name ----------------------------------------------------------------------------


@pytest.mark.parametrize("claim", [MAX_HEADER + 1, 2**32, 2**63, 2**64 - 1])
def test_a_header_longer_than_the_format_allows(claim: int, tmp_path: Path) -> None:
    assert refusal(claim.to_bytes(8, "little") + b"{}", tmp_path / "f") == "F101"


def test_a_header_longer_than_the_format_allows_in_a_file_that_long(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with path.open("wb") as file:
        file.write((MAX_HEADER + 1).to_bytes(8, "little") + b"{")
        file.truncate(MAX_HEADER + 100)
    with pytest.raises(InputError) as caught:
        read_header(path)
    assert caught.value.finding.code == "F101"


def test_a_header_longer_than_the_file(tmp_path: Path) -> None:
    assert refusal((100).to_bytes(8, "little") + b"{}", tmp_path / "f") == "F101"
    assert refusal((3).to_bytes(8, "little") + b"{}", tmp_path / "f") == "F101"


@pytest.mark.parametrize("size", range(8))
def test_shorter_than_eight_bytes(size: int, tmp_path: Path) -> None:
    assert refusal(bytes(size), tmp_path / "f") == "F101"


def test_eight_bytes(tmp_path: Path) -> None:
    assert refusal(bytes(8), tmp_path / "f") == "F104"


def test_lfs_pointer(tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"
    assert refusal(pointer, tmp_path / "f") == "F102"


def test_pytorch_zip(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"a": 1}))
    with pytest.raises(InputError, match="pickle") as caught:
        read_header(path)
    assert caught.value.finding.code == "F101"


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_plain_pickle(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(pickle.dumps({"a": list(range(1000))}, protocol))
    with pytest.raises(InputError, match="pickle") as caught:
        read_header(path)
    assert caught.value.finding.code == "F101"


def test_a_web_page(tmp_path: Path) -> None:
    assert refusal(b"<!DOCTYPE html><html></html>", tmp_path / "f") == "F101"


def test_not_there_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(InputError) as caught:
            read_header(path)
        assert caught.value.finding.code == "F100"


# --- JSON files ---------------------------------------------------------------------------------------------

NOT_JSON = {
    "nothing": b"",
    "a list": b"[]",
    "cut": b'{"a":',
    "a key twice": b'{"a": 1, "a": 1}',
    "a key twice, inside": b'{"b": [{"a": 1, "a": 1}]}',
    "NaN": b'{"a": NaN}',
    "infinity": b'{"a": [-Infinity]}',
    "infinity by overflow": b'{"a": 1e999}',
    "a number of 5,000 digits": b'{"a": ' + b"9" * 5000 + b"}",
    "utf-16": '{"a": 1}'.encode("utf-16"),
    "byte order mark": '{"a": 1}'.encode("utf-8-sig"),
    "bytes that are no text": b'{"a": "\xff"}',
    "half a surrogate pair": b'{"a": ["\\udc80"]}',
    "half a surrogate pair in a key": b'{"\\uD800": 1}',
    "deep lists": b"[" * 100_000,
    "deep maps": b'{"a":' * 100_000,
}


@pytest.mark.parametrize("case", NOT_JSON)
def test_json_that_is_refused(case: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(NOT_JSON[case])
    with pytest.raises(InputError) as caught:
        read_object(path)
    assert caught.value.finding.code == "F110"
    assert len(caught.value.finding.message) < 500


def test_json_that_is_too_long(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.write(b"{}")
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(InputError, match="larger") as caught:
        read_object(path)
    assert caught.value.finding.code == "F110"


@pytest.mark.parametrize("path", ["absent.json", "."])
def test_json_that_cannot_be_read(path: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_object(tmp_path / path)
    assert caught.value.finding.code == "F100"


@some
@given(
    st.dictionaries(
        names,
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | names,
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
            max_leaves=8,
        ),
    )
)
def test_json_that_is_sound_is_read_as_it_is(tmp_path: Path, document: dict[str, Any]) -> None:
    path = tmp_path / "config.json"
    for ascii_only in (True, False):
        path.write_bytes(json.dumps(document, ensure_ascii=ascii_only).encode())
        assert read_object(path) == document
