"""Samples: tokens with the target's hidden states for them, held against the drafter.

Which forms there are is said in docs/samples.md; what their files hold is read by sample_tensors.py and
sample_pickles.py. States stay on disk until they are asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from converter.drafter.points import describe_points
from converter.drafter.spec import DrafterSpec
from converter.errors import InputError
from converter.findings import CAPTURE, Finding, error
from converter.forward.sample_files import find_files, open_file
from converter.forward.sample_forms import OWN, Labels, Last, Opened, States, Stored, no_sample, other_target
from converter.forward.sample_masks import MaskOf
from converter.forward.sample_notes import left_out, part_only, reordered, text_only
from converter.forward.sample_points import UNNAMED, last_state, points_of
from converter.forward.target_head import TargetHead
from converter.seal import sha256_of

FORMAT = "eagle3-convert/sample/1"


@dataclass(frozen=True, eq=False)
class SampleSequence:
    """One text of a sample; states and the target's choices are read or computed when asked for.

    tokens     [T] int64
    counts     [T] bool: tokens that the target wrote
    points     what the states may be asked for by
    states     the states on disk; the i-th point is the i-th state
    following  the target's choices [T] int64, or what computes them
    where      the file, for messages
    """

    name: str
    tokens: Tensor
    counts: Tensor
    points: tuple[int, ...]
    states: States = field(repr=False)
    following: Tensor | Callable[[], Tensor] = field(repr=False)
    where: str = ""

    @cached_property
    def target_next(self) -> Tensor:
        """[T] int64: the target's choice over its full vocabulary after each position."""
        return self.following if isinstance(self.following, Tensor) else self.following()

    def state(self, point: int, start: int = 0, stop: int | None = None) -> Tensor:
        """[stop-start, Ht] in the stored dtype (fp8 as bf16), on the CPU; only these rows are read.

        Raises InputError: F124 where a value is no number, and what readers raise.
        """
        stop = len(self.tokens) if stop is None else min(stop, len(self.tokens))
        return finite(self.states.rows(self.points.index(point), start, max(stop, start)), self, point, start)


@dataclass(frozen=True)
class Sample:
    """What was opened, all sequences alike.

    path         the file or folder that was named
    points       capture points of the states, in the file's order
    form         which form it has (sample_forms.py), in words for the report
    labels       where target_next comes from: the file; the target's head on its last state; the text itself
    decoding     "greedy", "sampled" or "" (unknown)
    fingerprint  of the target, as the metadata says; "" unknown
    captured     True where this tool captured the states from the target
    files        those that were opened, of a folder perhaps not all
    notes        what the user should know about the sample
    """

    path: Path
    points: tuple[int, ...]
    sequences: tuple[SampleSequence, ...]
    form: str
    labels: Labels
    decoding: str = ""
    fingerprint: str = ""
    captured: bool = False
    files: tuple[Path, ...] = ()
    notes: tuple[Finding, ...] = ()

    @property
    def labelled(self) -> bool:
        """Whether the file itself says which points its states are."""
        return self.form == OWN

    @property
    def tokens_sha256(self) -> str:
        """Of the tokens (64-bit, little-endian) and of what counts of each sequence, in order; not of the states."""
        digest = hashlib.sha256()
        for sequence in self.sequences:
            digest.update(sequence.tokens.numpy().astype("<i8").tobytes())
            digest.update(sequence.counts.numpy().tobytes())
        return digest.hexdigest()

    @property
    def file_names(self) -> list[str]:
        """Of `files`, as paths below `path`, sorted; of a sample that is one file its own name."""
        folder = self.path if self.path.is_dir() else self.path.parent
        return sorted(f.relative_to(folder).as_posix() for f in self.files)

    @cached_property
    def sha256(self) -> str:
        """Of the file; of a folder's files over what `sha256sum` prints for `file_names` in it, in this order.

        Reads them whole, once.
        """
        if self.path.is_file():
            return sha256_of(self.path)
        lines = (f"{sha256_of(self.path / name)}  {name}\n" for name in self.file_names)
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    @property
    def positions(self) -> int:
        """Positions that step 0 is scored on."""
        return sum(int(s.counts[1:].sum()) for s in self.sequences)


