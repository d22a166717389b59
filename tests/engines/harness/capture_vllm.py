"""Runs vLLM's own target classes and says which hidden states a list of ids captures.

As capture_sglang.py: the same small targets, with the weights of the transformers model. vLLM's
class is given the ids by vLLM's own `set_eagle3_aux_hidden_state_layers`, as if they stood in a
drafter's config.json.

A job:

    name          name of the result
    architecture  one of ARCHITECTURES in targets.py
    ids           the ids, as `eagle_aux_hidden_state_layer_ids` holds them; null: the default
    in_place      whether norms overwrite their inputs, as the kernel does when vLLM does not
                  compile the model (--enforce-eager); default false

A result:

    stage, error       how far it came, and what stopped it
    release, class     of vLLM
    layers             number of layers of the target
    layers_to_capture  vLLM's own numbers after its setter
    points             the capture points that came out, in vLLM's order
    single_points      for each point alone, given as an id: "captured", "missing", or the error
"""

from __future__ import annotations

import types
from collections.abc import Sequence

import jobs
import vllm_engine as engine  # before the rest: it makes vLLM importable

# isort: split
import targets
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.models import gpt_oss
from vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils import set_eagle3_aux_hidden_state_layers


def capture(job: jobs.Job, result: jobs.Result) -> None:
    architecture, ids = job["architecture"], job["ids"]
    folder, reference, points = targets.prepare(job, result, "vllm", engine.RELEASE)

    result["stage"] = "construction"
    config = engine.configuration(folder, dtype="float32")
    engine.start_process_groups(config)
    with set_current_vllm_config(config):
        target = make_target(config, architecture, reference)
    if job.get("in_place", False):
        engine.add_in_place(target)
    result["class"] = engine.qualified_name(type(target))

    every_point = range(targets.LAYERS + 1)
    result["single_points"] = {str(point): try_single_point(target, config, point, points) for point in every_point}

    result["stage"] = "setter"
    set_ids(target, ids)
    result["layers_to_capture"] = target.model.aux_hidden_state_layers
    result["stage"] = "forward"
    result["points"] = [targets.which_point(state, points) for state in captured_states(target, config)]


def make_target(config: VllmConfig, architecture: str, reference: torch.nn.Module) -> torch.nn.Module:
    """vLLM's class, built from the same configuration and given the reference's weights."""
    torch.set_default_dtype(torch.float32)
    # The experts, which the scaling replaces, cannot be built where none of vLLM's kernels for
    # them run.
    gpt_oss.TransformerBlock.mlp_cls = lambda *args, **kwargs: torch.nn.Module()
    target = initialize_model(vllm_config=config)
    targets.copy_weights(reference, target)
    engine.replace_kernels(target)
    targets.scale_blocks(target, architecture, lambda scaled: scaled)
    # Of vLLM's process_weights_after_loading, the part that is not for attention kernels.
    for module in target.modules():
        if isinstance(module, LinearBase | VocabParallelEmbedding):
            module.quant_method.process_weights_after_loading(module)
    return target


def set_ids(target: torch.nn.Module, ids: Sequence[int] | None) -> None:
    """Set the ids as vLLM does when it has loaded a drafter with them."""
    drafter_config = types.SimpleNamespace(eagle_aux_hidden_state_layer_ids=ids)
    draft_model = types.SimpleNamespace(hf_config=drafter_config)
    set_eagle3_aux_hidden_state_layers(target, types.SimpleNamespace(draft_model_config=draft_model))


def captured_states(target: torch.nn.Module, config: VllmConfig) -> list[torch.Tensor]:
    """Run the target; the hidden states it hands over, in its order."""
    tokens, positions = targets.input_ids(), torch.arange(targets.TOKENS)
    with torch.no_grad(), set_current_vllm_config(config), set_forward_context(None, config):
        output = target(tokens, positions)
    return list(output[1]) if isinstance(output, tuple) else []


def try_single_point(target: torch.nn.Module, config: VllmConfig, point: int, points: list[torch.Tensor]) -> str:
    """Whether the class captures this point when it alone is asked for."""
    try:
        set_ids(target, [point])
        states = captured_states(target, config)
    except Exception as failure:
        return f"{type(failure).__name__}: {failure}"
    return targets.single_point(states, point, points)


if __name__ == "__main__":
    jobs.main(capture, __doc__)
    engine.finish()
