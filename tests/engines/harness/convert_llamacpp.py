"""Runs llama.cpp's own convert_hf_to_gguf.py and reads the GGUF file that it wrote.

Run by `runner.py` with llama.cpp's repository on PYTHONPATH. A job has

    name        what the result is found under
    folder      what is converted: a drafter as the converter wrote it, or a target
    target      of a drafter: the target's folder; absent for a target
    type        --outtype: f32, f16 or bf16
    gguf        file to write
    tensors     safetensors file to write with the tensors of the GGUF file, in fp32 or int64; may be absent

and its result

    values      the GGUF file's keys and values, but the tokenizer's
    error       what the script stopped at

Replaced: the table that tells tokenizers by a digest, which does not know one made for a test.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import conversion.base
import conversion.llama
import gguf
import jobs
import numpy as np
from safetensors.numpy import save_file

SCRIPT = str(Path(conversion.base.__file__).parents[1] / "convert_hf_to_gguf.py")


def work(job: jobs.Job, result: jobs.Result) -> None:
    # The tokenizer of tests/data splits as GPT-2's does; no text is tokenised here.
    conversion.base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    options = ["--outtype", job["type"], "--outfile", job["gguf"]]
    if "target" in job:
        options += ["--target-model-dir", job["target"]]
    sys.argv = [SCRIPT, job["folder"], *options]
    try:
        runpy.run_path(SCRIPT, run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"exit status {end.code}") from end
    reader = gguf.GGUFReader(job["gguf"])
    result["file"] = job["gguf"]
    result["values"] = {k: _plain(f.contents()) for k, f in reader.fields.items() if not k.startswith("tokenizer.")}
    if "tensors" in job:
        save_file({t.name: _array(t) for t in reader.tensors}, job["tensors"])


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _array(tensor: gguf.ReaderTensor) -> np.ndarray:
    if tensor.tensor_type == gguf.GGMLQuantizationType.I64:
        return np.array(tensor.data, dtype=np.int64)
    return np.ascontiguousarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)


if __name__ == "__main__":
    jobs.main(work, __doc__)