def read_sample(
    path: Path,
    spec: DrafterSpec,
    *,
    points: tuple[int, ...] | None = None,
    last_point: int | None = None,
    head: TargetHead | None = None,
    most: int | None = None,
    declared: bool = True,
) -> Sample:
    """Open a sample, a file or a folder of files of one form, and hold it against the drafter.

    points      what the states are, for files that do not say so
    last_point  the target's number of layers
    head        to compute the target's choices where the file has none
    declared    False where the drafter's capture points are not known: they cannot name a trainer's states, and any
                states will do for a search, as many as the drafter takes
    most        positions after which no further sequence is taken; those taken are spread over the sample

    Raises InputError: F120 no sample, F121 of another target, F122 lacks a capture point, F123 nothing to score,
    F125 the number of states and points differ, and what the readers of files raise.
    """
    if not path.exists():
        raise InputError(error("F100", f"the sample {path} does not exist", where=str(path), fix=("check the path",)))
    candidates = find_files(path)
    files: list[Opened] = []
    unknown: list[Path] = []
    taken: list[tuple[int, int, SampleSequence]] = []
    positions = short = again = 0
    texts: set[bytes] = set()
    masks = MaskOf()
    names: tuple[int, ...] = ()
    for number in spread(len(candidates)):
        if most is not None and positions >= most:
            break
        opened = open_file(candidates[number], spec.target_hidden_size)
        if opened is None:
            unknown.append(candidates[number])
            continue
        if not files:
            _check_width(opened.sequences[0], spec)
            names = points_of(opened, spec if declared else None, points, last_point)
            last = last_state(opened.form, names, last_point)
            labels: Labels = "target" if opened.form == OWN else "text" if head is None or last == "" else "computed"
            choices = _Choices(head, last) if labels == "computed" and head is not None else None
        files.append(opened)
        _one_form(path, files)
        for place in spread(len(opened.sequences)):
            if most is not None and positions >= most:
                break
            stored = opened.sequences[place]
            _check(stored, spec, len(names), files[0])
            if len(stored.tokens) < 2:
                short += 1
                continue
            text = stored.tokens.numpy().tobytes()
            if text in texts:
                again += 1
                continue
            texts.add(text)
            if len(candidates) > 1 and opened.form == OWN:
                stored = replace(stored, name=f"{opened.file.stem}: {stored.name}")
            sequence = _sequence(stored, names, masks, choices)
            positions += int(sequence.counts[1:].sum())
            taken.append((number, place, sequence))
    if not files:
        raise _none(path, unknown)
    form, metadata = files[0].form, files[0].metadata
    sequences = [sequence for *_, sequence in sorted(taken, key=lambda t: t[:2])]
    held = sum(len(f.sequences) for f in files)
    named = tuple(n for n in names if n != UNNAMED)
    if last_point is not None and max(named, default=0) > last_point:
        raise other_target(path, f"states of {describe_points(named)}", f"a target of {last_point} layers")
    _agree(path, files, head)
    notes = (
        *left_out(path, files, unknown, short, again),
        *part_only(path, positions, len(files), len(candidates) - len(unknown), len(sequences) + short + again, held),
        *masks.notes(path, len(sequences)),
        *(reordered(path, form, points, spec.capture_points) if declared else ()),
        *text_only(path, labels, head is not None, named, last_point),
    )
    sample = Sample(
        path,
        named,
        tuple(sequences),
        form,
        labels,
        _word(metadata, "decoding", ("greedy", "sampled")),
        metadata.get("target_fingerprint", ""),
        all(f.metadata.get("format") == FORMAT and f.metadata.get("captured") == "target" for f in files),
        tuple(f.file for f in files),
        notes,
    )
    _complete(sample, spec, declared)
    return sample


# --- opening ------------------------------------------------------------------------------------------------


def _one_form(path: Path, files: list[Opened]) -> None:
    first, opened = files[0], files[-1]
    if opened.form != first.form:
        raise no_sample(
            path,
            f"it holds several forms: {first.file.name} ({first.form}), {opened.file.name} ({opened.form})",
            "files of one form",
            ("name the folder or file of one of them",),
        )


def _none(path: Path, unknown: list[Path]) -> InputError:
    if path.is_file():
        return no_sample(path, "it has no tensor sK.hidden_states, nor those of a trainer's data")
    what = f"none of its {len(unknown)} files is one, e.g. {unknown[0].name}" if unknown else "the folder is empty"
    return no_sample(path, what)


def spread(count: int) -> Iterator[int]:
    """0..count-1 in an order of which every beginning lies evenly over the whole: 0, 1/2, 1/4, 3/4, 1/8, ..."""
    bits = max(count - 1, 0).bit_length()
    for i in range(1 << bits if count else 0):
        index = int(f"{i:0{bits}b}"[::-1], 2) if bits else 0
        if index < count:
            yield index


def _check(stored: Stored, spec: DrafterSpec, count: int, first: Opened) -> None:
    where = f"{stored.file.name}: {stored.name}"
    _check_width(stored, spec)
    if stored.states.count != count:
        expected = f"{count} as in {first.file.name}"
        raise no_sample(stored.file, f"{where} has {stored.states.count} states", expected)
    for ids in (stored.tokens, stored.choices):
        if ids is not None and len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < spec.vocab_size:
            found = f"tokens from {int(ids.min()):,} to {int(ids.max()):,} in {where}"
            raise other_target(stored.file, found, f"a vocabulary of {spec.vocab_size:,}, as the drafter's config says")


def _check_width(stored: Stored, spec: DrafterSpec) -> None:
    if stored.states.width != spec.target_hidden_size:
        expected = f"{spec.target_hidden_size} wide, as the drafter's config says"
        raise other_target(stored.file, f"states {stored.states.width} wide", expected)


