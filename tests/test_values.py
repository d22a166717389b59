"""What the values of the weights tell, beside the one fault for each code in tests/faults, and healthy siblings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from converter.checkpoint import finite, reader
from converter.checkpoint.reader import open_checkpoint
from converter.checks.fresh import start_of
from converter.cli import validate_command
from converter.findings import Finding
from converter.pipeline import Report
from tests.support import DRAFTERS, PRODUCERS, TARGET, Config, Tensors, check, codes, copy_of, errors, run

Edit = Callable[[Tensors], None]
ENGINE = "vllm==0.33.0"
BARE: dict[str, Any] = {"target": None, "target_arch": "LlamaForCausalLM"}
LAYER = "layers.0."
Q, K, UP, DOWN = (
    LAYER + name
    for name in ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight")
)


def about_values(report: Report) -> list[str]:
    return [c for c in codes(report) if c in ("N103", "N110", "N111") or "T115" <= c <= "T124"]


def judged(tmp_path: Path, edit: Edit, name: str = "a_plain", **options: Any) -> Report:
    return check(copy_of(name, tmp_path / "in", tensors=edit), ENGINE, **{**BARE, **options})


def found(report: Report, code: str) -> Finding:
    return next(f for f in report.findings if f.code == code)


def change(name: str, how: Callable[[torch.Tensor], torch.Tensor]) -> Edit:
    def edit(tensors: Tensors) -> None:
        tensors[name] = how(tensors[name].clone()).contiguous()

    return edit


def filled(tensor: torch.Tensor, where: Any, value: float) -> torch.Tensor:
    tensor[where] = value
    return tensor


def same_as(name: str, other: str) -> Edit:
    def edit(tensors: Tensors) -> None:
        tensors[name] = tensors[other].clone()

    return edit


def first(n: int, of: str = "rows") -> tuple[slice, slice]:
    return (slice(0, n), slice(None)) if of == "rows" else (slice(None), slice(0, n))


CASES: list[tuple[str, str, Edit, str]] = [
    # what, drafter, change, code of the only finding about values; "" for a healthy sibling
    ("a norm of zeros", "a_plain", change("norm.weight", torch.zeros_like), "T115"),
    ("a bias of zeros", "j_attnbias", change(LAYER + "self_attn.o_proj.bias", torch.zeros_like), ""),
    ("a norm of ones in bf16", "a_plain", change("norm.weight", torch.ones_like), ""),
    ("an eighth of the rows zero", "a_plain", change(UP, lambda t: filled(t, first(24), 0)), "T117"),
    ("some dead neurons", "a_plain", change(UP, lambda t: filled(t, first(8), 0)), ""),
    ("a quarter of the columns zero", "a_plain", change(DOWN, lambda t: filled(t, first(48, "columns"), 0)), "T117"),
    ("half of the head zero", "a_plain", change("lm_head.weight", lambda t: filled(t, first(192), 0)), "T117"),
    ("tokens that no text has", "a_plain", change("embed_tokens.weight", lambda t: filled(t, first(100), 0)), ""),
    ("half of a norm zero", "a_plain", change("norm.weight", lambda t: filled(t, slice(0, 32), 0)), "T117"),
    ("the first half twice", "a_plain", change(Q, lambda t: torch.cat([t[:32], t[:32]])), "T118"),
    ("one row of the second half differs", "a_plain",
     change(Q, lambda t: torch.cat([t[:32], filled(t[:32].clone(), (5, 3), 0.5)])), ""),
    ("columns twice", "a_plain", change(DOWN, lambda t: torch.cat([t[:, :96], t[:, :96]], 1)), "T118"),
    ("one state's columns for two", "a_plain",
     change("fc.weight", lambda t: torch.cat([t[:, :64], t[:, :64], t[:, 128:]], 1)), "T118"),
    ("a head of k for each group of q", "a_plain", change(K, lambda t: torch.cat([t[:16], t[:16]])), ""),
    ("two norms alike", "a_plain", same_as(LAYER + "hidden_norm.weight", LAYER + "input_layernorm.weight"), ""),
    ("fp8 numbers", "a_plain",
     change(UP, lambda t: (t.float() / t.abs().max() * 448).to(torch.float8_e4m3fn).bfloat16()), "T122"),
    ("fp8 numbers with their scale", "a_plain",
     change(UP, lambda t: ((t.float() / t.abs().max() * 448).to(torch.float8_e4m3fn).float() / 4096).bfloat16()), ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "edit", "code"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_values_that_training_cannot_leave(name: str, edit: Edit, code: str, tmp_path: Path) -> None:
    assert about_values(judged(tmp_path, edit, name)) == ([code] if code else [])


def test_the_finding_names_the_captured_state(tmp_path: Path) -> None:
    report = judged(tmp_path, change("fc.weight", lambda t: filled(t, first(64, "columns"), 0)))
    assert found(report, "T117").found == "64 of 192 columns: all of the 1st of 3 captured states"


def test_an_error_stops_a_conversion_before_it_and_may_be_allowed(tmp_path: Path) -> None:
    source = copy_of("a_plain", tmp_path / "in", tensors=change(UP, torch.zeros_like))
    refused = run(source, tmp_path / "out", **BARE)
    assert (refused.outcome, errors(refused)) == ("refused", ["T115"])
    assert [p.name for p in tmp_path.iterdir()] == ["in"]
    assert run(source, tmp_path / "out", allow=("T115",), **BARE).outcome == "converted"


# --- real drafters: what was never trained in them, by the account of who made them (tests/data/README.md) --------


UNTRAINED = {"speculators_020": ["T119"], "speculators_peagle": ["T120"], "specforge_peagle": ["T120"],
             "automodel_mla": ["T120"]}  # fmt: skip


@pytest.mark.parametrize("folder", sorted([*DRAFTERS.iterdir(), *PRODUCERS.iterdir()]), ids=lambda p: p.name)
def test_nothing_is_said_of_weights_that_were_trained(folder: Path) -> None:
    given = {"given": {"mask_token_id": 3}} if folder.name == "specforge_peagle" else {}
    assert about_values(check(folder, ENGINE, aux=(1, 3, 5), **given)) == UNTRAINED.get(folder.name, [])


# --- random starts ------------------------------------------------------------------------------------------------


STARTS: dict[str, Callable[[], torch.Tensor]] = {
    "linear": lambda: torch.nn.Linear(192, 64).weight,
    "small linear": lambda: torch.nn.Linear(64, 32).weight,
    "wide linear": lambda: torch.nn.Linear(6144, 96).weight,
    "transformers": lambda: torch.empty(192, 128).normal_(0, 0.02),
    "embedding": lambda: torch.nn.Embedding(512, 64, padding_idx=0).weight,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("start", STARTS)
def test_random_starts_are_told(start: str, dtype: torch.dtype) -> None:
    for seed in range(20):
        torch.manual_seed(seed)
        values = STARTS[start]().detach().to(dtype).float().numpy()
        assert start_of(values, table=start == "embedding")
    assert start != "embedding" or not start_of(values)  # no matrix of a layer starts so


@pytest.mark.parametrize("start", ["linear", "small linear", "transformers"])
def test_ten_steps_of_training_end_a_random_start(start: str) -> None:
    torch.manual_seed(3)
    weight = torch.nn.Parameter(STARTS[start]().detach().clone())
    states = torch.randn(256, weight.shape[1]) * torch.linspace(0.2, 3, weight.shape[1])
    wanted = states @ torch.randn(weight.shape[1], weight.shape[0]) * 0.1
    optimizer = torch.optim.AdamW([weight], lr=2e-3)
    for _ in range(10):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(states @ weight.T, wanted).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert start_of(weight.detach().bfloat16().float().numpy()) == ""


def test_what_only_resembles_a_start_is_none() -> None:
    rng = np.random.default_rng(0)
    normal = rng.normal(0, 0.02, (192, 128)).astype(np.float32)
    assert start_of(normal)
    assert not start_of(normal * 1.1)  # another width
    assert not start_of(normal * np.linspace(0.8, 1.2, 192, dtype=np.float32)[:, None])  # rows of several sizes
    assert not start_of(normal * np.linspace(0.8, 1.2, 128, dtype=np.float32))  # columns
    assert not start_of(rng.laplace(0, 0.02 / 2**0.5, (192, 128)).astype(np.float32))  # another shape
    assert not start_of(rng.uniform(-0.05, 0.05, (192, 128)).astype(np.float32))  # another edge
    assert not start_of(normal[:4, :4])  # too few to tell


def afresh(tensors: Tensors) -> None:
    """All as the modules are set up before training, in fp32: torch's defaults, and norms of ones."""
    torch.manual_seed(5)
    for name, tensor in tensors.items():
        if name.endswith("norm.weight"):
            tensors[name] = torch.ones(tensor.shape)
        elif name == "embed_tokens.weight":
            tensors[name] = torch.nn.Embedding(*tensor.shape).weight.detach()
        elif tensor.dim() == 2:
            tensors[name] = torch.nn.Linear(tensor.shape[1], tensor.shape[0]).weight.detach()


