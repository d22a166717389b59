"""Loads drafters with vLLM's own draft classes and says what became of every tensor.

Each drafter is built from its config.json by vLLM's own ModelConfig, SpeculativeConfig, VllmConfig,
registry and loader, and filled by the class's own `load_weights`. vLLM's own `load_eagle_model` does
all this and shares the target's embedding and head; of the target it is given these two. Where the
job gives inputs, the drafter is run over them.

A job is the same as in load_sglang.py, but for `launch`: in its place `speculative` has further options
of --speculative-config. `dtype` is that of the target, which vLLM gives to the drafter as well.

A result has the same keys as in load_sglang.py, with these differences:

    aux_layer_ids      the ids that vLLM hands to the target, null for its default
    target_token_ids   the target's id of each draft token, read off `compute_logits`
    embedding, head    whose is used: "target" or "checkpoint"
    layer_windows      the window of each layer's attention, null for none
    mask_token, mask_hidden   of parallel drafting: the token and the states for what is not drafted yet
"""

from __future__ import annotations

import types

import jobs
import vllm_engine as engine  # before the rest: it makes vLLM importable

# isort: split
import drafts
import torch
from observe import dead_parameters
from safetensors.torch import load_file, save_file
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.attention.attention import Attention
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader.utils import get_model_architecture, process_weights_after_loading
from vllm.utils.torch_utils import set_default_torch_dtype
from vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils import get_eagle3_aux_layers_from_config
from vllm.v1.worker.gpu.spec_decode.eagle.utils import load_eagle_model
from vllm.v1.worker.gpu.spec_decode.utils import get_parallel_drafting_token_id


def load(job: jobs.Job, result: jobs.Result) -> None:
    drafter = str(job["drafter"])
    result.update(engine="vllm", release=engine.RELEASE, drafter=drafter)

    result["stage"] = "configuration"
    config = engine.configuration(job["target"], job.get("dtype", "auto"), drafter, **job.get("speculative", {}))
    draft_config = config.speculative_config.draft_model_config
    result["config"] = draft_config.hf_config.to_dict()
    result["dtype"] = str(draft_config.dtype).removeprefix("torch.")
    result["aux_layer_ids"] = get_eagle3_aux_layers_from_config(config.speculative_config)
    engine.start_process_groups(config)

    result["stage"] = "class"
    draft_class, _ = get_model_architecture(draft_config)
    result["class"] = engine.qualified_name(draft_class)

    result["stage"] = "construction"
    tensors = load_file(job["inputs"]) if "inputs" in job else {}
    with set_current_vllm_config(config):
        target = target_to_share(config, {**drafts.target_weights(job), **tensors})
        with drafts.watched_loading(draft_class, result):
            model = load_eagle_model(target, config)
    report_sharing(model, target, result)
    if config.speculative_config.parallel_drafting:
        result["mask_token"] = get_parallel_drafting_token_id(draft_config.hf_config)
        result["mask_hidden"] = model.mask_hidden.flatten().tolist()
    result["layer_windows"] = [m.sliding_window for m in model.modules() if isinstance(m, Attention)]
    result["stage"] = "vocabulary map"
    result["target_token_ids"] = target_token_ids(model)

    if tensors:
        result["stage"] = "forward"
        outputs = forward(model, config, tensors, result)
        if "outputs" in job:
            save_file(outputs, job["outputs"])
    result["stubs"] = sorted(engine.stub_finder.served)


def target_to_share(config: VllmConfig, tensors: dict[str, torch.Tensor]) -> types.SimpleNamespace:
    """What `load_eagle_model` asks of a target: its embedding and its head, in vLLM's own layers.

    What the job does not give is NaN, so that it is seen when it is used.
    """
    model_config = config.model_config
    size = (model_config.get_vocab_size(), model_config.get_hidden_size())
    with set_default_torch_dtype(model_config.dtype):
        embedding, head = VocabParallelEmbedding(*size), ParallelLMHead(*size)
    for layer, name in ((embedding, "embed_tokens"), (head, "lm_head")):
        layer.weight.data.fill_(float("nan"))
        if name in tensors:
            layer.weight_loader(layer.weight, tensors[name])
        process_weights_after_loading(layer, model_config, torch.device("cpu"))
    return types.SimpleNamespace(model=types.SimpleNamespace(embed_tokens=embedding), lm_head=head)


def report_sharing(model: torch.nn.Module, target: types.SimpleNamespace, result: jobs.Result) -> None:
    own_embedding = model.model.embed_tokens is not target.model.embed_tokens
    own_head = model.lm_head is not target.lm_head
    result["embedding"] = "checkpoint" if own_embedding else "target"
    result["head"] = "checkpoint" if own_head else "target"


def target_token_ids(model: torch.nn.Module) -> list[int] | None:
    """Where the class's own `compute_logits` puts the logit of each draft token."""
    if model.draft_id_to_target_id is None:
        return None
    tokens = len(model.draft_id_to_target_id)
    processor = model.logits_processor
    processor.forward = lambda head, states: torch.arange(tokens, dtype=torch.float32)[None]
    try:
        [scattered] = model.compute_logits(torch.empty(0))
    finally:
        del processor.forward
    places = scattered.isfinite().nonzero().flatten().tolist()
    token_of_place = {int(scattered[place]): place for place in places}
    return [token_of_place.get(token, -1) for token in range(tokens)]


def forward(
    model: torch.nn.Module,
    config: VllmConfig,
    tensors: dict[str, torch.Tensor],
    result: jobs.Result,
) -> dict[str, torch.Tensor]:
    """A draft prefill over the given states, and one more step from each of its rows."""
    engine.replace_kernels(model)
    columns = result["target_token_ids"]
    input_ids, positions = tensors["input_ids"], tensors["positions"]
    states = tensors["aux_hidden_states"].to(config.speculative_config.draft_model_config.dtype)

    def draft(
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        states: torch.Tensor,
        mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of the draft tokens, and the hidden states that vLLM keeps for the next step."""
        with set_forward_context(drafts.Rows(positions, mask), config):
            to_head, fed_back = model(input_ids, positions, states)
        logits = model.compute_logits(to_head)
        return (logits if columns is None else logits[:, columns]), fed_back

    def prefill() -> tuple[torch.Tensor, torch.Tensor]:
        return draft(input_ids, positions, model.combine_hidden_states(states))

    with torch.no_grad(), set_current_vllm_config(config):
        logits, fed_back = prefill()
        result["dead_parameters"] = dead_parameters(model, prefill)
        # Later steps get what was fed back as it is: only states of the target are combined.
        rows = len(input_ids)
        next_logits, _ = draft(
            torch.cat([input_ids, input_ids[1:]]),
            torch.cat([positions, positions[1:]]),
            torch.cat([model.combine_hidden_states(states), fed_back[:-1]]),
            mask=drafts.next_step_mask(rows),
        )
    return {
        "logits": logits.contiguous(),
        "hidden_states": fed_back.contiguous(),
        "next_logits": next_logits[rows:].contiguous(),
    }


if __name__ == "__main__":
    jobs.main(load, __doc__)
    engine.finish()
