"""`--to DIALECT` writes a trainer's form, and `--dialect ENGINE` reads an engine's: there and back again."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from converter.checkpoint.reader import open_checkpoint
from converter.checks.engine import examine
from converter.drafter.drafter import Provenance
from converter.drafter.spec import DrafterSpec, Rope, differences
from converter.drafter.target import Target
from converter.errors import UsageError
from converter.pipeline import Report
from converter.rules import loading
from converter.rules.fields import IdMeaning, leaves, read_spec
from converter.rules.forms import own_reader, reading_engine, trainer_form, writable
from converter.rules.recognition import recognise
from converter.rules.releases import resolve
from converter.rules.written import nested
from tests.support import DRAFTERS, NAMES, SAMPLE, TARGET, codes, convert, copy_of, eagle3, errors, quiet, request
from tests.test_forward import drafter
from tests.test_producers import PRODUCERS, SAID

FORMS = ["angelslim", "automodel", "eagle", "modelopt", "specforge", "speculators"]

# Drafter and form -> why the form cannot hold it; what is not listed is written. Every drafter here takes the points 1,
# 3 and 5 (g: 0, 2 and 4) of a target of 6 layers, which are not the default of forms that have no key for ids.
NO_IDS = {"angelslim", "automodel", "eagle"}
CANNOT: dict[str, dict[str, list[str]]] = {
    "b_nbr": {"specforge": ["K103"], "modelopt": ["K103"]},
    "c_nbfc": {"specforge": ["K104"], "modelopt": ["K104"]},
    "d_fcnorm_normout": {"modelopt": ["K105", "K106"]},
    "e_2layers": {"specforge": ["K102"]},
    "f_qwen3": {"specforge": ["K107"], "modelopt": ["K107"]},
    "g_aux024": {"specforge": ["K121"], "modelopt": ["K121"]},
    "j_attnbias": {"specforge": ["K108"]},
    "l_defaults": {"specforge": ["K103", "K104", "K110"], "modelopt": ["K103", "K104", "K106", "K110"]},
}


def to(source: Path, out: Path, form: str, **options: Any) -> Report:
    options.setdefault("target", TARGET)
    return convert(request(source, out=out, to=form, **options), quiet)


def tensors(folder: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Name -> dtype, shape and bytes."""
    found = {}
    for name, stored in open_checkpoint(folder).tensors.items():
        with stored.file.open("rb") as file:
            file.seek(stored.offset)
            found[name] = (stored.info.dtype, stored.info.shape, file.read(stored.info.nbytes))
    return found


def config(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return document


def test_what_can_be_written() -> None:
    assert writable() == FORMS


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["specforge", "modelopt", "speculators"])
def test_every_drafter_in_every_form_or_the_reason(name: str, form: str, tmp_path: Path) -> None:
    report = to(DRAFTERS / name, tmp_path / "out", form)
    expected = CANNOT.get(name, {}).get(form, [])
    assert errors(report) == expected
    assert not [
        f.message for f in report.findings if f.code == "K121" and "is fed the target's embedding" not in f.message
    ]
    assert (report.outcome, (tmp_path / "out").exists()) == (("refused", False) if expected else ("converted", True))


@pytest.mark.parametrize("form", sorted(NO_IDS))
def test_forms_without_ids_hold_the_default_points_only(form: str, tmp_path: Path) -> None:
    assert errors(to(DRAFTERS / "a_plain", tmp_path / "no", form)) == ["K123"]
    assert errors(to(DRAFTERS / "a_plain", tmp_path / "no", form, target=None)) == ["K123"]
    # 2, L//2 and L-3 of a target of 10 layers
    target = tmp_path / "target.json"
    document = json.loads((TARGET / "config.json").read_text())
    target.write_text(json.dumps({**document, "num_hidden_layers": 10}))
    report = to(DRAFTERS / "a_plain", tmp_path / "out", form, aux=(2, 5, 7), target=target)
    assert report.outcome == "converted"
    back = to(tmp_path / "out", tmp_path / "back", "speculators", target=target)
    assert back.drafter is not None and back.drafter.spec.capture_points == (2, 5, 7)
    assert tensors(tmp_path / "back") == tensors(DRAFTERS / "a_plain")