def test_a_drafter_saved_before_training(tmp_path: Path) -> None:
    report = judged(tmp_path, afresh)
    assert about_values(report) == ["T119", "T120"]
    assert "all 7 matrices" in found(report, "T119").found and "every norm is all ones" in found(report, "T119").found
    assert found(report, "T120").where == "fc.weight, lm_head.weight, embed_tokens.weight"


def test_norms_of_ones_tell_in_32_bits_only(tmp_path: Path) -> None:
    def ones(tensors: Tensors) -> None:
        for name in tensors:
            if name.endswith("norm.weight"):
                tensors[name] = torch.ones_like(tensors[name])

    def wide(tensors: Tensors) -> None:
        for name, tensor in tensors.items():
            if tensor.is_floating_point():
                tensors[name] = tensor.float()

    def digits(tensors: Tensors) -> None:
        wide(tensors)
        tensors["fc.weight"] = tensors["fc.weight"] * 1.0001

    def both(*edits: Edit) -> Edit:
        return lambda tensors: [edit(tensors) for edit in edits] and None

    for folder, edit, expected in (
        ("bf16", ones, []),
        ("a wider copy of bf16", both(ones, wide), []),
        ("trained in 32 bits", both(ones, digits), ["T121"]),
        ("trained norms", digits, []),
    ):
        assert about_values(judged(tmp_path / folder, edit)) == expected, folder


