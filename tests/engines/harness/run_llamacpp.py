"""Runs a target and a drafter, as GGUF files, in llama.cpp's own library on a CPU.

Run by `runner.py` with the folder that holds llama-cpp-python's package `llama_cpp` on PYTHONPATH; of it only the
declarations of llama.cpp's functions are used. A job has

    name        what the result is found under
    target      the target's GGUF file
    drafter     the drafter's, absent where only the target is run
    points      layers of which the target's input is kept
    tokens      token ids of one sequence
    states      safetensors file whose `states` [rows, points x H] feed the drafter; absent: the target's own
    outputs     safetensors file to write:

    states       [points, tokens, H]  what the target hands out
    logits       [rows, V]            the drafter's first step; row i has token i + 1 and the state at i
    next_logits  [rows - 1, V]        its second step, fed with what it keeps of the first: row i has token i + 2

The calls are those of llama.cpp's common/speculative.cpp (common_speculative_impl_draft_eagle3).
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from typing import Any

import jobs
import numpy as np
from safetensors.numpy import load_file, save_file


def _declarations() -> Any:
    """llama_cpp.llama_cpp without the package around it, which needs more than its library."""
    folder = next(Path(p) / "llama_cpp" for p in sys.path if (Path(p) / "llama_cpp" / "llama_cpp.py").is_file())
    spec = importlib.machinery.ModuleSpec("llama_cpp", None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    sys.modules["llama_cpp"] = importlib.util.module_from_spec(spec)
    return importlib.import_module("llama_cpp.llama_cpp")


llama = _declarations()
FLOATS = ctypes.POINTER(ctypes.c_float)


def _undeclared(symbol: str, arguments: list[Any], returned: Any) -> Any:
    """A C++ function of llama.cpp's src/llama-ext.h, which the package does not declare, by its mangled name."""
    function = getattr(llama._lib, symbol)
    function.argtypes, function.restype = arguments, returned
    return function


CONTEXT = ctypes.c_void_p
set_layer_input = _undeclared(
    "_Z30llama_set_embeddings_layer_inpP13llama_contextjb", [CONTEXT, ctypes.c_uint32, ctypes.c_bool], None
)
get_layer_input = _undeclared("_Z30llama_get_embeddings_layer_inpP13llama_contextj", [CONTEXT, ctypes.c_uint32], FLOATS)
set_kept = _undeclared(
    "_Z26llama_set_embeddings_nextnP13llama_contextbb", [CONTEXT, ctypes.c_bool, ctypes.c_bool], None
)
get_kept = _undeclared("_Z26llama_get_embeddings_nextnP13llama_context", [CONTEXT], FLOATS)


class Context:
    """A model of one file with a context over one sequence."""

    def __init__(self, file: str, tokens: int, other: Any = None) -> None:
        self.model = llama.llama_model_load_from_file(file.encode(), llama.llama_model_default_params())
        if not self.model:
            raise RuntimeError(f"llama.cpp does not load {file}")
        parameters = llama.llama_context_default_params()
        parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = tokens
        parameters.type_k = parameters.type_v = 0  # fp32
        parameters.flash_attn_type = 0
        parameters.n_threads = parameters.n_threads_batch = 1  # several would spin for each other
        if other is not None:
            parameters.ctx_other = other
        self.context = llama.llama_init_from_model(self.model, parameters)
        self.width = llama.llama_model_n_embd(self.model)
        self.vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))

    def process(self, kind: int, tokens: Any, states: Any, positions: list[int]) -> None:
        """Encode or decode rows of tokens, states or both, and keep the output of each."""
        batch = llama.llama_batch_ext_init(self.context)
        for row, position in enumerate(positions):
            embedded = None
            if states is not None:
                data = np.ascontiguousarray(states[row], dtype=np.float32)
                embedded = llama.llama_embd(data.ctypes.data_as(FLOATS), 1, data.size)
            if tokens is None:
                llama.llama_batch_ext_add_embd(batch, 0, embedded)
            else:
                llama.llama_batch_ext_add_token(batch, 0, int(tokens[row]))
                if embedded is not None:
                    llama.llama_batch_ext_set_embd_token(batch, row, embedded)
            llama.llama_batch_ext_set_pos(batch, row, (ctypes.c_int32 * 4)(*[position] * 4))
            llama.llama_batch_ext_set_output_logits(batch, row, True)
        status = llama.llama_process(self.context, kind, batch)
        llama.llama_batch_ext_free(batch)
        if status:
            raise RuntimeError(f"llama_process returned {status}")

    def logits(self, rows: int) -> np.ndarray:
        return _copy(llama.llama_get_logits(self.context), rows, self.vocabulary)

    def kept(self, rows: int) -> np.ndarray:
        return _copy(get_kept(self.context), rows, self.width)


def _copy(pointer: Any, rows: int, width: int) -> np.ndarray:
    if not pointer:
        raise RuntimeError("llama.cpp hands out nothing")
    return np.ctypeslib.as_array(pointer, (rows, width)).copy()


def work(job: jobs.Job, result: jobs.Result) -> None:
    llama.llama_backend_init()
    tokens = np.array(job["tokens"])
    target = Context(job["target"], len(tokens))
    for point in job["points"]:
        set_layer_input(target.context, point, True)
    target.process(llama.LLAMA_PROCESS_TYPE_DECODE, tokens, None, list(range(len(tokens))))
    handed_out = [get_layer_input(target.context, p) for p in job["points"]]
    outputs = {"states": np.stack([_copy(p, len(tokens), target.width) for p in handed_out])}
    save_file(outputs, job["outputs"])
    if "drafter" in job:
        states = np.concatenate(list(outputs["states"]), axis=-1)[:-1]
        if "states" in job:
            states = load_file(job["states"])["states"]
        outputs |= _draft(job["drafter"], target, tokens, states)
        save_file(outputs, job["outputs"])


def _draft(file: str, target: Context, tokens: np.ndarray, states: np.ndarray) -> dict[str, np.ndarray]:
    rows = len(states)
    drafter = Context(file, len(tokens), target.context)
    set_kept(drafter.context, True, True)
    drafter.process(llama.LLAMA_PROCESS_TYPE_ENCODE, None, states, list(range(rows)))
    fused = drafter.kept(rows)
    drafter.process(llama.LLAMA_PROCESS_TYPE_DECODE, tokens[1 : rows + 1], fused, list(range(rows)))
    logits, kept = drafter.logits(rows), drafter.kept(rows)
    memory = llama.llama_get_memory(drafter.context)
    following = []
    for row in reversed(range(rows - 1)):  # each sees the first step up to its own row
        llama.llama_memory_seq_rm(memory, 0, row + 1, -1)
        one = (tokens[row + 2 : row + 3], kept[row : row + 1])
        drafter.process(llama.LLAMA_PROCESS_TYPE_DECODE, *one, [row + 1])
        following.append(drafter.logits(1)[0])
    return {"logits": logits, "next_logits": np.stack(following[::-1])}


if __name__ == "__main__":
    jobs.main(work, __doc__)
