"""Loads drafters with SGLang's own draft class and says what became of every tensor.

Each drafter is built from its config.json by SGLang's own ServerArgs, ModelConfig, registry and
loader, filled by the class's own `load_weights`, given the target's embedding by its own
`set_embed` and, where the job gives inputs, run over them.

A job:

    name         name of the result
    drafter      folder of the drafter
    target       folder of the target, of which only config.json is read
    dtype        server argument --dtype, default "auto"
    inputs       optional safetensors file for a draft prefill:
                   input_ids [T]               in row i the token that follows the one of the states
                   aux_hidden_states [T, n*H]  what the target hands over, concatenated
                   positions [T]
                   embed_tokens [V, H]         the target's embedding
                   lm_head [V, H]              the target's head, for drafters that share it
    target_weights  safetensors file of the target, for embed_tokens and lm_head if not in `inputs`
    launch       optional options of the server's command line beside those, such as
                 {"--speculative-draft-window-size": 15}
    target_ids   optional list: the target is in the process, its class given these ids by its own setter
    ids_set      "before" the drafter shares its embedding, as 0.5.9 does (the default), or "after", as 0.5.23 does
    outputs      optional safetensors file for the results of the forward pass:
                   logits [T, draft vocabulary]
                   hidden_states [T, H]        what the drafter is fed in its next step
                   next_logits [T-1, draft vocabulary]  of that next step, in which row i has the
                                               token of row i + 1 and the hidden state of row i

A result:

    stage, error       how far it came, and what stopped it
    release, class     of SGLang
    config             the configuration as SGLang holds it
    aux_layer_ids      the ids that SGLang hands to the target, null for its default
    parameters         shape, dtype, elements and written elements of each parameter
    unwritten          parameters of which load_weights wrote nothing
    partly_written     parameters of which it wrote only a part
    not_consumed       checkpoint tensors whose values it did not read
    target_token_ids   the target's id of each draft token (`hot_token_id`), null if there is no map
    embedding, head    whose is used: "target", "target embedding" or "checkpoint"
    dead_parameters    parameters that no output depends on
    forward_takes      the parameters of the class's forward, which SGLang looks at
    points_seen        "at sharing" or "in the first pass": when the plugin's class let the target's points pass
    converter_modules  modules of this project that were imported
    stubs              packages replaced by stubs that were imported
"""

from __future__ import annotations

import inspect
import sys
import types
from typing import Any

import jobs
import sglang_engine as engine  # before the rest: it makes SGLang importable

# isort: split
import drafts
import torch
from observe import dead_parameters
from safetensors.torch import load_file, save_file
from sglang.srt.configs.device_config import DeviceConfig
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.model_loader.loader import DefaultModelLoader
from sglang.srt.server_args import ServerArgs


def load(job: jobs.Job, result: jobs.Result) -> None:
    drafter = str(job["drafter"])
    result.update(engine="sglang", release=engine.RELEASE, drafter=drafter)

    result["stage"] = "server arguments"
    arguments = engine.server_arguments(
        job["target"],
        dtype=job.get("dtype", "auto"),
        speculative_algorithm="EAGLE3",
        speculative_draft_model_path=drafter,
        speculative_num_steps=3,
        speculative_eagle_topk=1,
        speculative_num_draft_tokens=4,
        **{option.lstrip("-").replace("-", "_"): value for option, value in job.get("launch", {}).items()},
    )
    engine.start_process_groups()

    result["stage"] = "configuration"
    config = ModelConfig.from_server_args(arguments, model_path=drafter, is_draft_model=True)
    result["config"] = config.hf_config.to_dict()
    result["dtype"] = str(config.dtype).removeprefix("torch.")
    result["aux_layer_ids"] = aux_layer_ids(arguments, config)
    engine.start_data_parallel_attention(arguments, config)

    result["stage"] = "class"
    draft_class = engine.model_class(config)
    result["class"] = engine.qualified_name(draft_class)
    result["forward_takes"] = list(inspect.signature(draft_class.forward).parameters)

    result["stage"] = "construction"
    model = load_watched(draft_class, config, result)

    if "inputs" in job:
        result["stage"] = "sharing with the target"
        tensors = load_file(job["inputs"])
        target = make_target(job, arguments) if "target_ids" in job else None
        after = job.get("ids_set") == "after"
        if target is not None and not after:
            target.set_eagle3_layers_to_capture(job["target_ids"])
        share_with_target(model, config, {**drafts.target_weights(job), **tensors}, result)
        if target is not None:
            result["stage"] = "first pass"
            see_points(model, target, job["target_ids"] if after else None, result)
        result["stage"] = "forward"
        outputs = forward(model, config, tensors, result)
        if "outputs" in job:
            save_file(outputs, job["outputs"])
    result["converter_modules"] = sorted(name for name in sys.modules if name.split(".")[0] == "converter")
    result["stubs"] = sorted(engine.stub_finder.served)


def make_target(job: jobs.Job, arguments: ServerArgs) -> torch.nn.Module:
    """The target's class with the weights that its constructor gives it."""
    config = ModelConfig.from_server_args(arguments, model_path=str(job["target"]))
    return engine.model_class(config)(config.hf_config)


