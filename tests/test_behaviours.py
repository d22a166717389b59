"""The named behaviours that rules choose from: what they make of a value, and of one that means nothing."""

from __future__ import annotations

from typing import Any

import pytest

from converter.drafter.spec import Latent, Rope
from converter.rules.behaviours import LAUNCH, READERS, Unreadable

LAYERS = {"num_hidden_layers": 2}


@pytest.mark.parametrize(
    ("how", "field", "value", "expected"),
    [
        ("plain", "hidden_act", 3, "a string"),
        ("plain", "qkv_bias", 1, "true or false"),
        ("plain", "num_hidden_layers", 1001, "a whole number from 1 to 1,000"),
        ("plain", "num_hidden_layers", 0, "a whole number from 1 to 1,000"),
        ("plain", "hidden_size", True, "a whole number from 1 to 1,099,511,627,776"),
        ("plain", "mask_token_id", -1, "a whole number from 0 to 1,099,511,627,776"),
        ("plain", "rms_norm_eps", True, "a positive number"),
        ("plain", "rms_norm_eps", 0, "a positive number"),
        ("plain", "rms_norm_eps", 1e30, "a positive number"),
        ("dtype", "dtype", "int8", "one of bfloat16, float16, float32, float64"),
        ("ids", "capture_points", [], "a list of layer ids"),
        ("ids", "capture_points", [1] * 1001, "a list of layer ids"),
        ("ids", "capture_points", [1, 2**31], "a list of layer ids, whole numbers all; 2147483648 cannot be one"),
        ("ids", "capture_points", [1, False], "a list of layer ids, whole numbers all; False cannot be one"),
        ("rope_flat", "rope", 5, "an object"),
        ("rope_flat", "rope", {"rope_scaling": {"type": "linear", "factor": 2}}, "a rope_theta beside rope_scaling"),
        ("rope_flat", "rope", {"rope_theta": 1e4, "rope_scaling": "yarn"}, "rope parameters as an object"),
        ("rope_flat", "rope", {"rope_theta": 1e4, "rope_scaling": {"type": 5}},
         "one rope_type of default, linear, dynamic, yarn, longrope, llama3"),
        ("rope_flat", "rope", {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "rope_type": "yarn"}},
         "one rope_type of default, linear, dynamic, yarn, longrope, llama3"),
        ("rope_flat", "rope", {"rope_theta": 1e4, "rope_scaling": {"type": "linear"}},
         "for linear rope: factor, and nothing else"),
        ("rope_flat", "rope", {"rope_theta": 1e4, "rope_scaling": {"type": "dynamic", "factor": 2, "beta_fast": 1}},
         "for dynamic rope: factor, perhaps original_max_position_embeddings, and nothing else"),
        ("rope_flat", "rope", {"rope_theta": 1, "rope_scaling": {"type": "linear", "factor": 0}}, "a positive number"),
        ("rope_parameters_first", "rope", 5, "an object"),
        ("rope_parameters_first", "rope", {"rope_parameters": 5}, "rope_parameters as an object"),
        ("rope_parameters_first", "rope", {"rope_parameters": {}}, "a rope_theta in rope_parameters"),
        ("rope_parameters_first", "rope",
         {"rope_parameters": {"rope_theta": 1e4}, "rope_scaling": {"type": "linear", "factor": 2}},
         "the same in rope_scaling and rope_parameters"),
        ("windows_by_layer_types", "layer_windows", 5, "an object"),
        ("windows_by_layer_types", "layer_windows", {"layer_types": ["full_attention"]},
         "2 entries of full_attention or sliding_attention, as many as num_hidden_layers"),
        ("windows_by_layer_types", "layer_windows",
         {"layer_types": ["sliding_attention"] * 2, "sliding_window": 0}, "a whole number from 1 to 1,099,511,627,776"),
        ("windows_listed", "layer_windows", [8], "a list of 2: a window or null for each layer"),
        ("windows_listed", "layer_windows", {"0": 8, "1": 8}, "a list of 2: a window or null for each layer"),
        ("windows_listed", "layer_windows", [8, 0], "a whole number from 1 to 1,099,511,627,776"),
        ("latent_attention", "latent", 5, "an object"),
        ("latent_attention", "latent", {"kv_lora_rank": 4, "qk_nope_head_dim": 2, "qk_rope_head_dim": 2},
         "v_head_dim: a whole number from 1 to 1,099,511,627,776"),
    ],
)  # fmt: skip
def test_a_value_that_means_nothing_says_what_was_expected(how: str, field: str, value: Any, expected: str) -> None:
    with pytest.raises(Unreadable) as problem:
        READERS[how](field, value, LAYERS)
    assert str(problem.value) == expected