PAIRS = [
    (name, form)
    for name in NAMES
    for form in ("specforge", "modelopt", "speculators")
    if not CANNOT.get(name, {}).get(form)
]


@pytest.mark.parametrize("name,form", PAIRS)
def test_there_and_back_changes_no_byte(name: str, form: str, tmp_path: Path) -> None:
    source, there, back, again = DRAFTERS / name, tmp_path / "there", tmp_path / "back", tmp_path / "again"
    first = to(source, there, form)
    second = to(there, back, "speculators")
    assert second.dialect is not None and second.dialect.name == form
    assert tensors(back) == tensors(source)
    assert first.drafter and second.drafter and not differences(first.drafter.spec, second.drafter.spec)
    # The config means the same; a second time round it is the same to the letter.
    to(back, tmp_path / "there again", form)
    to(tmp_path / "there again", again, "speculators")
    assert config(again) == config(back)
    assert config(tmp_path / "there again") == config(there)
    before, after = dict.fromkeys(leaves(config(source))), config(back)
    rules = loading.load("dialects", "speculators")
    ignored = (*rules["ignore"], *rules["provenance"].values())
    for key in leaves(after):
        if key in before and not any(key == k or key.startswith(f"{k}.") for k in ignored):
            assert _at(config(source), key) == _at(after, key), key


def _at(document: Any, path: str) -> Any:
    for part in path.split("."):
        document = document[part]
    return document


@pytest.mark.parametrize("name", ["specforge_sglang", "specforge_hf", "modelopt_layers"])
def test_another_trainers_own_drafter_comes_back_byte_for_byte(name: str, tmp_path: Path) -> None:
    form = "specforge" if name.startswith("specforge") else "modelopt"
    source = PRODUCERS / name
    report = to(source, tmp_path / "there", "speculators", aux=(1, 3, 5), **SAID.get(name, {}))
    assert report.outcome == "converted"
    to(tmp_path / "there", tmp_path / "back", form)
    assert tensors(tmp_path / "back") == tensors(source)
    for key in leaves(config(tmp_path / "back")):
        if key in dict.fromkeys(leaves(config(source))) and not (key.startswith("rope_") and name in SAID):
            assert _at(config(source), key) == _at(config(tmp_path / "back"), key), key


def test_what_one_form_lacks_is_made_or_listed(tmp_path: Path) -> None:
    report = to(DRAFTERS / "a_plain", tmp_path / "modelopt", "modelopt")
    assert report.plan is not None
    assert report.plan.dropped == {"t2d": "ModelOpt 0.47.0 has none; it follows from d2t"}
    assert report.plan.form is not None
    assert report.plan.form.unsaid() == ["target name", "target architectures", "speculative tokens"]
    back = to(tmp_path / "modelopt", tmp_path / "back", "speculators")
    assert back.plan is not None
    [made] = [t for t in back.plan.tensors if t.canonical == "t2d"]
    assert made.made and made.source == "d2t" and made.shape == (512,) and made.dtype == "BOOL"
    assert made not in back.plan.renamed
    assert tensors(tmp_path / "back")["t2d"] == tensors(DRAFTERS / "a_plain")["t2d"]


def test_a_full_vocabulary_has_no_map_in_speculators_form_and_keeps_it_in_specforges(tmp_path: Path) -> None:
    import torch

    def with_identity(weights: dict[str, Any]) -> None:
        weights |= {"d2t": torch.zeros(512, dtype=torch.int64), "t2d": torch.ones(512, dtype=torch.bool)}

    source = copy_of("h_fullvocab", tmp_path / "in", tensors=with_identity)
    assert to(source, tmp_path / "specforge", "specforge").outcome == "converted"
    assert {"d2t", "t2d"} <= load_file(tmp_path / "specforge" / "model.safetensors").keys()
    to(DRAFTERS / "h_fullvocab", tmp_path / "made", "specforge")  # which has none: SpecForge's model always has both
    assert tensors(tmp_path / "made") == tensors(tmp_path / "specforge")
    assert to(source, tmp_path / "speculators", "speculators").outcome == "converted"
    assert not {"d2t", "t2d"} & load_file(tmp_path / "speculators" / "model.safetensors").keys()

    def permuted(weights: dict[str, Any]) -> None:
        with_identity(weights)
        weights["d2t"][:2] = torch.tensor([1, -1])
        weights["lm_head.weight"][:2] = weights["lm_head.weight"][:2].flip(0)

    source = copy_of("h_fullvocab", tmp_path / "in2", tensors=permuted)
    assert errors(to(source, tmp_path / "no", "speculators")) == ["K119"]


