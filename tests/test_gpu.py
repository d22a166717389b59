"""The same code on a CUDA device, in bf16: `make test-gpu` on a machine that has one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support import DRAFTERS, SAMPLE, run

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", ["a_plain", "d_fcnorm_normout", "g_aux024"])
def test_a_proof_on_cuda_reaches_what_it_does_on_the_cpu(name: str, tmp_path: Path) -> None:
    assert torch.cuda.is_available(), "no CUDA device: this marker is for machines that have one"
    there = run(DRAFTERS / name, tmp_path / "cuda", sample=SAMPLE, device="cuda")
    here = run(DRAFTERS / name, tmp_path / "cpu", sample=SAMPLE, device="cpu")
    assert there.proof is not None and here.proof is not None
    assert there.proof.device.startswith("cuda") and there.proof.level == here.proof.level == "anchored"
    assert there.proof.scores is not None and here.proof.scores is not None
    # bf16 decides near-ties otherwise; 2 % of 672 rows are 13.
    assert abs(there.proof.scores.right[0] - here.proof.scores.right[0]) <= 13
