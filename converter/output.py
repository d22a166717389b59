"""OUT on disk: whether it may be written, and its weight files as the plan has them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from converter import seal
from converter.checkpoint.jsonfile import read_object, reading
from converter.checkpoint.leftovers import is_hidden
from converter.checkpoint.paths import real
from converter.checkpoint.reader import INDEX
from converter.checkpoint.writer import OutputTensor, WrittenFile, writing
from converter.checks.precision import no_numbers
from converter.drafter.drafter import Drafter
from converter.errors import InputError, OutputError, UsageError
from converter.findings import Finding
from converter.plan import Plan, TensorPlan
from converter.transforms import MAP_OPERATIONS, apply
from converter.workers import cores

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Progress(Protocol):
    """Told how many bytes are written; `total` comes first."""

    def __call__(self, total: int) -> AbstractContextManager[Any]: ...


def check_out(given: Path, given_source: str, read: Sequence[Path] = (), *, force: bool) -> None:
    """Raises UsageError where OUT may not be written: it exists, or lies in IN, or IN or one of its files in it; and
    InputError F100 where IN cannot be looked at.

    read  the files of IN, which may be links to elsewhere
    """
    out, source = real(given), real(Path(given_source))
    if any(_same(out, place) for place in (source, *source.parents)):
        raise UsageError(f"OUT {given} is or holds IN {given_source}; IN is never written to")
    with reading(source):
        is_folder = source.is_dir()
    if is_folder and any(_same(source, place) for place in out.parents):
        raise UsageError(f"OUT {given} lies inside IN {given_source}; IN is never written to")
    if given.is_symlink() and not force:
        raise UsageError(f"OUT {given} is a link to {out}; give that folder itself, or replace the link with --force")
    if not os.path.lexists(given) or (out.is_dir() and not any(out.iterdir())):
        return
    if not force:
        raise UsageError(f"OUT {given} exists; --force replaces what an earlier run wrote there")
    sealed = _sealed(out)
    if sealed is None:
        raise UsageError(f"OUT {given} was not written by eagle3-convert (it has no seal); move it away first")
    linked = [file for file in read if out in real(file).parents]
    if linked and not given.is_symlink():
        raise UsageError(f"OUT {given} holds what IN's {linked[0].name} is a link to; IN is never written to")
    if not (given.is_symlink() or os.access(out, os.W_OK)):
        raise UsageError(f"OUT {given} may not be written to (its mode, or its owner); move it away first")
    # A hidden file is of a run that was killed while it signed OUT.
    others = sorted(p.name for p in out.iterdir() if p.name not in sealed and not is_hidden(p.name))
    if others:
        raise UsageError(
            f"OUT {given} holds files that eagle3-convert did not write: {', '.join(others[:5])}; move them away first"
        )


def _sealed(out: Path) -> set[str] | None:
    """The files that OUT's seal lists. Raises OutputError where the disk does not say."""
    try:
        return seal.listed_files(read_object(out / seal.NAME))
    except InputError as problem:
        if problem.finding.code == "F100" and not isinstance(
            problem.__cause__, (FileNotFoundError, NotADirectoryError)
        ):
            raise OutputError(f"{problem}; so nothing says whether OUT may be replaced") from problem
    return None


def _same(one: Path, other: Path) -> bool:
    """Whether both are one folder, also where it is mounted in two places."""
    try:
        return one == other or one.samefile(other)
    except OSError:  # one is not there
        return False


def write_weights(
    drafter: Drafter,
    plan: Plan,
    folder: Path,
    digest: bool,
    progress: Progress,
    input_digests: dict[str, str],
) -> list[WrittenFile]:
    """Write the planned tensors into `folder`; digests of changed inputs are left in `input_digests`.

    One file is written after another, while those before it are still digested: SHA-256 takes a core for each.
    """
    files = {file: [_output(drafter, t, input_digests) for t in tensors] for file, tensors in plan.files.items()}
    total = sum(t.nbytes for tensors in files.values() for t in tensors)
    ends: list[Callable[[], WrittenFile]] = []
    with ExitStack() as stack, progress(total) as advance:
        for name, tensors in files.items():
            metadata = drafter.checkpoint.metadata.get(name) or next(iter(drafter.checkpoint.metadata.values()))
            if len(ends) >= cores():
                ends[-cores()]()
            ends.append(stack.enter_context(writing(folder / name, tensors, metadata, digest=digest, progress=advance)))
        written = [end() for end in ends]
    if plan.sharded:
        weight_map = {t.name: t.file for t in plan.tensors}
        seal.write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})
    return written


def not_finite(written: list[WrittenFile]) -> list[Finding]:
    """N103 for each written tensor with NaN or infinite values."""
    return [no_numbers(name, count) for file in written for name, count in file.not_finite.items()]


def _output(drafter: Drafter, tensor: TensorPlan, input_digests: dict[str, str]) -> OutputTensor:
    stored = drafter.checkpoint.tensors[tensor.stored]
    if not tensor.changed:
        return OutputTensor(tensor.name, tensor.dtype, tensor.shape, stored)

    def make() -> Iterator[NDArray[np.generic]]:
        import xxhash

        made_of_map = tensor.operations[0].name in MAP_OPERATIONS
        digest = xxhash.xxh3_128()
        for part in drafter.checkpoint.parts(tensor.stored):
            digest.update(part.data)
            if not made_of_map:
                yield apply(tensor.operations, part)
        input_digests[tensor.stored] = digest.hexdigest()
        if made_of_map:
            yield MAP_OPERATIONS[tensor.operations[0].name](drafter.map, drafter.spec.vocab_size)

    return OutputTensor(tensor.name, tensor.dtype, tensor.shape, stored, make)