YARN = {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("how", "field", "value", "read"),
    [
        ("plain", "num_hidden_layers", 1000, 1000),
        ("plain", "mask_token_id", 0, 0),
        ("plain", "rms_norm_eps", 1, 1.0),
        ("dtype", "dtype", "torch.float16", "float16"),
        ("ids", "capture_points", [2**31 - 1, -1], (2**31 - 1, -1)),
        ("ids", "capture_points", [7] * 1000, (7,) * 1000),
        ("rope_flat", "rope", {}, None),
        ("rope_flat", "rope", {"rope_theta": 5}, Rope(5.0)),
        ("rope_flat", "rope", {"rope_theta": 5, "rope_scaling": {"type": None, "factor": None}}, Rope(5.0)),
        # `truncate` is a flag, which is no number; what is null is absent.
        ("rope_flat", "rope", {"rope_theta": 5, "rope_scaling": {**YARN, "truncate": False, "beta_fast": None}},
         Rope(5.0, "yarn", (("factor", 4), ("original_max_position_embeddings", 64), ("truncate", False)))),
        ("rope_flat", "rope", {"rope_theta": 5, "rope_scaling": {"rope_type": "default", "mrope_section": [1, 2]}},
         Rope(5.0, "default", (("mrope_section", (1, 2)),))),
        # The base in rope_parameters outranks the one beside it, and may stand there alone.
        ("rope_parameters_first", "rope", {"rope_parameters": {"rope_theta": 7}, "rope_theta": 5}, Rope(7.0)),
        ("rope_parameters_first", "rope", {"rope_parameters": {}, "rope_theta": 5}, Rope(5.0)),
        ("rope_parameters_first", "rope",
         {"rope_parameters": {"rope_theta": 7, "type": "linear", "factor": 2},
          "rope_scaling": {"type": "linear", "factor": 2}}, Rope(7.0, "linear", (("factor", 2),))),
        ("rope_without_scaling", "rope", {"rope_theta": 5, "rope_scaling": YARN}, Rope(5.0)),
        ("rope_without_scaling", "rope", {}, None),
        ("rope_base_10000", "rope", {}, None),
        ("rope_base_10000", "rope", {"rope_theta": 5}, Rope(10000.0)),
        ("rope_base_10000", "rope", {"rope_theta": 5, "rope_scaling": {"type": "dynamic", "factor": 2}},
         Rope(10000.0, "dynamic", (("factor", 2),))),
        ("rope_base_10000", "rope", {"rope_theta": 5, "rope_scaling": {**YARN}},
         Rope(5.0, "yarn", (("factor", 4), ("original_max_position_embeddings", 64)))),
        ("rope_base_10000", "rope",
         {"rope_theta": 5, "rope_scaling": {"type": "default", "mrope_interleaved": True, "mrope_section": [1]}},
         Rope(5.0, "default", (("mrope_interleaved", True), ("mrope_section", (1,))))),
        ("windows_by_layer_types", "layer_windows", {"sliding_window": 8}, (None, None)),
        ("windows_by_layer_types", "layer_windows",
         {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 1}, (1, None)),
        ("windows_by_layer_types", "layer_windows", {"layer_types": ["sliding_attention"] * 2}, (None, None)),
        ("windows_by_layer_types", "layer_windows",
         {"model_type": "qwen3", "layer_types": ["sliding_attention"] * 2, "sliding_window": 8}, (None, None)),
        ("windows_by_layer_types", "layer_windows",
         {"model_type": "qwen3", "use_sliding_window": True, "max_window_layers": 1, "sliding_window": 8}, (None, 8)),
        ("windows_by_layer_types", "layer_windows",
         {"model_type": "qwen3", "use_sliding_window": True, "max_window_layers": 0, "sliding_window": 8}, (8, 8)),
        ("windows_listed", "layer_windows", [None, 1], (None, 1)),
        ("latent_attention", "latent", {"q_lora_rank": 3}, None),
        ("latent_attention", "latent",
         {"kv_lora_rank": 1, "qk_nope_head_dim": 2, "qk_rope_head_dim": 4, "v_head_dim": 5}, Latent(None, 1, 2, 4, 5)),
    ],
)  # fmt: skip
def test_a_value_is_read_as_what_it_means(how: str, field: str, value: Any, read: Any) -> None:
    assert READERS[how](field, value, LAYERS) == read


def test_what_travels_at_launch_comes_back() -> None:
    reach, layers, kind = LAUNCH["left_reach"], LAUNCH["layers_before"], LAUNCH["gguf_type"]
    assert reach.to_option((8, 8)) == 7 and reach.from_option(7, LAYERS) == (8, 8)
    assert reach.from_option(0, LAYERS) == (1, 1)  # the query's own key alone
    assert reach.to_option((8, None)) is None and reach.to_option((None, None)) is None
    assert reach.from_option(None, LAYERS) == (None, None)
    assert layers.to_option((3, 0, 1)) == [-1, 0, 2] and layers.from_option([-1, 0, 2], LAYERS) == (0, 1, 3)
    assert layers.from_option(None, LAYERS) is None
    with pytest.raises(Unreadable, match=r"^a list of layers$"):
        layers.from_option("1,2", LAYERS)
    with pytest.raises(Unreadable, match=r"^a whole number from -1 "):
        layers.from_option([-2], LAYERS)
    assert kind.to_option("float16") == "f16" and kind.from_option("f16", LAYERS) == "float16"
    assert kind.to_option("float64") == "auto" and kind.from_option("auto", LAYERS) is None
