"""What the engine file says, by release."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from converter.checkpoint.reader import open_checkpoint
from converter.checks.captures import CAPTURE_FAILS, capture_table, check_captures
from converter.checks.engine import compare, examine
from converter.checks.suits import suits, where_it_works, with_fixes
from converter.drafter.layout import expected_tensors
from converter.drafter.spec import FIELDS, OPTIONAL, DrafterSpec, Rope
from converter.drafter.target import Target
from converter.errors import UsageError
from converter.rules import loading
from converter.rules.launch import launch_command
from converter.rules.loading import known_releases
from converter.rules.releases import all_releases, resolve, span
from converter.rules.stopping import why_it_stops
from converter.rules.written import nested, write_config
from tests.support import DRAFTERS, ROOT, codes, errors, run
from tests.test_forward import drafter

LLAMA = Target(architecture="LlamaForCausalLM", layers=6)


def requirement(text: str) -> list[str]:
    return [e.release for e in resolve(text)]


def test_choosing_releases() -> None:
    assert requirement("sglang") == ["0.5.23"]
    assert requirement(" sglang ") == ["0.5.23"]
    assert requirement("sglang==0.5.9") == ["0.5.9"]
    assert requirement("sglang>=0.5.21") == ["0.5.21", "0.5.22", "0.5.23"]
    [newer] = resolve("sglang==0.6.1")
    assert newer.newer_than_known
    assert newer.rules == resolve("sglang")[0].rules
    assert resolve("vllm==99")[0].rules == resolve("vllm")[0].rules != resolve("vllm==0.32.0")[0].rules
    for wrong in ("sglang==0.4.1", "sglang>=9", "tgi", "sglang=0.5.9", "", "sglang==0.5.22.post1"):
        with pytest.raises(UsageError):
            resolve(wrong)


def test_a_newer_release_is_a_warning(tmp_path: Path) -> None:
    report = run(DRAFTERS / "a_plain", tmp_path / "out", "sglang==0.6.1")
    assert report.outcome == "converted"
    assert codes(report) == ["K101"]


def test_releases_in_the_file_are_ascending_and_the_proved_are_known() -> None:
    from packaging.version import Version

    known = known_releases("sglang")
    assert known == sorted(known, key=Version)
    assert set(map(str, loading.load("engines", "sglang")["proved"])) <= set(known)


def test_every_release_reads_and_writes_every_field() -> None:
    for engine in all_releases("sglang"):
        assert set(FIELDS) - OPTIONAL <= set(engine.rules["read"]) <= set(FIELDS)
        written = {rule.get("field") for rule in engine.rules["write"].values()}
        # Those without a key of their own: fixed by the class, or carried by launch options.
        for field in set(engine.rules["read"]) - written:
            assert not {"fixed", "launch"}.isdisjoint(engine.rules["read"][field]), field


def test_defaults_use_only_fields_that_were_read_before() -> None:
    rules = [engine.rules["read"] for name in loading.names("engines") for engine in all_releases(name)]
    rules += [loading.load("dialects", name)["fields"] for name in loading.names("dialects")]
    for fields in rules:
        for field, rule in fields.items():
            for default in (rule.get("default"), rule.get("fixed")):
                used = (
                    [v for k, v in default.items() if k in ("same_as", "quotient")] if isinstance(default, dict) else []
                )
                for name in [u for v in used for u in (v if isinstance(v, list) else [v])]:
                    assert FIELDS.index(name) < FIELDS.index(field)


@pytest.mark.parametrize("name", ["a_plain", "c_nbfc", "d_fcnorm_normout", "e_2layers", "g_aux024", "h_fullvocab"])
def test_what_is_written_reads_back(name: str) -> None:
    engine = resolve("sglang")[0]
    spec = drafter(name).spec
    examination = examine(engine, spec, LLAMA)
    assert examination.findings == ()
    view = engine.view(nested(examination.config), [], LLAMA, examination.launch).spec
    assert view is not None
    for field in FIELDS:
        assert getattr(view, field) == getattr(spec, field), field


@pytest.mark.parametrize(("name", "since"), [("sglang", "0.5.12"), ("vllm", "0.11.1")])
def test_the_first_layer_under_the_trainer_s_names(name: str, since: str) -> None:
    """It is loaded where all layers are in one list, and written under the names that all releases load."""
    it = drafter("a_plain")
    canonical = [n for n in it.tensors if n.startswith("layers.0.")]
    loading_them = []
    for engine in all_releases(name):
        assert {engine.names_for(n) for n in canonical} == {n.replace("layers.0", "midlayer") for n in canonical}
        view = engine.view(nested(write_config(engine, it.spec, (0, 2, 4))), it.tensors.values(), LLAMA, {})
        if set(canonical) <= view.received.keys():
            loading_them.append(engine.release)
    assert loading_them == known_releases(name)[known_releases(name).index(since) :]


def test_a_refused_point_is_explained_by_what_is_known_of_that_point() -> None:
    """The detail of a row may be of the embedding alone, or of the last layer."""
    deepseek = Target(architecture="DeepseekV3ForCausalLM", layers=6)
    embedding = "embedding: TypeError at first forward: hidden_states + residual with residual None"
    engine, spec = resolve("sglang==0.5.9")[0], drafter("a_plain").spec

    rule = engine.target(deepseek.architecture)
    assert rule is not None
    findings = check_captures(engine, rule, replace(spec, capture_points=(0, 3, 6)), deepseek)
    assert {f.code: f.why for f in findings} == {
        "K121": f"{CAPTURE_FAILS['crash']} ({embedding})", "K122": CAPTURE_FAILS["silently_missing"],
    }  # fmt: skip


# Each feature that needs a release: the spec that has it, and the first known release that honours it.
FEATURES = [
    ({"num_hidden_layers": 2, "layer_windows": (None, None)}, "K102", "0.5.12"),
    ({"norm_before_fc": True}, "K104", "0.5.17"),
    ({"fc_norm": True}, "K105", "0.5.12"),
    ({"norm_output": True}, "K106", "0.5.12"),
    ({"layer_windows": (128,)}, "K110", "0.5.12"),
    ({"capture_points": (1, 2, 3, 5)}, "K111", "0.5.12"),
    ({"capture_points": (0, 2, 4)}, "K121", "0.5.22"),
    ({"norm_before_residual": True}, "K103", None),
    ({"qk_norm": True}, "K107", None),
    ({"qkv_bias": True}, "K108", None),
    ({"mlp_bias": True}, "K109", None),
    ({"hidden_act": "gelu"}, "K113", None),
    ({"rope": Rope(1e4, "llama3"), "hidden_act": "swish"}, "K113", None),
    ({"rope": Rope(1e4, "mrope")}, "K112", None),
    ({"capture_points": (6,), "target_hidden_size": 64}, "K114", None),
    ({"capture_points": (1, 3, 6)}, "K122", None),
    ({"rope": Rope(1e4, "yarn", (("attention_factor", 1.0), ("factor", 2.0)))}, "K112", None),
]
# Releases before 0.4.9 add a random bias behind fc and want a vocabulary map; the drafters of most tests have no bias.
OLD = [r for r in known_releases("sglang") if r.startswith(("0.4.6", "0.4.7", "0.4.8"))]
DEEP = Target(architecture="LlamaForCausalLM", layers=10, max_position_embeddings=4096)
BIASED: dict[str, Any] = {"fc_bias": True, "o_bias": True, "qkv_bias": False, "capture_points": (2, 5, 7)}


@pytest.mark.parametrize(("change", "code", "since"), FEATURES, ids=[f"{f[1]}-{i}" for i, f in enumerate(FEATURES)])
def test_features_by_release(change: dict, code: str, since: str | None) -> None:  # type: ignore[type-arg]
    spec = replace(drafter("a_plain").spec, **change)
    refusing = [e.release for e in all_releases("sglang") if code in {f.code for f in examine(e, spec, LLAMA).findings}]
    known = known_releases("sglang")
    assert refusing == (known if since is None else known[: known.index(since)])


@pytest.mark.parametrize(("change", "code", "since"), FEATURES, ids=[f"{f[1]}-{i}" for i, f in enumerate(FEATURES)])
def test_the_refusal_says_where_the_whole_drafter_works(change: dict, code: str, since: str | None) -> None:  # type: ignore[type-arg]
    """The points of a_plain are not the default, so the releases that ignore ids in CUDA graphs are left out."""
    spec = replace(drafter("a_plain").spec, **change)
    [finding] = [f for f in examine(resolve("sglang==0.5.9")[0], spec, LLAMA).findings if f.code == code]
    assert finding.why
    known = known_releases("sglang")
    start = None if since is None else max(known.index(since), known.index("0.5.11"))
    wanted = (
        []
        if start is None
        else [f"works in SGLang {span('sglang', known[start:])}:  eagle3-convert IN OUT --engine sglang"]
    )
    lines = where_it_works(spec, LLAMA, "unknown")
    assert [line for line in lines if "SGLang" in line and "plugin" not in line] == wanted
    [mended] = with_fixes([finding], spec, LLAMA, "unknown")
    assert mended.fix == lines


# The same for vLLM: what the drafter has, the codes of the refusals with the first release that has none of them.
VLLM_FEATURES: list[tuple[dict[str, Any], dict[str, str | None]]] = [
    ({}, {}),
    ({"norm_before_residual": True}, {"K103": "0.10.1"}),
    ({"capture_points": (1, 5, 8)}, {"K123": "0.11.1"}),
    ({"num_hidden_layers": 2, "layer_windows": (None, None)}, {"K102": "0.11.1"}),
    ({"layer_windows": (128,)}, {"K110": "0.10.2"}),
    ({"num_hidden_layers": 2, "layer_windows": (128, None)}, {"K102": "0.11.1", "K110": "0.29.0"}),
    ({"qkv_bias": True, "o_bias": True}, {"K108": "0.16.0"}),
    ({"qkv_bias": True}, {"K108": None}),
    ({"norm_before_fc": True}, {"K104": "0.18.0"}),
    ({"capture_points": (0, 2, 4)}, {"K121": "0.18.0", "K123": "0.11.1"}),
    ({"capture_points": (1, 5, 10)}, {"K122": "0.18.0", "K123": "0.11.1"}),
    ({"fc_norm": True}, {"K105": "0.22.0"}),
    ({"norm_output": True}, {"K106": "0.22.0"}),
    ({"capture_points": (1, 2, 3, 5)}, {"K111": "0.22.0", "K123": "0.11.1"}),
    ({"qk_norm": True}, {"K107": "0.24.0"}),
    ({"hidden_act": "gelu"}, {"K113": None}),
    ({"rope": Rope(1e4, "mrope")}, {"K112": None}),
    ({"fc_bias": True}, {"K190": None}),
]


@pytest.mark.parametrize(("change", "bounds"), VLLM_FEATURES, ids=["+".join(c) or "plain" for c, _ in VLLM_FEATURES])
def test_features_by_release_of_vllm(change: dict[str, Any], bounds: dict[str, str | None]) -> None:
    spec = replace(drafter("a_plain").spec, capture_points=(2, 5, 7))
    known = known_releases("vllm")
    lost = known[: known.index("0.9.1")]  # these lose the vocabulary map and replace the embedding
    found: dict[str, list[str]] = {}
    for engine in all_releases("vllm"):
        if engine.release not in lost:
            for code in {
                f.code for f in examine(engine, replace(spec, **change), DEEP).findings if f.severity == "error"
            }:
                found.setdefault(code, []).append(engine.release)
        else:
            assert "K116" in {f.code for f in examine(engine, replace(spec, **change), DEEP).findings}
    ends = {code: len(known) if since is None else known.index(since) for code, since in bounds.items()}
    wanted = {code: known[len(lost) : end] for code, end in ends.items()}
    if "K112" in bounds:  # no release can even read a rope of that kind back
        found.pop("K190")
    assert found == wanted


def test_the_embedding_in_vllm_comes_with_a_warning() -> None:
    spec = replace(drafter("a_plain").spec, capture_points=(0, 2, 4))
    for engine in all_releases("vllm"):
        warned = [f for f in examine(engine, spec, DEEP).findings if f.code == "K126"]
        rule = engine.target("LlamaForCausalLM")
        assert rule is not None
        assert bool(warned) == (rule.embedding == "works")
        assert all(f.severity == "warning" and "eager" in f.why for f in warned)


def test_what_speaks_against_an_embedding_that_works_is_said() -> None:
    """K126 says what begins so."""
    table = ROOT / "mappings" / "engines" / "vllm.targets.json"
    rules = json.loads(table.read_text(encoding="utf-8"))["targets"]
    told = [r["detail"] for r in rules if r["embedding"] == "works" and "embedding" in r["detail"]]
    assert len(told) > 50
    assert [text for text in told if not text.startswith("embedding: ")] == []


def test_where_a_drafter_works_is_judged_for_all_of_it() -> None:
    """Each flag alone works in an older vLLM; together they need the newest of what they need."""
    spec = replace(drafter("l_defaults").spec)
    assert where_it_works(spec, LLAMA, "unknown") == (
        "works in vLLM 0.22.0 to 0.33.0:  eagle3-convert IN OUT --engine vllm",
        "works in SGLang 0.5.11 to 0.5.23 with a plugin:  eagle3-convert IN OUT --engine sglang --allow-plugin",
    )
    nowhere = replace(spec, hidden_act="gelu")
    assert where_it_works(nowhere, LLAMA, "unknown") == (
        "no known release of any engine can serve this drafter as it was trained",
    )


def spec_with(change: dict[str, Any]) -> DrafterSpec:
    return replace(drafter("a_plain").spec, max_position_embeddings=4096, **change)


def refusing(change: dict[str, Any], code: str) -> list[str]:
    spec = spec_with(change)
    return [e.release for e in all_releases("sglang") if code in {f.code for f in examine(e, spec, DEEP).findings}]


def test_the_oldest_known_release_is_the_first_that_has_eagle3() -> None:
    known = known_releases("sglang")
    assert known[0] == "0.4.6"
    assert (OLD[-1], known[len(OLD)]) == ("0.4.8.post1", "0.4.9")
    assert known[: len(OLD)] == OLD
    with pytest.raises(UsageError, match=r"0\.4\.6 to 0\.5\.23"):
        resolve("sglang==0.4.5")


def test_an_old_release_serves_what_it_computes() -> None:
    """A biased fc, a vocabulary map and the default capture points: nothing stands in the way."""
    spec = spec_with(BIASED)
    for release in OLD:
        [engine] = resolve(f"sglang=={release}")
        examination = examine(engine, spec, DEEP)
        assert examination.findings == ()
        assert "bias" not in nested(examination.config)  # it would turn on other biases too, and fc's is there anyway
        # What later releases read, so that one folder serves both.
        assert examination.layer_ids == examine(resolve("sglang==0.4.9")[0], spec, DEEP).layer_ids == (1, 4, 6)


def test_a_bias_that_the_drafter_lacks_is_random_before_0_4_9() -> None:
    spec = replace(drafter("a_plain").spec, capture_points=(2, 5, 7))
    assert refusing({"capture_points": (2, 5, 7)}, "K190") == OLD
    [finding] = [f for f in examine(resolve("sglang==0.4.6")[0], spec, DEEP).findings if f.code == "K190"]
    assert "fc_bias is false; sglang 0.4.6 computes true" in finding.message
    assert "random" in finding.why


def test_a_vocabulary_map_is_needed_before_0_4_9() -> None:
    full = {**BIASED, "draft_vocab_size": drafter("a_plain").spec.vocab_size}
    assert refusing(full, "K116") == OLD
    [finding] = examine(resolve("sglang==0.4.8")[0], spec_with(full), DEEP).findings
    assert "hot_token_id" in finding.why


def test_releases_before_0_4_9_read_no_ids() -> None:
    assert refusing({"capture_points": (2, 5, 7)}, "K123") == []
    assert refusing({"capture_points": (1, 5, 7)}, "K123") == OLD
    spec = spec_with({**BIASED, "capture_points": (1, 5, 7)})
    [finding] = [f for f in examine(resolve("sglang==0.4.6")[0], spec, DEEP).findings if f.severity == "error"]
    assert (finding.code, finding.expected) == ("K123", "layer 2, layer 5, layer 7")
    # How deep the target is decides what the default is.
    unknown = Target(architecture="LlamaForCausalLM")
    findings = examine(resolve("sglang==0.4.6")[0], replace(spec, capture_points=(2, 5, 7)), unknown).findings
    assert [f.code for f in findings] == ["K123"]
    assert "--target" in findings[0].expected


def test_ids_that_nobody_reads_are_those_of_the_first_release_that_does() -> None:
    """vLLM names points, SGLang layers before them."""
    spec = spec_with({"capture_points": (2, 5, 7)})
    for name, ids in (("sglang", (1, 4, 6)), ("vllm", (2, 5, 7))):
        engine = all_releases(name)[0]
        rule = engine.target("LlamaForCausalLM")
        assert rule is not None
        assert rule.id_rule == "ids_ignored"
        assert engine.layer_ids(spec, DEEP) == ids


def test_the_default_of_a_shallow_target_names_a_layer_twice() -> None:
    """Points 2, L//2 and L-3 of 6 layers are two states, which fc does not take."""
    [engine] = resolve("sglang==0.4.6")
    assert engine.default_points(LLAMA) == (2, 3)
    spec = spec_with({**BIASED, "capture_points": (1, 2, 3)})
    assert {f.code for f in examine(engine, spec, LLAMA).findings if f.severity == "error"} == {"K123"}
    two = replace(spec, capture_points=(2, 3))
    assert {f.code for f in examine(engine, two, LLAMA).findings if f.severity == "error"} == {"K111"}