def see_points(model: torch.nn.Module, target: torch.nn.Module, ids: list[int] | None, result: jobs.Result) -> None:
    """Enter the drafter's own forward, in which the plugin's class looks at the target for the last time.

    ids   what the target is given first; None where it has them
    """
    seen_when_shared = model._points_checked
    if ids is not None:
        target.set_eagle3_layers_to_capture(ids)

    class Entered(Exception):
        pass

    def enter(*arguments: Any) -> None:
        raise Entered

    hook = model.model.register_forward_pre_hook(enter)
    try:
        model(torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.long), engine.ForwardBatch())
    except Entered:
        result["points_seen"] = "at sharing" if seen_when_shared else "in the first pass"
    hook.remove()


def aux_layer_ids(arguments: ServerArgs, config: ModelConfig) -> list[int] | None:
    """The ids that SGLang hands to the target's `set_eagle3_layers_to_capture`."""
    try:
        from sglang.srt.model_executor.model_runner_components.spec_aux_hidden_state import (
            resolve_spec_aux_hidden_state_config,
        )
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    except ImportError:
        # Older releases read them in the constructor of ModelRunner, and take what is not there for none.
        try:
            return config.hf_config.eagle_config["eagle_aux_hidden_state_layer_ids"]
        except (AttributeError, KeyError, TypeError):
            return None
    resolved = resolve_spec_aux_hidden_state_config(
        server_args=arguments,
        model_config=ModelConfig.from_server_args(arguments),
        spec_algorithm=SpeculativeAlgorithm.from_string("EAGLE3"),
        is_draft_worker=False,
    )
    return resolved.eagle_aux_hidden_state_layer_ids


def load_watched(draft_class: type[torch.nn.Module], config: ModelConfig, result: jobs.Result) -> torch.nn.Module:
    """Load with SGLang's loader, watching what `load_weights` reads and writes."""
    with drafts.watched_loading(draft_class, result):
        model = DefaultModelLoader(LoadConfig()).load_model(model_config=config, device_config=DeviceConfig("cpu"))
    result["stage"] = "loaded"
    target_token_ids = getattr(model, "hot_token_id", None)
    result["target_token_ids"] = None if target_token_ids is None else target_token_ids.tolist()
    return model


def share_with_target(
    model: torch.nn.Module,
    config: ModelConfig,
    tensors: dict[str, torch.Tensor],
    result: jobs.Result,
) -> None:
    """Share the target's weights as `init_lm_head` of SGLang's EAGLE worker does.

    Its condition is written out here; the methods it calls are the model's own.
    """

    def parameter(name: str) -> torch.nn.Parameter | None:
        if name not in tensors:
            return None
        return torch.nn.Parameter(tensors[name].to(config.dtype), requires_grad=False)

    embedding, head = parameter("embed_tokens"), parameter("lm_head")
    if getattr(model, "load_lm_head_from_target", False):
        model.set_embed_and_head(embedding, head)
    else:
        model.set_embed(embedding)

    owner = {id(head): "target", id(embedding): "target embedding"}
    result["head"] = owner.get(id(model.lm_head.weight), "checkpoint")
    used = model.model.embed_tokens.weight
    result["embedding"] = "target" if used is embedding else "checkpoint"


def forward(
    model: torch.nn.Module,
    config: ModelConfig,
    tensors: dict[str, torch.Tensor],
    result: jobs.Result,
) -> dict[str, torch.Tensor]:
    """A draft prefill over the given states, and one more step from each of its rows."""
    engine.replace_kernels(model)
    input_ids, positions = tensors["input_ids"], tensors["positions"]
    states = tensors["aux_hidden_states"].to(config.dtype)
    projected: list[torch.Tensor] = []  # the states as they enter the first layer

    def prefill() -> tuple[torch.Tensor, torch.Tensor]:
        return draft(model, input_ids, positions, states)

    hook = model.model.fc.register_forward_hook(lambda module, args, out: projected.append(out))
    logits, fed_back = prefill()
    hook.remove()
    result["dead_parameters"] = dead_parameters(model, prefill)

    # The model takes states of its own width as they are: fc is for those of the target.
    rows = len(input_ids)
    next_logits, _ = draft(
        model,
        torch.cat([input_ids, input_ids[1:]]),
        torch.cat([positions, positions[1:]]),
        torch.cat([projected[0], fed_back[:-1]]),
        mask=drafts.next_step_mask(rows),
    )
    return {
        "logits": logits.contiguous(),
        "hidden_states": fed_back.contiguous(),
        "next_logits": next_logits[rows:].contiguous(),
    }


def draft(
    model: torch.nn.Module,
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    states: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, and the hidden states that SGLang keeps for the next step."""
    batch = engine.ForwardBatch(
        spec_info=types.SimpleNamespace(hidden_states=states), rows=drafts.Rows(positions, mask)
    )
    no_logprobs = engine.ForwardBatch(extend_return_logprob=False)
    with torch.no_grad():
        to_head, [fed_back] = model.model(input_ids, positions, batch)
        logits = model.logits_processor._get_logits(to_head, model.lm_head, no_logprobs)
    return logits, fed_back


if __name__ == "__main__":
    jobs.main(load, __doc__)
    engine.finish()