# --- embedding and head against the target's -----------------------------------------------------------------------


def test_where_the_embedding_s_rows_are(tmp_path: Path) -> None:
    generator = torch.manual_seed(9)
    for folder, how, code, words in (
        ("shifted", lambda t: t.roll(3, 0), "T123", "of ids -3 away from their own"),
        ("another order", lambda t: t[torch.randperm(512, generator=generator)], "T123", "in no order"),
        ("set up", lambda t: torch.randn(t.shape, generator=generator).bfloat16(), "T109", "as torch.nn.Embedding"),
        ("another model's", lambda t: (t.float() @ _rotation(generator)).bfloat16(), "T109", "another model's"),
    ):
        report = judged(tmp_path / folder, change("embed_tokens.weight", how), target=TARGET)
        assert errors(report) == [code] and words in found(report, code).found, folder
        assert "T120" not in codes(report)
    trained = change("embed_tokens.weight", lambda t: (t.float() + torch.randn(t.shape) * 0.02).bfloat16())
    report = judged(tmp_path / "trained", trained, target=TARGET)
    assert about_values(report) == [] and report.drafter is not None and report.drafter.embedding == "trained"


def _rotation(generator: torch.Generator) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(64, 64, generator=generator)).Q


def test_a_trained_head_of_other_tokens(tmp_path: Path) -> None:
    """speculators before 0.5 trained the head, so rows that only resemble the target's are in order."""
    head = open_checkpoint(TARGET).read("lm_head.weight").copy()
    target_head = torch.from_numpy(head).view(torch.bfloat16)

    def one_off(tensors: Tensors) -> None:
        ids = tensors["d2t"] + torch.arange(384)
        tensors["lm_head.weight"] = target_head[(ids + 1) % 512].clone()

    def no_map(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = target_head[:384].clone()

    def from_nothing(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = (tensors["lm_head.weight"].float() @ _rotation(torch.manual_seed(1))).bfloat16()

    def old(config: dict[str, Any]) -> None:
        config["speculators_version"] = "0.4.0.1"

    for folder, edit, words in (
        ("one off", one_off, "rows are the target's of ids +1 away from their own"),
        ("no map", no_map, "that there are without the map"),
        ("trained from nothing", from_nothing, ""),
    ):
        report = check(copy_of("a_plain", tmp_path / folder, old, edit), ENGINE)
        assert errors(report) == (["T124"] if words else []), folder
        assert not words or words in found(report, "T124").found
        frozen = check(copy_of("a_plain", tmp_path / f"{folder}, frozen", None, edit), ENGINE)
        assert errors(frozen) == ["V210"]
    assert "+1 away" in found(check(tmp_path / "one off, frozen", ENGINE), "V210").found


# --- every value -----------------------------------------------------------------------------------------------------


def saved(tmp_path: Path, **tensors: torch.Tensor) -> Any:
    save_file(tensors, tmp_path / "t.safetensors")
    return open_checkpoint(tmp_path / "t.safetensors")


EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


def test_all_bit_patterns_are_read_rightly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "BLOCK", 1 << 12)
    monkeypatch.setattr(finite, "_RUN", 1 << 14)
    short = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    tensors = {str(d): short.clone().view(d) for d in (torch.bfloat16, torch.float16)}
    tensors |= {str(d): torch.arange(-128, 128).to(torch.int8).view(d) for d in EIGHT_BITS}
    scanned = finite.scan(saved(tmp_path, **tensors), tensors, frozenset(tensors))
    for name, tensor in tensors.items():
        bad = ~torch.isfinite(tensor.float())
        assert scanned[name].not_finite == int(bad.sum()), name
        assert scanned[name].first == int(bad.float().argmax()), name
    values = tensors["torch.bfloat16"].float()
    narrow = values.half().float()
    over = torch.isfinite(values) & ~torch.isfinite(narrow)
    assert scanned["torch.bfloat16"].over == int(over.sum())
    assert scanned["torch.bfloat16"].first_over == int(over.float().argmax())
    assert scanned["torch.bfloat16"].under == int(((values != 0) & (narrow == 0)).sum())
    assert scanned["torch.float16"].over == scanned["torch.float16"].under == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_edges_of_fp16(dtype: torch.dtype, tmp_path: Path) -> None:
    edges = torch.tensor([65504, 65519.99, 65520, 65536, 1e30, 2**-24, 2**-25 * 1.001, 2**-25, 1e-9, 0], dtype=dtype)
    both = torch.cat([edges, -edges])
    scanned = finite.scan(saved(tmp_path, x=both), ["x"], frozenset({"x"}))["x"]
    assert scanned == finite.Scanned(0, None, 6, 4, 2)
    narrow = both.half()
    assert (int(narrow.isinf().sum()), int(((narrow == 0) & (both != 0)).sum())) == (6, 4)


def spoilt(tensors: Tensors) -> None:
    tensors["lm_head.weight"][7, 3] = float("nan")
    tensors["lm_head.weight"][300, 1] = float("-inf")


def test_validate_reads_every_value_unless_told_not_to(tmp_path: Path) -> None:
    source = copy_of("a_plain", tmp_path / "in", tensors=spoilt)
    report = check(source, ENGINE, **BARE)
    assert about_values(report) == ["N103"]
    assert found(report, "N103").message == "lm_head.weight holds 2 values that are NaN or infinite"
    assert found(report, "N103").found == "the first is nan at [7, 3]"
    planned = run(source, tmp_path / "out", dry_run=True, **BARE)
    assert (planned.outcome, errors(planned)) == ("refused", ["N103"])
    arguments = [str(source), "--engine", ENGINE, "--target-arch", "LlamaForCausalLM"]
    assert CliRunner().invoke(validate_command, arguments).exit_code == 1
    assert CliRunner().invoke(validate_command, [*arguments, "--no-scan"]).exit_code == 0


def test_a_config_that_has_engines_cast_to_fp16(tmp_path: Path) -> None:
    def grown(value: float) -> Edit:
        def edit(tensors: Tensors) -> None:
            for name, tensor in tensors.items():
                if tensor.is_floating_point():
                    tensors[name] = tensor.float()
            tensors["norm.weight"][2] = value

        return edit

    def served(dtype: str) -> Callable[[dict[str, Any]], None]:
        return lambda config: config.update(dtype=dtype)

    for folder, dtype, value, expected in (
        ("too large", "float16", 7e4, ["N110"]),
        ("large", "float16", 6e4, []),
        ("bf16", "bfloat16", 7e4, []),
    ):
        source = copy_of("a_plain", tmp_path / folder, served(dtype), grown(value))
        assert about_values(check(source, ENGINE, **BARE)) == expected, folder
        assert about_values(run(source, tmp_path / f"{folder}-out", **BARE)) == expected, folder
    assert not (tmp_path / "too large-out").exists()
    assert found(check(tmp_path / "too large", ENGINE, **BARE), "N110").found == "the first is 70000 at [2]"


def test_a_cast_to_fp16_that_loses_small_weights(tmp_path: Path) -> None:
    """A norm so large that the matrix behind it is tiny: bf16 holds both, fp16 only one."""

    def scaled(factor: float) -> Edit:
        def edit(tensors: Tensors) -> None:
            tensors["fc.weight"] = tensors["fc.weight"] * factor

        return edit

    tiny = copy_of("a_plain", tmp_path / "tiny", tensors=scaled(2.0**-20))
    report = run(tiny, tmp_path / "out", dtype="float16", **BARE)
    assert (report.outcome, about_values(report)) == ("converted", ["N111"])
    assert about_values(run(tiny, tmp_path / "kept", **BARE)) == []
    small = copy_of("a_plain", tmp_path / "small", tensors=scaled(2.0**-8))
    assert about_values(run(small, tmp_path / "small-out", dtype="float16", **BARE)) == []


def test_fp8_weights_are_scanned_too(tmp_path: Path) -> None:
    values = torch.zeros(4, 4).to(torch.float8_e4m3fn)
    values.view(torch.uint8)[2, 1] = 0x7F
    scanned = finite.scan(saved(tmp_path, x=values, ids=torch.arange(4)), ["x", "ids"])
    assert scanned == {"x": finite.Scanned(1, 9)}


def test_weights_that_are_packed_have_no_tensor_of_their_own(tmp_path: Path) -> None:
    """compressed-tensors stores `weight_packed` instead of `weight`."""

    def packed(tensors: Tensors) -> None:
        rows, columns = tensors.pop(UP).shape
        tensors[UP + "_packed"] = torch.ones(rows, columns // 8, dtype=torch.int32)
        tensors[UP + "_scale"] = torch.full((rows, 1), 0.01)
        tensors[UP + "_shape"] = torch.tensor([rows, columns])

    def declared(config: Config) -> None:
        config["quantization_config"] = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {}}}

    report = check(copy_of("a_plain", tmp_path / "in", declared, packed), ENGINE, **BARE)
    assert report.drafter is not None and report.drafter.quantised == {UP} and UP not in report.drafter.tensors
    assert errors(report) == [] == about_values(report) and report.outcome == "validated"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_one_row_that_is_not_finite_makes_no_stranger_of_a_table(value: float, tmp_path: Path) -> None:
    def spoiled(tensors: Tensors) -> None:
        tensors["embed_tokens.weight"][7, 3] = value
        tensors["lm_head.weight"][5, 2] = value

    report = check(copy_of("k_embedgrad", tmp_path / "in", tensors=spoiled), ENGINE)
    assert about_values(report) == ["N103"] and "T109" not in codes(report)