def test_graphs_of_old_releases_capture_the_default_points() -> None:
    """From 0.4.9 to 0.5.10.post1 other ids hold only without CUDA graphs; the launch line turns them off."""
    flagged = {}
    for points in ((2, 5, 7), (1, 5, 7)):
        spec = replace(drafter("a_plain").spec, capture_points=points)
        lines = {e.release: launch_command(e, DEEP, "OUT", 3, spec)[1] for e in all_releases("sglang")}
        flagged[points] = [release for release, command in lines.items() if "--disable-cuda-graph" in command]
    known = known_releases("sglang")
    assert flagged == {(2, 5, 7): [], (1, 5, 7): known[known.index("0.4.9") : known.index("0.5.11")]}
    # Where nobody knows what the default is, it is taken to be another.
    spec = replace(drafter("a_plain").spec, capture_points=(2, 5, 7))
    for target in (Target(architecture="LlamaForCausalLM"), Target()):
        assert launch_command(resolve("sglang==0.5.9")[0], target, "OUT", 3, spec)[1][-1] == "--disable-cuda-graph"


def test_the_context_limit_by_release() -> None:
    spec = replace(spec_with(BIASED), max_position_embeddings=2048)
    variable = {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
    for release, environment, table_ends in (
        ("0.4.6", {}, True),
        ("0.4.10.post2", {}, True),
        ("0.5.1", variable, True),
        ("0.5.2", variable, True),
        ("0.5.3", variable, False),
        ("0.5.23", variable, False),
    ):
        [engine] = resolve(f"sglang=={release}")
        assert launch_command(engine, DEEP, "OUT", 3, spec)[0] == environment
        [finding] = [f for f in examine(engine, spec, DEEP).findings if f.code == "C214"]
        assert ("rope table has no rows" in finding.why) is table_ends
        assert "--context-length" in finding.why


def test_rope_by_release() -> None:
    known = known_releases("sglang")
    truncated = {"rope": Rope(1e4, "yarn", (("factor", 2.0), ("truncate", False)))}
    assert refusing(truncated, "K112") == known[: known.index("0.5.7")]
    # One release asks its transformers for a theta that is no longer there.
    assert refusing({"rope": Rope(5e5)}, "K112") == ["0.5.6.post1"]
    assert refusing({"rope": Rope(1e4)}, "K112") == []
    mscale = {"rope": Rope(1e4, "yarn", (("factor", 2.0), ("mscale", 1.0)))}
    assert refusing(mscale, "K112") == known[: known.index("0.5.23")]


def test_which_dtype_key_is_read() -> None:
    config = {**nested(examine(resolve("sglang")[0], drafter("a_plain").spec, LLAMA).config)}
    del config["torch_dtype"]
    read = {r: resolve(f"sglang=={r}")[0].view(config, [], LLAMA, {}).spec for r in ("0.5.1.post3", "0.5.2", "0.5.23")}
    assert [release for release, spec in read.items() if spec is None] == ["0.5.1.post3"]


def test_kimi_and_deepseek_by_release() -> None:
    """The same three points need other ids in each release, and the embedding only works from 0.5.14."""
    spec = replace(drafter("a_plain").spec, capture_points=(1, 3, 5))
    deepseek = Target(architecture="DeepseekV3ForCausalLM", layers=6)
    ids = {r: examine(resolve(f"sglang=={r}")[0], spec, deepseek).layer_ids for r in ("0.5.12", "0.5.13", "0.5.23")}
    assert ids == {"0.5.12": (0, 2, 4), "0.5.13": (3, 1, 5), "0.5.23": (3, 1, 5)}
    embed = replace(spec, capture_points=(0, 3, 5))
    for release, code in (("0.5.12", "K121"), ("0.5.13", "K121"), ("0.5.14", None), ("0.5.23", None)):
        examination = examine(resolve(f"sglang=={release}")[0], embed, deepseek)
        assert [f.code for f in examination.findings] == ([code] if code else [])
    assert examine(resolve("sglang")[0], embed, deepseek).layer_ids == (0, 3, 5)


def test_one_output_for_two_releases(tmp_path: Path) -> None:
    from converter.pipeline import Request, convert
    from tests.support import TARGET, quiet

    def both(arch: str, out: Path) -> list[str]:
        engines = ("sglang==0.5.12", "sglang==0.5.23")
        request = Request(source=str(DRAFTERS / "a_plain"), out=out, engines=engines, target=TARGET, target_arch=arch)
        return errors(convert(request, quiet))

    assert both("LlamaForCausalLM", tmp_path / "out") == []
    assert both("DeepseekV3ForCausalLM", tmp_path / "out2") == ["K130"]


def test_releases_in_a_row_are_a_span() -> None:
    assert span("sglang", ["0.5.22", "0.5.23"]) == "0.5.22 to 0.5.23"
    assert span("sglang", ["0.5.9", "0.5.23"]) == "0.5.9, 0.5.23"
    assert span("sglang", ["0.5.9"]) == "0.5.9"
    assert span("sglang", []) == ""
    gap = [r for r in known_releases("sglang") if r != "0.5.6.post1"]
    assert span("sglang", gap) == "0.4.6 to 0.5.6, 0.5.6.post2 to 0.5.23"


def test_a_key_given_twice_in_a_rule_file_is_an_error() -> None:
    from converter.errors import RulesError

    with pytest.raises(RulesError, match="appears twice"):
        loading.parse(b"a: 1\nb: 2\na: 3\n", "x.yaml")
    with pytest.raises(RulesError):
        loading.parse(b"- 1\n", "x.yaml")
    with pytest.raises(RulesError):
        loading.parse(b"a: [", "x.yaml")


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize("name", ["a_plain", "d_fcnorm_normout", "e_2layers"])
def test_what_was_written_is_held_against_what_was_meant(name: str, engine: str, tmp_path: Path) -> None:
    """Every tensor that is lost or renamed, and every key that is changed in OUT, shows when OUT is read back."""
    report = run(DRAFTERS / name, tmp_path / "out", engine)
    assert report.plan is not None
    [release], spec = report.plan.engines, report.plan.spec
    names = list(open_checkpoint(tmp_path / "out").tensors)
    config = json.loads((tmp_path / "out" / "config.json").read_text())

    def found(config: dict[str, Any], names: list[str]) -> list[str]:
        return [f.code for f in compare(release, spec, config, names, report.target, report.plan.launch)]  # type: ignore[union-attr]

    assert found(config, names) == []
    unused = {"t2d", "embed_tokens.weight"}
    for tensor in set(names) - unused:
        without = [n for n in names if n != tensor]
        assert found(config, without) == ["K190"], tensor
        assert found(config, [*without, f"other.{tensor}"]) == ["K190"], tensor
    for key, value in (("hidden_size", 32), ("num_hidden_layers", 5), ("vocab_size", 500), ("rms_norm_eps", 1.0)):
        assert found(config | {key: value}, names), key
    nested_ids = config["eagle_config"] | {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    assert "K125" in found(config | {"eagle_config": nested_ids, "eagle_aux_hidden_state_layer_ids": [0, 1, 2]}, names)


def test_a_map_beside_a_full_vocabulary_is_refused_by_vllm_from_0_30() -> None:
    """models/llama_eagle3.py @ 0.30.0 has no parameter for d2t where the vocabularies are equal."""
    known = known_releases("vllm")
    refusing = [e.release for e in all_releases("vllm") if e.rules.get("full_vocabulary_map") == "refused"]
    assert refusing == known[known.index("0.30.0") :]


def test_vllm_never_takes_the_embedding_for_the_head() -> None:
    """It builds an lm_head whatever the flag says, and fills it from the target's where the folder has none."""
    spec = drafter("h_fullvocab").spec
    for engine in all_releases("vllm"):
        told = [f.message for f in examine(engine, replace(spec, tie_word_embeddings=True), LLAMA).findings]
        assert f"tie_word_embeddings is true; {engine} computes false" in told


def test_what_stops_a_release_of_what_it_sees() -> None:
    [engine], spec = resolve("sglang==0.5.21"), drafter("a_plain").spec
    names = [engine.names_for(c) or c for c in expected_tensors(spec)] + ["d2t"]
    seen = engine.loads(spec, names)
    assert why_it_stops(engine, seen, LLAMA) == ""
    embedding = engine.loads(replace(spec, capture_points=(0, 2, 4)), names)
    assert why_it_stops(engine, embedding, LLAMA) == "the target's class does not hand out embedding"
    assert why_it_stops(engine, embedding, replace(LLAMA, architecture="")) == ""  # nothing is said of an unknown class
    assert why_it_stops(engine, engine.loads(None, names), LLAMA) == "its config cannot be read"
    [newest], full = resolve("vllm==0.33.0"), replace(spec, draft_vocab_size=spec.vocab_size)
    assert why_it_stops(newest, newest.loads(full, names), LLAMA) == "it takes no map over the full vocabulary (d2t)"


def test_an_error_or_a_needed_flag_speaks_against_a_release() -> None:
    spec = drafter("b_nbr").spec
    [writer] = resolve("vllm==0.33.0")
    config = nested(examine(writer, spec, LLAMA).config)
    names = [writer.names_for(c) or c for c in expected_tensors(spec)] + ["d2t", "t2d"]
    sglang = suits("sglang", spec, config, names, LLAMA, "unknown")
    assert sglang.right == () and all("K103" in codes for codes in sglang.wrong)
    vllm = suits("vllm", spec, config, names, LLAMA, "unknown")
    assert "0.33.0" in vllm.right and vllm.words().startswith("vllm ") and vllm.words().endswith(" to 0.33.0")
    assert suits("sglang", spec, config, names, replace(LLAMA, layers=None), "unknown").right == ()


def test_points_that_no_list_of_ids_names() -> None:
    """Ids of DeepSeek's classes are capture points, unless the first is 1: so point 1 alone has no name."""
    spec = replace(drafter("a_plain").spec, capture_points=(1,))
    found = examine(resolve("sglang")[0], spec, replace(LLAMA, architecture="DeepseekV3ForCausalLM")).findings
    [no_ids] = [f for f in found if f.code == "K123"]
    assert no_ids.severity == "error" and no_ids.found == "id rule plus_one_if_first_is_one"
    assert no_ids.message == "no list of ids makes sglang 0.5.23 capture layer 1 of DeepseekV3ForCausalLM"


def test_which_releases_capture_a_point() -> None:
    assert capture_table("sglang", "LlamaForCausalLM", 0, 6) == "sglang 0.5.22 to 0.5.23"
    assert capture_table("sglang", "LlamaForCausalLM", 6, 6).startswith("none of sglang 0.4.6 to 0.5.23")