def test_a_speculators_drafter_names_its_target(tmp_path: Path) -> None:
    to(DRAFTERS / "a_plain", tmp_path / "specforge", "specforge")
    report = to(tmp_path / "specforge", tmp_path / "no", "speculators", target=None)
    assert errors(report) == ["C230"] and not (tmp_path / "no").exists()
    to(tmp_path / "specforge", tmp_path / "out", "speculators")
    assert config(tmp_path / "out")["speculators_config"]["verifier"] == {
        "name_or_path": str(TARGET),
        "architectures": ["LlamaForCausalLM"],
    }


def test_what_was_written_leaves_nothing_open_until_it_is_changed(tmp_path: Path) -> None:
    """SpecForge's ids have two meanings (A109) where it wrote them, and one where `--to` did."""
    to(DRAFTERS / "a_plain", tmp_path / "out", "specforge")
    seal = json.loads((tmp_path / "out" / "eagle3-seal.json").read_text())
    assert (seal["to"], seal["engines"]) == ("specforge==0.2.0", [])
    options = {"target": TARGET, "engines": ("sglang==0.5.23",)}
    assert "A109" not in codes(convert(request(tmp_path / "out", out=tmp_path / "served", **options), quiet))
    document = config(tmp_path / "out")
    (tmp_path / "out" / "config.json").write_text(json.dumps({**document, "bos_token_id": 0}))
    assert "A109" in codes(convert(request(tmp_path / "out", out=tmp_path / "served2", **options), quiet))


def test_a_head_that_another_trainer_trained_is_no_fault_in_speculators_form(tmp_path: Path) -> None:
    """speculators freezes its head, so one of other rows is V210; SpecForge trains it."""
    source = copy_of("a_plain", tmp_path / "in", tensors=lambda weights: weights["lm_head.weight"].mul_(1.5))
    assert errors(to(source, tmp_path / "own", "specforge")) == ["V210"]
    report = to(source, tmp_path / "specforge", "specforge", target=TARGET / "config.json", allow=("V210",))
    assert report.outcome == "converted"
    assert to(tmp_path / "specforge", tmp_path / "speculators", "speculators").outcome == "converted"
    assert to(tmp_path / "speculators", tmp_path / "again", "specforge").outcome == "converted"


def test_what_a_trainer_reads_back_is_proved(tmp_path: Path) -> None:
    report = to(DRAFTERS / "d_fcnorm_normout", tmp_path / "out", "specforge", sample=SAMPLE, positions=200)
    assert report.proof is not None and report.outcome == "converted"
    assert report.proof.difference == 0.0 and report.proof.level in ("agreement", "sample", "anchored")
    seal = json.loads((tmp_path / "out" / "eagle3-seal.json").read_text())
    assert [e["engine"] for e in seal["proof"]["engines"]] == ["SpecForge 0.2.0"]


@pytest.mark.parametrize("engine", ["sglang==0.5.9", "sglang==0.5.23", "vllm==0.33.0"])
@pytest.mark.parametrize("name", ["a_plain", "c_nbfc", "d_fcnorm_normout", "e_2layers", "l_defaults"])
def test_an_engines_form_is_read_as_the_engine_reads_it(engine: str, name: str, tmp_path: Path) -> None:
    there = convert(request(DRAFTERS / name, out=tmp_path / "there", engines=(engine,), target=TARGET), quiet)
    if there.outcome != "converted":
        assert engine.startswith("sglang") and errors(there)
        return
    unread = convert(request(tmp_path / "there", out=tmp_path / "no", engines=(engine,), target=TARGET), quiet)
    assert errors(unread) == ["F112"]
    back = to(tmp_path / "there", tmp_path / "back", "speculators", dialect=engine)
    assert back.outcome == "converted" and back.dialect is not None
    assert f"{back.dialect.name}=={back.dialect.release}" == engine
    assert tensors(tmp_path / "back") == tensors(DRAFTERS / name)
    assert there.drafter and back.drafter
    assert not [d for d in differences(there.drafter.spec, back.drafter.spec) if d != "layer_windows"]


