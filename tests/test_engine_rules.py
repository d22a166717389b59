"""What the engine file says, by release."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from converter.checks.engine import examine, span
from converter.drafter.spec import FIELDS, Rope
from converter.drafter.target import Target
from converter.errors import UsageError
from converter.rules import loading
from converter.rules.engine import all_releases, known_releases, nested, resolve
from tests.support import DRAFTERS, codes, errors, run
from tests.test_forward import drafter

LLAMA = Target(architecture="LlamaForCausalLM", layers=6)


def requirement(text: str) -> list[str]:
    return [e.release for e in resolve(text)]


def test_choosing_releases() -> None:
    assert requirement("sglang") == ["0.5.23"]
    assert requirement("sglang==0.5.9") == ["0.5.9"]
    assert requirement("sglang>=0.5.21") == ["0.5.21", "0.5.22", "0.5.23"]
    [newer] = resolve("sglang==0.6.1")
    assert newer.newer_than_known
    assert newer.rules == resolve("sglang")[0].rules
    for wrong in ("sglang==0.4.1", "sglang>=9", "tgi", "sglang=0.5.9", ""):
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
        assert set(engine.rules["read"]) == set(FIELDS)
        written = {rule.get("field") for rule in engine.rules["write"].values()}
        # Those without a key of their own: fixed by the class, or carried by launch options.
        assert set(FIELDS) - written <= {"qkv_bias", "qk_norm", "layer_windows"}


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
]


@pytest.mark.parametrize(("change", "code", "since"), FEATURES, ids=[f"{f[1]}-{i}" for i, f in enumerate(FEATURES)])
def test_features_by_release(change: dict, code: str, since: str | None) -> None:  # type: ignore[type-arg]
    spec = replace(drafter("a_plain").spec, **change)
    refusing = [e.release for e in all_releases("sglang") if code in {f.code for f in examine(e, spec, LLAMA).findings}]
    known = known_releases("sglang")
    assert refusing == (known if since is None else known[: known.index(since)])


@pytest.mark.parametrize(("change", "code", "since"), FEATURES, ids=[f"{f[1]}-{i}" for i, f in enumerate(FEATURES)])
def test_the_refusal_says_where_it_works(change: dict, code: str, since: str | None) -> None:  # type: ignore[type-arg]
    spec = replace(drafter("a_plain").spec, **change)
    [finding] = [f for f in examine(resolve("sglang==0.5.9")[0], spec, LLAMA).findings if f.code == code]
    assert finding.why
    here = [fix for fix in finding.fix if fix.startswith("SGLang")]
    assert here == ([] if since is None else [f"SGLang {span('sglang', known_releases('sglang')[known_releases('sglang').index(since):])}:  --engine sglang==0.5.23"])  # fmt: skip # noqa: E501


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


def test_spans() -> None:
    assert span("sglang", ["0.5.22", "0.5.23"]) == "0.5.22 to 0.5.23"
    assert span("sglang", ["0.5.9", "0.5.23"]) == "0.5.9, 0.5.23"
    assert span("sglang", ["0.5.9"]) == "0.5.9"
    assert span("sglang", []) == ""


def test_a_key_given_twice_in_a_rule_file_is_an_error() -> None:
    from converter.errors import RulesError

    with pytest.raises(RulesError, match="appears twice"):
        loading.parse(b"a: 1\nb: 2\na: 3\n", "x.yaml")
    with pytest.raises(RulesError):
        loading.parse(b"- 1\n", "x.yaml")
    with pytest.raises(RulesError):
        loading.parse(b"a: [", "x.yaml")
