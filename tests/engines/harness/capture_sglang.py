"""Runs SGLang's own target classes and says which hidden states a list of ids captures.

A target of six layers with random weights is made twice from one configuration: as the model of
the transformers library, which says what the capture points are (see targets.py), and as SGLang's
class, with equal weights. SGLang's class is then given the ids through its own
`set_eagle3_layers_to_capture` and run, and each state it captured is compared with all points.

A job:

    name          name of the result
    architecture  one of ARCHITECTURES in targets.py
    ids           the ids, as `eagle_aux_hidden_state_layer_ids` would hold them; null: the default

A result:

    stage, error       how far it came, and what stopped it
    release, class     of SGLang
    layers             number of layers of the target
    layers_to_capture  SGLang's own numbers after its setter, if it keeps a list
    points             the capture points that came out, in SGLang's order
    single_points      for each point alone, past the setter: "captured", "missing", or the error
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jobs
import sglang_engine as engine  # before the rest: it makes SGLang importable

# isort: split
import targets
import torch
from sglang.srt.configs.model_config import ModelConfig

#: Server arguments without which a class does not start.
SERVER_OPTIONS: dict[str, dict[str, Any]] = {"gpt_oss": {"attention_backend": "triton"}}


def capture(job: jobs.Job, result: jobs.Result) -> None:
    architecture, ids = job["architecture"], job["ids"]
    folder, reference, points = targets.prepare(job, result, "sglang", engine.RELEASE)

    result["stage"] = "construction"
    target = make_target(folder, architecture, reference, result)

    every_point = range(targets.LAYERS + 1)
    result["single_points"] = {str(point): try_single_point(target, point, points) for point in every_point}

    result["stage"] = "setter"
    forget_capture(target)
    target.set_eagle3_layers_to_capture(ids)
    if isinstance(getattr(target.model, "layers_to_capture", None), list):
        result["layers_to_capture"] = target.model.layers_to_capture
    result["stage"] = "forward"
    result["points"] = [targets.which_point(state, points) for state in captured_states(target)]


def make_target(folder: Path, architecture: str, reference: torch.nn.Module, result: jobs.Result) -> torch.nn.Module:
    """SGLang's class, built from the same configuration and given the reference's weights."""
    arguments = engine.server_arguments(folder, dtype="float32", **SERVER_OPTIONS.get(architecture, {}))
    engine.start_process_groups()
    config = ModelConfig.from_server_args(arguments, model_path=str(folder))
    engine.start_data_parallel_attention(arguments, config)
    target_class = engine.model_class(config)
    result["class"] = engine.qualified_name(target_class)
    torch.set_default_dtype(torch.float32)
    target = target_class(config.hf_config)
    targets.copy_weights(reference, target)
    engine.replace_kernels(target)
    targets.scale_blocks(target, architecture, lambda scaled: scaled)
    return target


def captured_states(target: torch.nn.Module) -> list[torch.Tensor]:
    """Run the target; the hidden states it hands over, in its order."""
    tokens, positions = targets.input_ids(), torch.arange(targets.TOKENS)
    with torch.no_grad():
        output = target.model(tokens, positions, engine.ForwardBatch(input_ids=tokens))
    if not isinstance(output, tuple):
        return []
    captured = output[1]
    if torch.is_tensor(captured):  # newer releases concatenate them at once
        captured = captured.split(targets.HIDDEN, dim=-1)
    return list(captured)


def try_single_point(target: torch.nn.Module, point: int, points: list[torch.Tensor]) -> str:
    """Whether the class can capture this point at all, whatever its setter makes of ids."""
    try:
        forget_capture(target)
        if hasattr(target.model, "set_eagle3_layers_to_capture"):
            target.model.set_eagle3_layers_to_capture([point])
        else:
            target.model.layers_to_capture = [point]
        states = captured_states(target)
    except Exception as failure:
        return f"{type(failure).__name__}: {failure}"
    return targets.single_point(states, point, points)


def forget_capture(target: torch.nn.Module) -> None:
    """Undo the setter of classes that mark their layers."""
    for layer in target.model.layers:
        if hasattr(layer, "_is_layer_to_capture"):
            layer._is_layer_to_capture = False


if __name__ == "__main__":
    jobs.main(capture, __doc__)
    engine.finish()