@pytest.mark.parametrize(
    ("name", "engine", "said"),
    [("automodel_mla", "sglang==0.5.23", {"aux": (1, 3, 5)}), ("automodel_mla", "vllm==0.33.0", {"aux": (1, 3, 5)}),
     ("speculators_peagle", "vllm==0.33.0", {})],
)  # fmt: skip
def test_an_engines_form_of_another_shape_is_read_by_the_rules_for_it(
    name: str, engine: str, said: dict[str, Any], tmp_path: Path
) -> None:
    options = {"engines": (engine,), "target": TARGET}
    there = convert(request(PRODUCERS / name, out=tmp_path / "there", **options, **said), quiet)
    again = convert(request(tmp_path / "there", out=tmp_path / "again", dialect=engine, **options), quiet)
    assert (there.outcome, again.outcome) == ("converted", "converted") and errors(again) == []
    assert not {"T101", "C203", "C204"} & set(codes(again))
    first = tensors(tmp_path / "there")
    assert again.plan is not None and again.plan.dropped.keys() == {"t2d"}  # which no engine needs
    assert tensors(tmp_path / "again") == {n: t for n, t in first.items() if n != "t2d"}
    assert config(tmp_path / "again") == config(tmp_path / "there")


@pytest.mark.parametrize("engine", ["llama.cpp", "tensorrt-llm"])
def test_what_such_an_engine_is_told_at_launch_is_sealed_or_asked_for(engine: str, tmp_path: Path) -> None:
    """The seal tells the points; without it the dtype follows from the weights, and nothing tells the points."""
    options = {"engines": (engine,), "target": TARGET}
    convert(request(DRAFTERS / "a_plain", out=tmp_path / "there", **options), quiet)
    assert errors(to(tmp_path / "there", tmp_path / "sealed", "speculators", dialect=engine)) == []
    (tmp_path / "there" / "eagle3-seal.json").unlink()
    back = to(tmp_path / "there", tmp_path / "back", "speculators", dialect=engine)
    assert errors(back) == ([] if engine == "llama.cpp" else ["A104"])
    if errors(back):
        back = to(tmp_path / "there", tmp_path / "back", "speculators", dialect=engine, aux=(1, 3, 5))
    assert back.outcome == "converted" and tensors(tmp_path / "back") == tensors(DRAFTERS / "a_plain")


def test_ids_of_an_engines_form_follow_the_targets_class(tmp_path: Path) -> None:
    """The ids 1, 2, 4 are points 2, 3, 5 of a DeepSeek in SGLang 0.5.23 (the first is 1), and 0, 2, 4 are 0, 2, 4."""

    def sglangs(document: dict[str, Any], ids: list[int]) -> None:
        layer = document.pop("transformer_layer_config")
        for key in [k for k in document if k.startswith(("speculators", "eagle_", "auto_map"))]:
            del document[key]
        document |= layer | {"architectures": ["LlamaForCausalLMEagle3"]}
        document["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": ids}

    def points(ids: list[int], dialect: str, **options: Any) -> tuple[int, ...]:
        folder = tmp_path / f"in{len(list(tmp_path.iterdir()))}"
        source = copy_of("a_plain", folder, config=lambda document: sglangs(document, ids))
        report = convert(request(source, out=tmp_path / "out", dry_run=True, dialect=dialect, **options), quiet)
        assert report.drafter is not None, report.findings
        return report.drafter.spec.capture_points

    assert points([1, 2, 4], "sglang==0.5.23", target_arch="DeepseekV3ForCausalLM") == (2, 3, 5)
    assert points([0, 2, 4], "sglang==0.5.23", target_arch="DeepseekV3ForCausalLM") == (0, 2, 4)
    assert points([0, 2, 4], "sglang", target_arch="LlamaForCausalLM") == (1, 3, 5)
    # vLLM's rules read top-level ids alone, and of ids that are not there the default
    assert points([1, 2, 4], "vllm", target=TARGET) == (2, 3, 3)
    with pytest.raises(UsageError, match="depends on the target's class"):
        points([1, 2, 4], "sglang")
    with pytest.raises(UsageError, match="expected one release"):
        points([1, 2, 4], "sglang>=0.5.12", target_arch="LlamaForCausalLM")


