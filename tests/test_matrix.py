"""Engine release x target class: the ids written give, by the engine's rule, the points meant, or the right refusal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from converter.checks.engine import examine
from converter.drafter.target import Target
from converter.rules.ids import WITHOUT_IDS, points_of
from converter.rules.launch import launch_command
from converter.rules.loading import known_releases
from converter.rules.releases import all_releases
from tests.test_forward import drafter

LAYERS = 8
CLASSES = [
    "LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM",
    "KimiK25ForConditionalGeneration", "GptOssForCausalLM", "Llama4ForConditionalGeneration",
    "Gemma3ForConditionalGeneration", "Glm4MoeForCausalLM",
]  # fmt: skip
POINTS = [(2, 4, 5), (1, 3, 5), (1, 4, 6), (0, 2, 4), (1, 3, 8)]

# First release in which the class can be a target, hand out its embedding, and its last layer; None: never. Written
# down from the sources apart from the tables (and, for SGLang's, from running the classes where that was done).
SINCE: dict[tuple[str, str], tuple[str | None, str | None, str | None]] = {
    ("sglang", "LlamaForCausalLM"): ("0.4.6", "0.5.22", None),
    ("sglang", "Qwen3ForCausalLM"): ("0.4.9", "0.4.9", None),
    ("sglang", "Qwen3MoeForCausalLM"): ("0.4.9", "0.4.9", None),
    ("sglang", "DeepseekV3ForCausalLM"): ("0.5.4.post2", "0.5.14", None),
    ("sglang", "KimiK25ForConditionalGeneration"): ("0.5.10", "0.5.14", None),
    ("sglang", "GptOssForCausalLM"): ("0.5.1", "0.5.17", "0.5.17"),
    ("sglang", "Glm4MoeForCausalLM"): ("0.5.5", "0.5.21", None),
    ("vllm", "LlamaForCausalLM"): ("0.9.0", "0.18.0", "0.18.0"),
    ("vllm", "Qwen3ForCausalLM"): ("0.10.1", "0.18.0", "0.18.0"),
    ("vllm", "DeepseekV3ForCausalLM"): ("0.18.0", None, "0.25.0"),
    ("vllm", "KimiK25ForConditionalGeneration"): ("0.18.0", None, "0.25.0"),
    ("vllm", "Gemma3ForConditionalGeneration"): (None, None, None),
    ("vllm", "Glm4MoeForCausalLM"): (None, None, None),
}


@pytest.mark.parametrize("architecture", CLASSES)
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_ids_or_refusal(engine: str, architecture: str) -> None:
    target = Target(architecture=architecture, layers=LAYERS)
    base = drafter("a_plain").spec
    for release in all_releases(engine):
        rule = release.target(architecture)
        for points in POINTS:
            examination = examine(release, replace(base, capture_points=points), target)
            codes = {f.code for f in examination.findings if f.severity == "error"}
            if rule is None:
                assert "K120" in codes, (release, points)
                continue
            bad = [p for p in points if rule.capture(p, LAYERS) != "works"]
            assert bool(bad) == bool(codes & {"K121", "K122", "K124"}), (release, points)
            if rule.id_rule in WITHOUT_IDS:
                assert ("K123" in codes) == (points != (2, 4, 5)), (release, points)
            else:
                assert examination.layer_ids is not None
                found = points_of(rule.id_rule, examination.layer_ids, LAYERS)
                assert found is not None and tuple(sorted(found)) == points, (release, points)


@pytest.mark.parametrize(("key", "since"), SINCE.items(), ids=["-".join(k) for k in SINCE])
def test_first_releases(key: tuple[str, str], since: tuple[str | None, ...]) -> None:
    engine, architecture = key
    rows = [(r.release, r.target(architecture)) for r in all_releases(engine)]

    def first(wanted) -> str | None:  # type: ignore[no-untyped-def]
        return next((release for release, rule in rows if rule is not None and wanted(rule)), None)

    assert since == (
        first(lambda rule: True),
        first(lambda rule: rule.embedding == "works"),
        first(lambda rule: rule.last == "works"),
    )
    # What a class can do, it keeps.
    known = known_releases(engine)
    works = [release for release, rule in rows if rule is not None and rule.embedding == "works"]
    assert works == known[known.index(works[0]) :] if works else True


def test_gemma3_is_broken_from_0_5_17() -> None:
    """The residual is not added any more (models/gemma3_causal.py): only the embedding is right."""
    spec = drafter("a_plain").spec
    target = Target(architecture="Gemma3ForCausalLM", layers=LAYERS)
    for release in all_releases("sglang"):
        codes = {f.code for f in examine(release, spec, target).findings if f.severity == "error"}
        known = known_releases("sglang")
        if known.index(release.release) >= known.index("0.5.17"):
            assert "K124" in codes
        elif release.target("Gemma3ForCausalLM") is not None:
            assert "K124" not in codes


def test_other_points_need_an_option_where_graphs_ignore_the_ids() -> None:
    """SGLang 0.4.9 to 0.5.10.post1 records CUDA graphs before it reads the ids (cuda_graph_runner.py)."""
    target = Target(architecture="LlamaForCausalLM", layers=LAYERS)
    known = known_releases("sglang")
    for release in all_releases("sglang"):
        inside = known.index("0.4.9") <= known.index(release.release) <= known.index("0.5.10.post1")
        for points, other in (((2, 4, 5), False), ((1, 3, 5), True)):
            spec = replace(drafter("a_plain").spec, capture_points=points)
            codes = {f.code for f in examine(release, spec, target).findings}
            assert ("K127" in codes) == (inside and other), (release, points)
            _, command = launch_command(release, target, "OUT", 3, spec)
            assert ("--disable-cuda-graph" in command) == (inside and other)