def _sequence(
    stored: Stored,
    names: tuple[int, ...],
    masks: MaskOf,
    choices: _Choices | None,
) -> SampleSequence:
    counts, tokens = masks.of(stored), stored.tokens
    following: Tensor | Callable[[], Tensor]
    if stored.choices is not None:
        following = stored.choices
    elif choices is not None:
        following = choices.of(stored, counts)
    else:
        # After the last token the text says nothing, so that position does not count.
        following = torch.cat([tokens[1:], tokens[-1:]])
        counts = counts.clone()
        counts[-1] = False
    named = tuple(n for n in names if n != UNNAMED)
    return SampleSequence(stored.name, tokens, counts, named, stored.states, following, str(stored.file))


class _Choices:
    """The target's choices by its head, for all sequences at once when a score first asks for any.

    Only at tokens that count and those before them: elsewhere nothing asks, and a head is wide. There the text stands.
    """

    def __init__(self, head: TargetHead, last: Last) -> None:
        self._head, self._last = head, last
        self._asked: list[tuple[Stored, Tensor]] = []
        self._choices: list[Tensor] = []

    def of(self, stored: Stored, counts: Tensor) -> Callable[[], Tensor]:
        """What gives [T] int64 of one sequence."""
        asked = counts.clone()
        asked[:-1] |= counts[1:]
        self._asked.append((stored, asked))
        number = len(self._asked) - 1
        return lambda: self._compute()[number]

    def _compute(self) -> list[Tensor]:
        if not self._choices:
            states = torch.cat([self._states(stored)[asked] for stored, asked in self._asked])
            found = self._head.choices(states, normed=self._last == "normed")
            parts = torch.split(found, [int(asked.sum()) for _, asked in self._asked])
            for (stored, asked), part in zip(self._asked, parts, strict=True):
                choices = torch.cat([stored.tokens[1:], stored.tokens[-1:]])
                choices[asked] = part
                self._choices.append(choices)
        return self._choices

    def _states(self, stored: Stored) -> Tensor:
        normed = self._last == "normed"
        source = stored.normed if normed else stored.states
        assert source is not None
        return source.rows(0 if normed else int(self._last or 0), 0, len(stored.tokens))


def finite(values: Tensor, sequence: SampleSequence, point: int, start: int) -> Tensor:
    """`values` [n, Ht] as they are. Raises InputError F124 where one is NaN or infinite."""
    good = values.isfinite().all(-1)
    if bool(good.all()):
        return values
    bad = start + int((~good).nonzero()[0])
    raise InputError(
        error(
            "F124",
            "a state of the sample holds values that are no numbers",
            where=f"{sequence.where}: {sequence.name}",
            found=f"NaN or infinity in {describe_points((point,))} at position {bad}",
            expected="finite values",
            why="nothing that is computed from it means anything",
            fix=("capture the sample again, in bfloat16 or float32 where it was float16",),
        )
    )


# --- checks ---------------------------------------------------------------------------------------------------------


def _agree(path: Path, files: list[Opened], head: TargetHead | None) -> None:
    """Raises F120 where files of a folder are of different targets or points, F121 where they are not the given one."""
    first = files[0]
    for opened in files[1:]:
        for key in ("capture_points", "target", "target_fingerprint"):
            if opened.metadata.get(key) != first.metadata.get(key):
                found = f"{key} {opened.metadata.get(key)!r:.60} in {opened.file.name}"
                raise no_sample(path, f"its files do not belong together: {found}", f"{first.metadata.get(key)!r:.60}")
    stated = first.metadata.get("target_fingerprint", "")
    if head is not None and stated and head.fingerprint and stated != head.fingerprint:
        raise other_target(
            path,
            f"fingerprint {stated[:40]} ({first.metadata.get('target', 'unnamed')})",
            f"{head.fingerprint}, the target given with --target",
            where=str(first.file),
        )


def _complete(sample: Sample, spec: DrafterSpec, declared: bool) -> None:
    """Raises F122 where states are missing that the drafter is fed with, F123 where no position counts."""
    missing = tuple(p for p in dict.fromkeys(spec.capture_points) if p not in sample.points)
    if declared and missing:
        raise _lacking(
            sample,
            f"the sample has no states of {describe_points(missing)}",
            f"the drafter's {describe_points(spec.capture_points)}",
            "capture these states too, or correct the drafter's capture points with --aux",
        )
    if not declared and len(sample.points) < spec.num_points:
        raise _lacking(
            sample,
            "the sample has fewer states than the drafter takes",
            f"states at {spec.num_points} capture points or more",
            f"capture the states of more layers: {CAPTURE} --points all",
        )
    if sample.positions == 0:
        short = any(n.code == "F127" for n in sample.notes) and not sample.sequences
        raise InputError(
            error(
                "F123",
                "no position of the sample counts, so nothing could be measured",
                where=str(sample.path),
                found="no sequence of 2 tokens or more" if short else "loss_mask is zero everywhere",
                expected="1 at the tokens that the target wrote",
            )
        )


def _lacking(sample: Sample, message: str, expected: str, fix: str) -> InputError:
    found = f"states of {describe_points(sample.points)}" if sample.points else "no states"
    return InputError(error("F122", message, where=str(sample.path), found=found, expected=expected, fix=(fix,)))


def _word(metadata: Mapping[str, str], key: str, known: tuple[str, ...]) -> str:
    return metadata.get(key, "") if metadata.get(key) in known else ""
