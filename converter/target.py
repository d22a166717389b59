"""Reads what is needed of the target: its config.json, in a folder, by itself or on the Hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from converter.checkpoint.jsonfile import read_config
from converter.drafter.drafter import Provenance
from converter.drafter.spec import Rope
from converter.drafter.target import Target
from converter.errors import InputError
from converter.findings import Finding, error
from converter.hub.ids import HubId, also_an_id, hub_id
from converter.hub.secrets import masked
from converter.hub.snapshot import CONFIG, cached, look_up, two_meanings
from converter.rules.behaviours import Unreadable, rope_parameters_first
from converter.tokenizer import token_ids

# Where multimodal wrappers keep the config of their language model.
_TEXT_CONFIGS = ("text_config", "language_config", "llm_config")

# Names that transformers' configs give to the epsilon of a model's norms (5.24: 220, 275, 31, 54 and 1 uses).
_EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon")


def read_target(path: Path, beside: Sequence[str] = ()) -> Target:
    """`path` is a folder with config.json, that file, or its id on the Hub.

    Of a repository only that file is fetched, and those of the names `beside` that lie beside it there. Raises
    InputError F100, F110, F113, F115, H401 to H407.
    """
    named = hub_id(path)
    commit = ""
    if named is not None:
        name, where = named.repo, str(named)
        file, commit, notes = _fetched(named, beside)
        folder = None if named.path.endswith(".json") else file.parent
    elif path.exists():
        file = path / "config.json" if path.is_dir() else path
        name, where, notes = str(file.parent), str(file), two_meanings(str(path))
        folder = path if path.is_dir() else None
    else:
        shown = masked(str(path))
        raise InputError(error("F100", f"the target {shown} does not exist", where=shown, fix=("check --target",)))
    config = read_config(file)
    text = next((config[k] for k in _TEXT_CONFIGS if isinstance(config.get(k), Mapping)), config)
    architectures = config.get("architectures")
    layers = _count(text.get("num_hidden_layers"))
    if not (isinstance(architectures, list) and architectures and isinstance(architectures[0], str)) or not layers:
        raise _no_target(file, where=str(file), expected="architectures and num_hidden_layers")
    for key in ("hidden_size", "vocab_size"):
        if text.get(key) is not None and _count(text[key]) is None:
            raise _no_target(file, where=key, found=repr(text[key])[:60], expected="a positive whole number")
    return Target(
        name=name,
        architecture=architectures[0],
        layers=layers,
        hidden_size=_count(text.get("hidden_size")),
        vocab_size=_count(text.get("vocab_size")),
        max_position_embeddings=_count(text.get("max_position_embeddings")),
        rope=_rope(text),
        model_type=text["model_type"] if isinstance(text.get("model_type"), str) else "",
        norm_eps=next((e for k in _EPSILONS if (e := _epsilon(text.get(k))) is not None), None),
        where=where,
        folder=folder,
        cache_width=_cache_width(text),
        injected=_injected(config),
        ends=token_ids(text.get("eos_token_id", config.get("eos_token_id"))),
        rotated=_rotated(config, text),
        commit=commit,
        notes=notes,
    )


def _no_target(file: Path, **rest: str) -> InputError:
    fix = ("give the folder of the model that the drafter drafts for",)
    return InputError(error("F113", f"{file} does not describe a target model", fix=fix, **rest))


def _cache_width(text: Mapping[str, Any]) -> int | None:
    """Of latent attention the latent and the part that rope turns; else keys and values of every head."""
    latent, turned = _count(text.get("kv_lora_rank")), _count(text.get("qk_rope_head_dim"))
    if latent is not None:
        return None if turned is None else latent + turned
    heads, hidden = _count(text.get("num_attention_heads")), _count(text.get("hidden_size"))
    shared = _count(text.get("num_key_value_heads", heads))
    width = _count(text.get("head_dim")) or (hidden // heads if hidden and heads else None)
    return 2 * shared * width if shared and width else None


def _injected(config: Mapping[str, Any]) -> int:
    """One for each layer of the vision tower whose features go to a layer of the language model, from the first on
    (transformers 5.19.0 models/qwen3_vl/modeling_qwen3_vl.py, Qwen3VLTextModel._deepstack_process).
    """
    vision = config.get("vision_config")
    indexes = vision.get("deepstack_visual_indexes") if isinstance(vision, Mapping) else None
    return len(indexes) if isinstance(indexes, list) else 0


def _rotated(*configs: Mapping[str, Any]) -> bool:
    """Whether the residual stream is rotated: what leaves the embedding is, and compressed-tensors records that
    (llmcompressor 0.14.0.1 modifiers/transform/spinquant/base.py, R1; compressed-tensors 0.20.1 transform_config.py).
    """
    for config in configs:
        quantised = config.get("quantization_config")
        transforms = quantised.get("transform_config") if isinstance(quantised, Mapping) else None
        groups = transforms.get("config_groups") if isinstance(transforms, Mapping) else None
        for scheme in groups.values() if isinstance(groups, Mapping) else ():
            applied = scheme.get("apply") if isinstance(scheme, Mapping) else None
            if any(_rotates_embedding(part) for part in (applied if isinstance(applied, list) else ())):
                return True
    return False


def _rotates_embedding(applied: Any) -> bool:
    if not isinstance(applied, Mapping) or applied.get("location") != "weight_output":
        return False
    targets = applied.get("targets")
    return isinstance(targets, list) and any("embed" in str(target) for target in targets)


def _fetched(named: HubId, beside: Sequence[str]) -> tuple[Path, str, tuple[Finding, ...]]:
    """The config in the cache, the commit, and what is to be said of it."""
    alone = named.path.endswith(".json")
    file = named.path if alone else named.file(CONFIG)
    wanted = frozenset(() if alone else map(named.file, beside))
    there = cached(named, file) if named.is_commit and not wanted else None  # which does not change
    if there is not None:
        return there, named.revision, ()
    at = look_up(named, file)
    for name in sorted(wanted.intersection(at.files or ())):
        at.fetch(name)
    return at.fetch(file), at.commit, at.notes


def _rope(config: Mapping[str, Any]) -> Rope | None:
    """None where the config has none, or one per kind of layer."""
    try:
        return rope_parameters_first("rope", config, {})
    except Unreadable:
        return None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _epsilon(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1 else None


def named_target(architecture: str, provenance: Provenance) -> Target:
    """A target of which only the class is known: from --target-arch, else from the drafter's own config."""
    if architecture:
        return Target(name=provenance.target_name, architecture=architecture, where="--target-arch")
    return Target(
        name=provenance.target_name, architecture=provenance.target_architecture, where="the drafter's config"
    )


def name_on_hub(target: Target) -> str:
    """Its id on the Hub; "" where its name is a path. One that was not read from there has its name from the drafter's
    config, or is a folder here.
    """
    named = also_an_id(target.name)
    if named is None or named.revision or (not target.commit and Path(target.name).exists()):
        return ""
    return named.repo