def test_an_output_is_read_as_what_it_was_written_for_or_that_is_said(tmp_path: Path) -> None:
    convert(request(DRAFTERS / "a_plain", out=tmp_path / "vllm", engines=("vllm==0.33.0",), target=TARGET), quiet)
    unread = to(tmp_path / "vllm", tmp_path / "no", "speculators")
    assert [f.fix[1] for f in unread.findings] == ["or have it read as that engine does: --dialect vllm==0.33.0"]
    whole = to(tmp_path / "vllm", tmp_path / "back", "speculators", dialect="vllm")  # the release of the seal
    assert whole.dialect is not None and whole.dialect.release == "0.33.0" and "C232" not in codes(whole)
    # vLLM reads top-level ids and SGLang nested ones, so SGLang would take its default.
    other = to(tmp_path / "vllm", tmp_path / "other", "speculators", dialect="sglang==0.5.23")
    assert "C232" in codes(other) and errors(other) == ["A101"]


def test_what_was_let_through_is_said_when_it_is_read_again(tmp_path: Path) -> None:
    to(DRAFTERS / "b_nbr", tmp_path / "out", "specforge", allow=("K103",))
    assert "C231" in codes(to(tmp_path / "out", tmp_path / "back", "speculators"))


@pytest.mark.parametrize(
    "damage",
    [{"files": [{"name": ["config.json"]}]}, {"to": 5}, {"to": {}}, {"engines": 7}, {"allowed": [{}]}, {"target": []}],
)
def test_a_seal_that_somebody_changed_is_no_traceback(damage: dict[str, Any], tmp_path: Path) -> None:
    to(DRAFTERS / "a_plain", tmp_path / "out", "specforge")
    seal = tmp_path / "out" / "eagle3-seal.json"
    seal.write_text(json.dumps({**json.loads(seal.read_text()), **damage}))
    for dialect in ("", "sglang==0.5.23"):
        assert to(tmp_path / "out", tmp_path / f"back{dialect}", "speculators", dialect=dialect).outcome in (
            "converted", "refused",
        )  # fmt: skip


@pytest.mark.parametrize("name", ["a_plain", "l_defaults", "f_qwen3"])
def test_vllm_reads_a_speculators_config_as_it_lies_there(name: str, tmp_path: Path) -> None:
    """Its keys are brought to the top, as vLLM does (and as inspect says it)."""
    report = to(DRAFTERS / name, tmp_path / "out", "speculators", dialect="vllm==0.33.0")
    assert report.dialect is not None and report.dialect.name == "vllm"
    own = to(DRAFTERS / name, tmp_path / "own", "speculators")
    assert report.drafter and own.drafter and not differences(report.drafter.spec, own.drafter.spec)
    assert tensors(tmp_path / "out") == tensors(tmp_path / "own")


