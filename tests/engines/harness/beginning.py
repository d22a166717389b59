# ruff: noqa: E402, F401
"""How every process here begins: no network, no GPU, one thread, and the libraries that ask what is installed.

Import this module before the stubs are in place: those libraries must not find a stub.
"""

from __future__ import annotations

import os
import warnings

os.environ.update(
    CUDA_VISIBLE_DEVICES="",
    HF_HUB_OFFLINE="1",
    OMP_NUM_THREADS="1",
    TOKENIZERS_PARALLELISM="false",
    TRANSFORMERS_OFFLINE="1",
)
warnings.filterwarnings("ignore")

import torch
import torch._dynamo
import torch._inductor.compile_fx
import torch._inductor.select_algorithm
import torch.utils._triton
import torch.utils.flop_counter
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoProcessor,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
)

torch.set_num_threads(1)
