"""A checkpoint in a repository of which only the headers, and the tensors that are read, are fetched.

A safetensors file begins with the places of its tensors, so each is one range of bytes. What was fetched is kept in
huggingface_hub's cache of assets, by commit, and read from there; a download that was cut goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from converter.checkpoint.header import MAX_HEADER, Header, parse_file
from converter.checkpoint.jsonfile import read_object
from converter.checkpoint.reader import INDEX, SINGLE, Checkpoint, StoredTensor, open_checkpoint
from converter.checkpoint.whole import write_whole
from converter.hub.ids import HubId
from converter.hub.refusals import NoRanges, explained, not_cached
from converter.hub.snapshot import CONFIG, LIBRARY, Snapshot, cached, look_up, persistently
from converter.threads import in_threads

_FIRST = 128 << 10  # bytes that hold the header of most files
_AT_ONCE = 8  # headers
_HEADERS = "headers.json"

# Fetches bytes first..end-1 of a file of the repository into a file here; the last argument says what they are.
Fetch = Callable[[str, int, int, Path, str], None]


class RangedCheckpoint(Checkpoint):
    """`tensors` has those of all files; the bytes of one are fetched, whole, when any of it is read for the first time.

    Reading raises InputError H401 to H411 and OutputError, beside what `Checkpoint` raises.
    """

    def __init__(self, headers: Mapping[str, tuple[int, Header]], folder: Path, fetch: Fetch) -> None:
        super().__init__([], sharded=len(headers) > 1)
        self._size = sum(size for size, _ in headers.values())
        self._fetch = fetch
        self._from: dict[str, tuple[str, int, int]] = {}
        for file, (_, header) in headers.items():
            self.metadata[file] = header.metadata
            for name, info in sorted(header.tensors.items(), key=lambda item: item[1].start):
                kept = folder / hashlib.sha256(name.encode()).hexdigest()[:32]  # a name of one's own: theirs may be any
                self.tensors[name] = StoredTensor(name, kept, 0, info)
                self._from[name] = file, header.data_start + info.start, header.data_start + info.end

    @property
    def nbytes(self) -> int:
        return self._size

    @contextmanager
    def opened(self, tensor: StoredTensor) -> Iterator[BufferedReader]:
        if not tensor.file.exists():
            whole = tensor.whole or tensor.name
            of, first, end = self._from[whole]
            self._fetch(of, first, end, tensor.file, whole)
        with super().opened(tensor) as file:
            yield file


def open_weights(named: HubId) -> Checkpoint | None:
    """The weights of `named`, which is a commit: those in the cache where it has them whole, else by ranges.

    None where they are not in safetensors, or several files without an index, or where a config.json is named. Raises
    InputError H401 to H411, F101 to F105, and OutputError.
    """
    if named.path.endswith(".json"):
        return None
    with explained(named):
        folder = _folder(named)
        found: list[Snapshot] = []

        def fetch(file: str, first: int, end: int, place: Path, what: str) -> None:
            if not found:  # the headers came from the cache
                found.append(look_up(named, named.file(CONFIG)))
            _fetch_to_file(found[0], file, first, end, place, what)

        kept = folder / _HEADERS
        if not kept.exists():
            whole = _whole(named)
            if whole is not None:
                return open_checkpoint(whole)
            found.append(look_up(named, named.file(CONFIG)))
            write_whole(kept, json.dumps(_read_headers(found[0])))
        headers = {file: _parsed(named, file, entry) for file, entry in read_object(kept).items()}
        return RangedCheckpoint(headers, folder, fetch) if headers else None


def _whole(named: HubId) -> Path | None:
    """The folder in the cache where it holds all files of the checkpoint."""
    single, index = (cached(named, named.file(name)) for name in (SINGLE, INDEX))
    if index is None:
        return None if single is None else single.parent
    shards = set(_shards(index))
    return index.parent if shards and all(cached(named, named.file(n)) for n in shards) else None


def _shards(index: Path) -> list[str]:
    weight_map = read_object(index).get("weight_map")
    return [str(v) for v in weight_map.values()] if isinstance(weight_map, dict) else []


def _read_headers(snapshot: Snapshot) -> dict[str, dict[str, Any]]:
    """Of each file of the checkpoint its size and the JSON of its header."""
    if snapshot.files is None:
        raise not_cached(snapshot.named, "its weights")
    files = [snapshot.named.file(name) for name in _files(snapshot)]
    with _bars_off():
        read = in_threads(lambda file: _header(snapshot, file), files, _AT_ONCE, "headers")
        return {file: {"size": size, "header": text} for file, (size, text) in zip(files, read, strict=True)}


def _parsed(named: HubId, file: str, entry: Mapping[str, Any]) -> tuple[int, Header]:
    text, size = entry["header"].encode(), entry["size"]
    start = BytesIO(len(text).to_bytes(8, "little") + text)
    return size, parse_file(Path(f"{named.repo}/{file}"), start, size)


def _files(snapshot: Snapshot) -> list[str]:
    """Names of the safetensors files in the folder that make the checkpoint, as `open_checkpoint` chooses them."""
    named = snapshot.named
    names = {named.within(file) for file in snapshot.files or ()}
    if INDEX in names:
        shards = set(_shards(snapshot.fetch(named.file(INDEX))))
        return sorted(shards) if shards <= names else []
    found = [n for n in names if n.endswith(".safetensors")]
    return [SINGLE] if SINGLE in found else found if len(found) == 1 else []


def _header(snapshot: Snapshot, file: str) -> tuple[int, str]:
    """Size of a file, and the JSON of its header."""
    size = (snapshot.files or {}).get(file) or 0
    buffer = BytesIO()
    _fetch_range(snapshot, file, 0, min(size, _FIRST), buffer)
    length = int.from_bytes(buffer.getvalue()[:8], "little")
    if len(buffer.getvalue()) < 8 + length <= min(size, MAX_HEADER):
        _fetch_range(snapshot, file, len(buffer.getvalue()), 8 + length, buffer)
    buffer.seek(0)
    parse_file(Path(f"{snapshot.named.repo}/{file}"), buffer, size)
    return size, buffer.getvalue()[8 : 8 + length].decode()


def _fetch_to_file(snapshot: Snapshot, file: str, first: int, end: int, place: Path, what: str) -> None:
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    part = place.with_suffix(".part")
    with explained(snapshot.named, what), WeakFileLock(place.with_suffix(".lock")):
        if place.exists():  # another run was first
            return
        try:
            with part.open("ab") as out, _bar(what, end - first, out.tell()) as advance, _bars_off():
                _fetch_range(snapshot, file, first + out.tell(), end, out, advance)
                out.flush()
                os.fsync(out.fileno())
        except NoRanges:
            part.unlink()
            raise
        part.replace(place)


class _Exactly:
    """A file that takes `most` bytes: a server that knows no ranges sends all of a model."""

    def __init__(self, file: BinaryIO, most: int, advance: Callable[[int], object] | None) -> None:
        self._file, self._most, self._advance = file, most, advance
        self._written = 0

    def write(self, data: bytes) -> int:
        if self._written + len(data) > self._most:
            raise NoRanges("more bytes than were asked for")
        self._written += len(data)
        if self._advance is not None:
            self._advance(len(data))
        return self._file.write(data)

    def tell(self) -> int:
        return self._written

    def seek(self, *_: int) -> int:  # the client goes back where only the rest was asked for, and everything is sent
        raise NoRanges("the rest was asked for, and everything is sent")


def _fetch_range(
    snapshot: Snapshot,
    file: str,
    first: int,
    end: int,
    out: BinaryIO,
    advance: Callable[[int], object] | None = None,
) -> None:
    """Append bytes first..end-1 of `file` to `out`, in blocks; a connection that breaks is taken up again."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    named = snapshot.named
    url = hf_hub_url(named.repo, file, revision=snapshot.commit)
    headers = {**build_hf_headers(**LIBRARY), "Accept-Encoding": "identity"}

    def go_on() -> None:
        nonlocal first
        target: Any = _Exactly(out, end - first, advance)
        wanted = {**headers, "Range": f"bytes={first}-{end - 1}"}
        try:
            http_get(url, target, headers=wanted, expected_size=end - first, displayed_filename=file)
        finally:
            first += target.tell()

    with explained(named, file):
        if first < end:
            persistently(go_on)


def _folder(named: HubId) -> Path:
    """A folder's own by a digest: the client writes a slash as --, which may be in a name as well."""
    from huggingface_hub import cached_assets_path

    of = f"-{hashlib.sha256(named.path.encode()).hexdigest()[:32]}" if named.path else ""
    return cached_assets_path("eagle3-convert", named.repo, named.revision + of)


@contextmanager
def _bar(what: str, total: int, done: int) -> Iterator[Callable[[int], object]]:
    """huggingface_hub's bar for this part of a file."""
    from huggingface_hub.utils.tqdm import tqdm

    with tqdm(  # type: ignore[no-untyped-call]
        desc=what, total=total, initial=done, unit="B", unit_scale=True, disable=None
    ) as bar:
        yield bar.update


@contextmanager
def _bars_off() -> Iterator[None]:
    """Without the client's own bar, which counts the whole file."""
    from huggingface_hub import constants
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    name = "huggingface_hub.http_get"
    if are_progress_bars_disabled(name) or constants.HF_HUB_DISABLE_PROGRESS_BARS is not None:  # the user's word
        yield
        return
    disable_progress_bars(name)
    try:
        yield
    finally:
        enable_progress_bars(name)