def test_an_engine_that_knows_no_such_config_is_a_fault_of_the_option(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--dialect sglang==0\.1: no such release"):
        to(DRAFTERS / "a_plain", tmp_path / "out", "speculators", dialect="sglang==0.1")


def test_an_embedding_that_the_engine_would_replace_is_said(tmp_path: Path) -> None:
    convert(request(DRAFTERS / "a_plain", out=tmp_path / "there", engines=("sglang==0.5.23",), target=TARGET), quiet)
    report = to(tmp_path / "there", tmp_path / "back", "speculators", dialect="sglang==0.5.23")
    assert "C216" in codes(report)
    convert(request(DRAFTERS / "a_plain", out=tmp_path / "vllm", engines=("vllm==0.33.0",), target=TARGET), quiet)
    assert "C216" not in codes(to(tmp_path / "vllm", tmp_path / "back2", "speculators", dialect="vllm==0.33.0"))


def test_usage(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    source = str(DRAFTERS / "a_plain")
    for arguments, said in (
        (["--to", "torchspec"], "expected one of angelslim, automodel, eagle, modelopt, specforge, speculators"),
        (["--to", "sglang"], "(an engine: --engine)"),
        (["--to", "specforge", "--engine", "sglang"], "give one of them"),
    ):
        result = eagle3("convert", source, out, *arguments)
        assert result.returncode == 2 and said in result.stderr and not (tmp_path / "out").exists()
    result = eagle3("convert", str(DRAFTERS / "b_nbr"), out, "--to", "specforge", "--target", str(TARGET))
    assert result.returncode == 1
    assert result.stdout.startswith("Not converted: what --to writes of SpecForge 0.2.0 cannot hold this drafter.")
    result = eagle3("convert", source, out, "--to", "specforge", "--target", str(TARGET))
    assert result.returncode == 0 and "in the form of SpecForge 0.2.0" in result.stdout
    assert "lost        target name, target architectures, speculative tokens" in result.stdout
    assert "Serve it" not in result.stdout and "ids 0, 2, 4" in result.stdout


# --- random specs ---------------------------------------------------------------------------------------------

flags = st.booleans()
specs = st.builds(
    lambda layers, points, **values: replace(
        drafter("a_plain").spec,
        num_hidden_layers=layers,
        capture_points=tuple(sorted(points)),
        layer_windows=(None,) * layers,
        **values,
    ),
    layers=st.integers(1, 3),
    points=st.sets(st.integers(0, 6), min_size=1, max_size=4),
    target_hidden_size=st.sampled_from([64, 96]),
    num_key_value_heads=st.sampled_from([1, 2, 4]),
    head_dim=st.sampled_from([16, 24]),
    draft_vocab_size=st.sampled_from([128, 384, 512]),
    hidden_act=st.sampled_from(["silu", "gelu"]),
    rms_norm_eps=st.sampled_from([1e-5, 1e-6]),
    max_position_embeddings=st.sampled_from([1024, 2048]),
    rope=st.sampled_from([
        Rope(10000.0), Rope(1e6), Rope(10000.0, "linear", (("factor", 2.0),)),
        Rope(5e5, "yarn", (("factor", 4.0), ("original_max_position_embeddings", 512))),
    ]),
    **dict.fromkeys(
        [f.name for f in fields(DrafterSpec) if f.type == "bool" and f.name != "tie_word_embeddings"], flags
    ),
    tie_word_embeddings=flags,
)  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=60, deadline=None)
@given(spec=specs)
def test_what_is_written_is_read_back_or_refused(form: str, spec: DrafterSpec) -> None:
    """Any spec: no error, and then the dialect's own rules read every field back from the config that is written."""
    target = Target(name="org/target", architecture="LlamaForCausalLM", layers=6)
    written = trainer_form(form, Provenance("", ""), target)
    examination = examine(written, spec, target)
    if any(f.severity == "error" for f in examination.findings):
        return
    document = nested(examination.config)
    names = [written.names_for(t) for t in ("fc.weight", "layers.0.hidden_norm.weight", "d2t", "t2d")]
    found = recognise(document, [n for n in names if n]).dialect
    assert found is not None and found.name == form
    meaning = IdMeaning(found.rules["ids"]["rule"], 6, found.rules["ids"].get("default"))
    reading = read_spec(document, found.rules["fields"], meaning)
    assert reading.spec is not None, reading.findings
    assert not differences(spec, reading.spec)


def test_a_trainer_takes_any_target() -> None:
    form = trainer_form("specforge", Provenance("specforge", ""), Target())
    assert form.target("Nobody").architecture == "Nobody" and form.target("").architecture == "any target"


def test_an_output_is_read_by_the_first_engine_that_finds_its_points() -> None:
    spec, target = drafter("a_plain").spec, Target(architecture="LlamaForCausalLM", layers=6)
    engines = ["tensorrt-llm==1.4.0rc1", "sglang==0.5.23"]  # the first is told its points at launch
    entries = [entry for e in engines for entry in examine(resolve(e)[0], spec, target).config]
    config = nested(entries)
    assert own_reader(engines, config, target, launched=False) == "sglang==0.5.23"
    assert own_reader(engines, config, target, launched=True) == engines[0]
    assert own_reader(engines[:1], config, target, launched=False) == engines[0]
    assert own_reader(["nobody==1", *engines], config, Target(), launched=True) == ""  # ids mean nothing without it


def test_a_range_of_releases_is_no_dialect() -> None:
    with pytest.raises(UsageError, match=r"^--dialect sglang>=0.5.22: expected one release, such as sglang==0.5.23$"):
        reading_engine("sglang>=0.5.22", {})
    with pytest.raises(UsageError, match=r"^--dialect 'sglang==9\*': expected NAME, "):
        reading_engine("sglang==9*", {})
