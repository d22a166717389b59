"""Makes a sample, from the request to the file."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from converter.capture.parts import Parts, part_folder, remove_finished
from converter.capture.points import choose_points
from converter.capture.prompts import bundled_prompts, read_prompts, read_texts
from converter.capture.tokens import Input, Limits, prompt_inputs, text_inputs
from converter.checkpoint.header import DTYPE_BYTES, DTYPE_NAMES
from converter.checkpoint.jsonfile import in_text, read_object
from converter.checkpoint.paths import real
from converter.drafter.target import Target
from converter.errors import InputError, OutputError, UsageError
from converter.findings import error
from converter.fingerprint import target_fingerprint
from converter.hub.ids import hub_id, pinned
from converter.target import read_target
from converter.version import __version__

if TYPE_CHECKING:
    from converter.capture.answer import Captured, Runner
    from converter.capture.loading import Place

_TOKEN_BYTES = 17  # of a token itself: its id, the target's choice, the mask


@dataclass(frozen=True)
class Request:
    """What the user asked for; the options of the same names in `eagle3 sample --help`."""

    target: Path
    out: Path
    prompts: Path | None = None
    text: Path | None = None
    points: str = "default"
    drafter: Path | None = None
    greedy: bool = False
    seed: int = 0
    max_new_tokens: int = 256
    max_prompt_tokens: int = 1024
    limit: int | None = None
    chat_template: bool = True
    device: str = "auto"
    dtype: str = "auto"
    trust_remote_code: bool = False
    force: bool = False


@dataclass(frozen=True)
class Plan:
    """What a run will do at most, said before anything large is loaded.

    kind      prompt, or piece of text
    longest   tokens of the longest sequence
    width     of a state
    nbytes    of all sequences at their longest
    left_out  prompts that are longer than is allowed
    """

    kind: str
    sequences: int
    longest: int
    points: tuple[int, ...]
    width: int
    dtype: str
    nbytes: int
    left_out: int


@dataclass(frozen=True)
class Made:
    """What was written.

    size        bytes of the file
    positions   those that step 0 is scored on
    greedy      those of them whose token is the target's choice
    replaced    tokens of greedy answers that were not
    """

    out: Path
    size: int
    sequences: int
    positions: int
    greedy: int
    replaced: int
    points: tuple[int, ...]
    decoding: str
    dtype: str


class Show(Protocol):
    """Told what happens, in this order.

    bars       whether libraries may draw their own
    capturing  hears the positions that count of every sequence that is done
    merging    hears the bytes that are written
    """

    bars: bool

    def plan(self, plan: Plan) -> None: ...
    def begin(self, done: int, total: int) -> None: ...
    def capturing(self, done: int, total: int) -> AbstractContextManager[Callable[[int], None]]: ...
    def merging(self, total: int) -> AbstractContextManager[Callable[[int], None]]: ...


def make_sample(request: Request, show: Show) -> Made:
    """Make `request.out`, or go on where an earlier run of the same request was stopped.

    Raises UsageError, InputError (F100 to F115 of the target's files, F130 to F134) and OutputError; FILE is absent,
    as it was, or new and whole, and finished sequences stay in FILE.part.
    """
    _check_libraries()
    target = read_target(request.target)
    _check_out(request)
    if target.hidden_size is None:
        raise _no_width(target)
    points = choose_points(request.points, request.drafter, target)
    asked = _read(request)

    from converter.capture.loading import load_model, load_tokenizer, locate, quieten

    quieten(show.bars)
    place = locate(pinned(request.target, target.commit))
    tokenizer = load_tokenizer(place, request.trust_remote_code)
    limits = Limits(request.max_prompt_tokens, request.max_new_tokens, target.max_position_embeddings)
    left_out = 0
    if request.text is not None:
        inputs = text_inputs(asked, tokenizer, limits)[: request.limit]
    else:
        inputs, left_out = prompt_inputs(asked[: request.limit], tokenizer, limits, request.chat_template)
    plan = _plan(request, place, target.hidden_size, points, inputs, left_out)
    show.plan(plan)

    fingerprint, model = target_fingerprint(place.folder), None
    if not fingerprint:  # on the Hub, and not fetched yet; or in a form that only transformers reads
        model = load_model(place, request.dtype, request.device, request.trust_remote_code)
        fingerprint = target_fingerprint(place.folder)
    record = _record(request, fingerprint, points, inputs)
    with Parts(request.out, record) as parts:
        _check_space(plan, parts)
        todo = [k for k in range(len(inputs)) if k not in parts.done]
        show.begin(len(parts.done), len(inputs))
        if todo:
            model = model or load_model(place, request.dtype, request.device, request.trust_remote_code)
            runner = _runner(model, tokenizer, target, points, request.greedy)
            with show.capturing(len(parts.done), len(inputs)) as advance:
                for k in todo:
                    _keep(parts, k, runner.run(inputs[k], request.seed + k))
                    advance(parts.done[k].counted)
        return _merge(request, target, points, fingerprint, parts, show)


def _check_libraries() -> None:
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise UsageError(
            f"eagle3 sample needs {' and '.join(missing)}, which {verb} not installed:  "
            "pip install 'eagle3-convert[target]'"
        )


def _check_out(request: Request) -> None:
    out = request.out
    if out.is_dir():
        raise UsageError(f"-o {out} is a folder; name the file, e.g. {out / 'sample.safetensors'}")
    if hub_id(request.target) is None:
        folder = request.target if request.target.is_dir() else request.target.parent
        if real(out).parent == real(folder):
            raise UsageError(f"-o {out} lies in the target's folder, which is never written to")
    remove_finished(out)
    if os.path.lexists(out) and not request.force:
        raise UsageError(f"{out} exists; --force replaces it")


def _no_width(target: Target) -> InputError:
    return InputError(
        error(
            "F113",
            f"{target.where} does not describe a target model",
            where=target.where,
            expected="hidden_size",
            fix=("give the folder of the model that the drafter drafts for",),
        )
    )


def _read(request: Request) -> list[Any]:
    if request.prompts is not None and request.text is not None:
        raise UsageError("--prompts and --text exclude each other: the target answers, or reads")
    if request.text is not None:
        return read_texts(request.text)
    return bundled_prompts() if request.prompts is None else read_prompts(request.prompts)


def _plan(
    request: Request, place: Place, width: int, points: tuple[int, ...], inputs: list[Input], left_out: int
) -> Plan:
    dtype = request.dtype if request.dtype != "auto" else _dtype(place.folder / "config.json")
    lengths = [len(i.tokens) + i.new for i in inputs]
    nbytes = sum(lengths) * (len(points) * width * DTYPE_BYTES[dtype] + _TOKEN_BYTES)
    kind = "prompt" if request.text is None else "piece of text"
    return Plan(kind, len(inputs), max(lengths), points, width, dtype, nbytes, left_out)


def _dtype(config: Path) -> str:
    """The dtype that the config states, of the model or of its language model; float32 where it does not."""
    document = read_object(config)
    for part in (document, *(v for v in document.values() if isinstance(v, dict))):
        stated = part.get("dtype", part.get("torch_dtype"))
        if isinstance(stated, str) and stated in DTYPE_BYTES:
            return stated
    return "float32"


def _record(request: Request, fingerprint: str, points: tuple[int, ...], inputs: list[Input]) -> Mapping[str, Any]:
    """All that decides what the sequences are; another record is another sample."""
    tokens = json.dumps([[list(i.tokens), i.new] for i in inputs], separators=(",", ":"))
    return {
        "target": str(request.target),
        "target_fingerprint": fingerprint,
        "points": list(points),
        "decoding": _decoding(request),
        "seed": None if request.greedy or request.text is not None else request.seed,
        "dtype": request.dtype,
        "sequences": len(inputs),
        "tokens": hashlib.sha256(tokens.encode()).hexdigest(),
    }


def _decoding(request: Request) -> str:
    if request.text is not None:
        return "text"
    return "greedy" if request.greedy else "sampled"


def _check_space(plan: Plan, parts: Parts) -> None:
    """While the parts are merged they are there twice."""
    needed = 2 * plan.nbytes - parts.nbytes
    free = shutil.disk_usage(parts.folder).free
    if free < needed:
        raise OutputError(
            f"{parts.folder.parent} has {free:,} bytes free, and this sample may need {needed:,} while it is put "
            "together; ask for fewer --points or --max-new-tokens, take the first prompts with --limit, or write it "
            "elsewhere"
        )


def _runner(model: Any, tokenizer: Any, target: Target, points: tuple[int, ...], greedy: bool) -> Runner:
    from converter.capture.answer import Runner
    from converter.capture.decoder import find_stops

    assert target.layers is not None
    return Runner(model, tokenizer, find_stops(model, target.layers), points, greedy)


def _keep(parts: Parts, index: int, sequence: Captured) -> None:
    import torch

    names = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.float64: "F64"}
    states = sequence.states
    bits = states.view(torch.int16) if states.dtype == torch.bfloat16 else states  # numpy has no bfloat16
    counts = sequence.counts.bool()
    agrees = sequence.tokens[1:] == sequence.target_next[:-1]
    parts.add(
        index,
        {
            "input_ids": ("I64", sequence.tokens.numpy()),
            "target_next": ("I64", sequence.target_next.numpy()),
            "hidden_states": (names[states.dtype], bits.numpy()),
            "loss_mask": ("U8", sequence.counts.numpy()),
        },
        {
            "counted": int(counts[1:].sum()),
            "greedy": int((agrees & counts[1:]).sum()),
            "replaced": sequence.replaced,
        },
    )


def _merge(
    request: Request, target: Target, points: tuple[int, ...], fingerprint: str, parts: Parts, show: Show
) -> Made:
    from converter.forward.sample import FORMAT

    done = [parts.done[k] for k in sorted(parts.done)]
    positions = sum(part.counted for part in done)
    if positions == 0:
        raise InputError(
            error(
                "F123",
                "no position of the sample counts, so nothing could be measured",
                where=str(parts.folder),
                found="the target ended every answer at once",
                expected="answers of the target",
                fix=("give other prompts, or a text with --text",),
            )
        )
    dtype = DTYPE_NAMES[done[0].checkpoint.tensors["hidden_states"].info.dtype]
    metadata = {
        "format": FORMAT,
        "capture_points": " ".join(map(str, points)),
        "target": in_text(str(request.target)),
        "target_architecture": target.architecture,
        "target_fingerprint": fingerprint,
        "decoding": _decoding(request),
        "dtype": dtype,
        "captured": "target",
        "tool": f"eagle3-convert {__version__}",
    }
    greedy, replaced = sum(part.greedy for part in done), sum(part.replaced for part in done)
    if not request.force and os.path.lexists(request.out):
        raise OutputError(f"{request.out} has appeared meanwhile; the sequences are in {part_folder(request.out)}")
    with show.merging(parts.nbytes) as advance:
        size = parts.merge(request.out, metadata, advance)
    return Made(request.out, size, len(done), positions, greedy, replaced, points, metadata["decoding"], dtype)
