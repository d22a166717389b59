"""`eagle3 engines check` on packages of a few lines; tests/engines/test_upkeep.py has the released ones."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest

from converter.errors import UsageError
from converter.rules import loading
from converter.upkeep import sglang, vllm
from converter.upkeep import write as writing
from converter.upkeep.config_keys import COMPUTED, REQUIRED, id_keys
from converter.upkeep.digest import digest_of
from converter.upkeep.drafts import read_drafts
from converter.upkeep.package import Package, PackageError, open_wheel
from converter.upkeep.source import CannotTell, Source
from converter.upkeep.targets import UNTOLD, read_target
from converter.upkeep.write import Renewal
from tests.support import Done, eagle3, eagle3_process

MODELS = "sglang/srt/models/"
SETTER = """
if layer_ids is None:
    depth = self.config.num_hidden_layers
    self.model.layers_to_capture = [2, depth // 2, depth - 3]
else:
    self.model.layers_to_capture = [i + 1 for i in layer_ids]
"""
FORWARD = """
state, residual = input_embeds, None
taken = []
for i in range(self.start_layer, self.end_layer):
    if i in self.layers_to_capture:
        taken.append(state + residual if residual is not None else state)
    state, residual = self.layers[i](positions, state, residual)
state, _ = self.norm(state, residual)
return (state, taken) if len(taken) > 0 else state
"""


def target(setter: str = SETTER, forward: str = FORWARD, more: str = "") -> str:
    """A target class with an inner model, as SGLang has them."""
    return (
        "class Inner:\n    def __init__(self, config):\n        self.layers_to_capture = []\n"
        "        self.layers = make_layers(config)\n\n"
        f"    def forward(self, input_ids, positions, input_embeds=None):\n{indent(forward.strip(), ' ' * 8)}\n\n\n"
        "class Outer:\n    def __init__(self, config):\n        self.model = Inner(config)\n\n"
        f"    def set_eagle3_layers_to_capture(self, layer_ids=None):\n{indent(setter.strip(), ' ' * 8)}\n\n\n{more}"
    )


def source(files: Mapping[str, str], engine: Any = sglang) -> Source:
    package = Package(engine.READER.engine, "9.9", "here", {}, lambda path: b"").with_changes(files)
    return Source(package, engine.READER.prefix)


def told(text: str, name: str = "Outer", others: Mapping[str, str] | None = None) -> dict[str, str]:
    found = source({f"{MODELS}mine.py": text, **(others or {})}).module(f"{MODELS}mine.py")
    assert found is not None
    cls = found.class_named(name)
    assert cls is not None
    reading = read_target(name, cls, sglang.READER.setter, {}.get)
    return {column: fact.value for column, fact in reading.facts.items()}


@pytest.mark.parametrize(
    ("ids", "rule"),
    [
        ("[i + 1 for i in layer_ids]", "plus_one"),
        ("list(layer_ids)", "literal"),
        ("sorted(layer_ids)", "literal"),
        ("[i + 1 for i in layer_ids] if layer_ids[0] == 1 else list(layer_ids)", "plus_one_if_first_is_one"),
        (
            "list(layer_ids) if max(layer_ids) == self.config.num_hidden_layers else [i + 1 for i in layer_ids]",
            "literal_if_max_is_last",
        ),
        ("[i + 2 for i in layer_ids]", UNTOLD),
        ("[i + 1 for i in layer_ids] if layer_ids[0] == 4 else list(layer_ids)", UNTOLD),
        ("[min(i + 1, 6) for i in layer_ids]", UNTOLD),
        ("points_of(layer_ids)", UNTOLD),
        ("[i + 1 for i in layer_ids] if self.config.odd else list(layer_ids)", UNTOLD),
    ],
)
def test_an_id_rule_is_told_by_what_the_setter_does(ids: str, rule: str) -> None:
    setter = SETTER.replace("[i + 1 for i in layer_ids]", ids)
    found = told(target(setter))
    assert found["id_rule"] == rule
    assert found["default_points"] == "2, L//2, L-3"


@pytest.mark.parametrize(
    ("points", "name"),
    [
        ("[2, depth // 2, depth - 3]", "2, L//2, L-3"),
        ("[3, depth // 2 + 1, depth - 2]", "3, L//2+1, L-2"),
        ("[2, depth // 2, depth - 4]", UNTOLD),
    ],
)
def test_default_points(points: str, name: str) -> None:
    assert told(target(SETTER.replace("[2, depth // 2, depth - 3]", points)))["default_points"] == name


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", ("works", "works", "silently_missing")),
        (" if residual is not None else state", "", ("crash", "works", "silently_missing")),
        ("state + residual if residual is not None else state", "state", ("works", "wrong_value", "silently_missing")),
        (
            "state, _ = self.norm",
            "if self.end_layer in self.layers_to_capture:\n    taken.append(state + residual)\nstate, _ = self.norm",
            ("works", "works", "works"),
        ),
        ("if i in self.layers_to_capture", "if self.layers[i].wanted", (UNTOLD, UNTOLD, UNTOLD)),
        ("(state, taken) if len(taken) > 0 else state", "state", ("never_captured",) * 3),
        ("taken = []", "taken = Keeper()", (UNTOLD, UNTOLD, UNTOLD)),
    ],
)
def test_captures_are_told_by_what_the_forward_pass_hands_out(old: str, new: str, expected: tuple[str, ...]) -> None:
    found = told(target(forward=FORWARD.replace(old, new) if old else FORWARD))
    assert (found["embedding"], found["inner"], found["last"]) == expected


def test_a_setter_that_marks_layers_stops_at_the_last_point() -> None:
    marks = (
        SETTER
        + "for i in self.model.layers_to_capture:\n    setattr(self.model.layers[i], '_is_layer_to_capture', True)\n"
    )
    asks = FORWARD.replace(
        "if i in self.layers_to_capture", "if getattr(self.layers[i], '_is_layer_to_capture', False)"
    )
    found = told(target(marks, asks))
    assert (found["id_rule"], found["inner"], found["last"]) == ("plus_one", "works", "error")
    assert told(target(SETTER, asks))["inner"] == "never_captured"


def test_inherited_and_delegated_setters() -> None:
    wrapper = dedent("""
        from sglang.srt.models.mine import Outer


        class Later(Outer):
            pass


        class Wrapper:
            def __init__(self, config):
                self.language_model = Later(config)

            def set_eagle3_layers_to_capture(self, layer_ids=None):
                if hasattr(self.language_model, "set_eagle3_layers_to_capture"):
                    self.language_model.set_eagle3_layers_to_capture(layer_ids)
    """)
    others = {f"{MODELS}mine.py": target()}
    files = {**others, f"{MODELS}other.py": wrapper}
    for name in ("Later", "Wrapper"):
        module = source(files).module(f"{MODELS}other.py")
        assert module is not None
        cls = module.class_named(name)
        assert cls is not None
        found = read_target(name, cls, sglang.READER.setter, {}.get)
        assert found.id_rule.value == "plus_one" and found.inner.value == "works", name
        assert found.inner.place.startswith("models/mine.py:")


@pytest.mark.parametrize(
    "endless",
    [
        "many = [i for i in range(9000) for _ in range(9000)]",
        "many = list(range(1000000000))",
        "many = [0] * 1000000000",
        "many = [0]\nfor i in range(60):\n    many += many",
        "many = 2\nfor i in range(9000):\n    many = many * many",
        "for i in range(9000):\n    for j in range(9000):\n        many = i",
        "many = '%1000000000d' % 1",
        "self.set_eagle3_layers_to_capture(layer_ids)",
    ],
)
def test_no_end_of_code_is_waited_for(endless: str) -> None:
    rule = "self.model.layers_to_capture = many"
    assert told(target(f"{endless}\n{rule}"))["id_rule"] == UNTOLD


def test_a_set_of_what_cannot_be_in_a_set_is_unknown() -> None:
    rule = "self.model.layers_to_capture = {[i + 1] for i in layer_ids}"
    assert told(target(rule))["id_rule"] == UNTOLD


def test_files_that_import_a_name_from_each_other() -> None:
    files = {f"{MODELS}{one}.py": f"from sglang.srt.models.{other} import Lost\n" for one, other in ("ab", "ba")}
    for name in "ab":
        module = source(files).module(f"{MODELS}{name}.py")
        assert module is not None and module.class_named("Lost") is None
    files[f"{MODELS}a.py"] = "class Lost: ...\n" + files[f"{MODELS}a.py"]
    both = source(files)  # what ends the circle in one file is found from the other
    first, second = both.module(f"{MODELS}a.py"), both.module(f"{MODELS}b.py")
    assert first is not None and second is not None
    assert first.class_named("Lost") is second.class_named("Lost") is not None


@pytest.mark.parametrize(
    ("text", "read", "unread"),
    [
        ('ids = getattr(config, "some_ids", None)', ["some_ids"], []),
        ('ids = config.eagle_config.get("some_ids")', ["eagle_config.some_ids"], []),
        ('KEY = "some_ids"', [], ["model_executor/x.py:1"]),
        ('# as "some_ids" is called elsewhere', [], []),
    ],
)
def test_where_ids_are_read(text: str, read: list[str], unread: list[str]) -> None:
    found = id_keys(
        source({"sglang/srt/model_executor/x.py": text}), ["sglang/srt/model_executor/"], "some_ids", "dflash"
    )
    assert (list(found[0]), found[1]) == (read, unread)


DRAFT = """
class Layer:
    def __init__(self, config, index):
        self.self_attn = Attention(config)
        self.hidden_norm = RMSNorm(config.hidden_size)


class Attention:
    def __init__(self, config):
        self.qkv_proj = QKVParallelLinear(config.hidden_size, bias=getattr(config, "attention_bias", False))
        self.o_proj = RowParallelLinear(config.hidden_size)


class DraftModel:
    def __init__(self, config):
        self.early = (getattr(config, "eagle_config", None) or {}).get("norm_before_fc", False)
        self.fc = torch.nn.Linear(config.hidden_size * 3, config.hidden_size)
        self.layers = nn.ModuleList([Layer(config, i) for i in range(config.num_hidden_layers)])
        self.norm = RMSNorm(config.hidden_size)
        if hasattr(config, "target_hidden_size"):
            self.width = config.target_hidden_size


class DraftForCausalLM:
    def __init__(self, config):
        if config.num_hidden_layers != 1:
            raise ValueError("one layer only")
        self.model = DraftModel(config)
        self.lm_head = ParallelLMHead(config.draft_vocab_size)
        self.scale = getattr(config, "logit_scale", 1.0)

    def load_weights(self, weights):
        stacked = [(".qkv_proj", ".q_proj", "q"), (".qkv_proj", ".k_proj", "k"), (".qkv_proj", ".v_proj", "v")]
        old = {"midlayer": "layers.0"}
        for name, weight in weights:
            if "t2d" in name:
                continue
            name = name.replace("trunk.", "model.")
"""


def test_what_a_draft_class_reads_and_loads() -> None:
    module = source({f"{MODELS}draft.py": DRAFT}).module(f"{MODELS}draft.py")
    assert module is not None
    cls = module.class_named("DraftForCausalLM")
    assert cls is not None
    found = read_drafts([cls], MODELS)
    defaults = {key: read.default for key, read in found.config.items()}
    assert defaults == {
        "num_hidden_layers": REQUIRED, "draft_vocab_size": REQUIRED, "logit_scale": 1.0, "hidden_size": REQUIRED,
        "attention_bias": False, "eagle_config.norm_before_fc": False,
        "target_hidden_size": defaults["target_hidden_size"],
    }  # fmt: skip
    assert defaults["target_hidden_size"] in (REQUIRED, COMPUTED)
    assert set(found.roots) == {"fc", "layers", "norm", "lm_head"}
    assert set(found.leaves) == {"self_attn", "hidden_norm", "qkv_proj", "o_proj"}
    assert {old: new for old, (new, _) in found.renames.items()} == {"midlayer": "layers.0", "trunk": "model"}
    assert set(found.stacked) == {"q_proj", "k_proj", "v_proj"} and set(found.special) == {"t2d"}
    assert [found.limits[n].value for n in ("num_hidden_layers", "num_points", "hidden_act")] == ["1", "3", ""]
    assert found.limits["num_points"].place == "models/draft.py:17"


def test_a_registry_and_its_lazy_modules() -> None:
    files = {
        "vllm/model_executor/models/registry.py": dedent("""
            _TEXT_GENERATION_MODELS = {"A": ("a", "A"), "B": ("vllm.models.b", "B"), "C": ("missing", "C")}
            _SPECULATIVE_DECODING_MODELS = {"Eagle3X": ("a", "A"), "Medusa": ("a", "A")}
        """),
        "vllm/model_executor/models/a.py": "class A:\n    pass\n",
        "vllm/models/b/__init__.py": "if is_rocm():\n    from .amd import B\nelse:\n    from .cuda import B\n",
        "vllm/models/b/amd.py": "class B:\n    pass\n",
        "vllm/models/b/cuda.py": "class B:\n    pass\n",
    }
    names = vllm.READER.names(source(files, vllm))
    assert set(names.targets) == {"A", "B"} and set(names.drafts) == {"Eagle3X"}
    assert names.targets["B"].place == "models/b/cuda.py:1"
    assert names.unread["C"].place == "model_executor/models/registry.py:2"
    with pytest.raises(CannotTell):
        vllm.READER.names(source({}, vllm))


def test_a_digest_is_that_of_the_code() -> None:
    def digest(text: str) -> str:
        module = source({f"{MODELS}x.py": text}).module(f"{MODELS}x.py")
        assert module is not None
        return digest_of(module.classes[0])

    one = digest("class A:\n    def f(self):\n        return f'{self.a}'\n")
    assert one == digest(
        '# more\nclass A:\n    """Text."""\n\n    def f(self):\n        "Text."\n        return (f"{self.a}")\n'
    )
    assert one != digest("class A:\n    def f(self):\n        return f'{self.b}'\n")


# --- the command --------------------------------------------------------------------------------------------------


def wheel(folder: Path, name: str = "sglang", release: str = "0.5.23", files: Mapping[str, str] | None = None) -> Path:
    path = folder / "some.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            f"{name}-{release}.dist-info/METADATA", f"Metadata-Version: 2.4\nName: {name}\nVersion: {release}\n\nText"
        )
        for file, text in (files or {f"{MODELS}mine.py": target(more="EntryClass = [Outer]\n")}).items():
            archive.writestr(file, text)
    return path


def checked(*arguments: Any) -> Done:
    return eagle3("engines", "check", *arguments)


def test_a_package_that_differs(tmp_path: Path) -> None:
    done = checked("--wheel", wheel(tmp_path), "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 1 and document["release"] == document["compared_with"] == "0.5.23"
    kinds = {(e["kind"], e["name"]) for e in document["entries"]}
    assert {("new", "Outer"), ("gone", "LlamaForCausalLM"), ("gone", "LlamaForCausalLMEagle3")} <= kinds
    assert sum(document["counts"].values()) == len(document["entries"])


def test_what_a_package_says_steers_no_terminal(tmp_path: Path) -> None:
    folder = tmp_path / "a\x1b[31mb"
    folder.mkdir()
    done = checked("--wheel", wheel(folder))
    assert "\\u001b[31m" in done.stdout and "\x1b" not in done.stdout


def test_an_unknown_release_is_compared_with_the_nearest(tmp_path: Path) -> None:
    done = checked("--wheel", wheel(tmp_path, release="0.6.0.dev3"))
    assert done.returncode == 1
    assert "This release is not known: compared with the rules of 0.5.23, the newest known." in done.stdout
    done = checked("--wheel", wheel(tmp_path, release="0.1"))
    assert done.returncode == 2 and "sglang 0.1 is older than all that is known; the first is 0.4.6" in done.stderr


def test_an_installed_package_is_not_imported(tmp_path: Path) -> None:
    wheel(
        tmp_path,
        files={
            f"{MODELS}mine.py": target(more="EntryClass = [Outer]\n"),
            "sglang/__init__.py": "raise SystemExit(9)\n",
        },
    )
    with zipfile.ZipFile(tmp_path / "some.whl") as archive:
        archive.extractall(tmp_path / "site")
    path = str(tmp_path / "site")
    done = eagle3_process("engines", "check", "--installed", PYTHONPATH=path)
    assert done.returncode == 1 and f"sglang 0.5.23  {tmp_path / 'site' / 'sglang'}" in done.stdout
    assert eagle3_process("engines", "check", "vllm", "--installed", PYTHONPATH=path).returncode == 2


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "give one of --installed and --wheel FILE"),
        (("tgi", "--installed"), 2, "tgi: no reader for its package; there is one for sglang, vllm"),
        (("--wheel", "nowhere.whl"), 3, "nowhere.whl: No such file or directory"),
        (("--wheel", __file__), 3, "expected a wheel"),
    ],
)
def test_usage_and_unreadable_files(arguments: tuple[str, ...], code: int, message: str) -> None:
    done = checked(*arguments)
    assert (done.returncode, done.stdout) == (code, "") and message in done.stderr


def test_a_wheel_of_something_else_and_a_damaged_one(tmp_path: Path) -> None:
    done = checked("--wheel", wheel(tmp_path, "torch", "2.0", {"torch/a.py": ""}))
    assert done.returncode == 2 and "found torch 2.0, expected sglang, vllm" in done.stderr
    damaged = bytearray(wheel(tmp_path).read_bytes())
    at = damaged.index(b"class Inner")
    damaged[at : at + 5] = b"KLASS"
    (tmp_path / "damaged.whl").write_bytes(damaged)
    package = open_wheel(tmp_path / "damaged.whl")
    with pytest.raises(PackageError, match=r"cannot read sglang/srt/models/mine\.py"):
        package.text(f"{MODELS}mine.py")
    assert checked("--wheel", tmp_path / "damaged.whl").returncode == 3


# --- writing ------------------------------------------------------------------------------------------------------

ROW = {
    "architecture": "QuiteNewForCausalLM", "releases": ">=0.5.24", "id_rule": "plus_one",
    "default_points": "2, L//2, L-3", "embedding": "works", "inner": "works", "last": "works", "detail": "",
    "source": "models/new.py:1 @ 0.5.24",
}  # fmt: skip


def checkout(folder: Path) -> Path:
    for name in ("sglang.yaml", "sglang.targets.json"):
        (folder / name).write_bytes(Path(str(loading.rules_folder("engines") / name)).read_bytes())
    return folder


def test_tables_are_renewed_and_nothing_else_of_them_moves(tmp_path: Path) -> None:
    folder = checkout(tmp_path)
    before = {p.name: p.read_text().splitlines() for p in folder.iterdir()}
    llama = {**ROW, "architecture": "LlamaForCausalLM", "id_rule": "literal"}
    renewal = Renewal("sglang", "0.5.24", (ROW, llama), ("LlamaForCausalLM", "Qwen2ForCausalLM"), True, ())
    writing.write_checkout(renewal, folder)
    after = {p.name: p.read_text().splitlines() for p in folder.iterdir()}
    gone = [line for line in before["sglang.yaml"] if line not in after["sglang.yaml"]]
    assert [line.split()[-1] for line in gone] == ["0.5.23]"]  # the end of `known`
    assert loading.parse("\n".join(after["sglang.yaml"]).encode(), "x")["known"][-2:] == ["0.5.23", "0.5.24"]
    rows = json.loads("\n".join(after["sglang.targets.json"]))["targets"]
    assert [r["releases"] for r in rows if r["architecture"] == "LlamaForCausalLM"][-2:] == [
        ">=0.5.22,<0.5.24",
        ">=0.5.24",
    ]
    assert [r for r in rows if r["architecture"] == "Qwen2ForCausalLM"][-1]["releases"].endswith(",<0.5.24")
    assert len(set(before["sglang.targets.json"]) - set(after["sglang.targets.json"])) == 2  # the rows that end
    assert ROW in rows


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_table_lies_as_it_is_written(engine: str) -> None:
    text = (loading.rules_folder("engines") / f"{engine}.targets.json").read_text(encoding="utf-8")
    assert writing.table_text(json.loads(text)) == text


def test_a_long_list_of_releases_is_broken() -> None:
    known = [f"1.0.{i}" for i in range(40)]
    text = f"a: 1\nknown: [{', '.join(known[:10])}]  # kept\nproved: []\n"
    for release in known[10:]:
        text = writing.with_known(text, release)
    assert loading.parse(text.encode(), "x")["known"] == known
    assert text.endswith("]  # kept\nproved: []\n") and max(map(len, text.splitlines())) <= 120 + len("  # kept")


def test_a_file_for_mapping_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_added", {})
    path = tmp_path / "next.yaml"
    renewal = Renewal("sglang", "0.5.24", (ROW,), ("Qwen2ForCausalLM",), True, ())
    try:
        writing.write_mapping(renewal, path)
        assert loading.load("engines", "sglang")["known"][-1] == "0.5.24"
        with pytest.raises(UsageError, match="this file exists"):
            writing.write_mapping(replace(renewal, known=False), path)
    finally:
        monkeypatch.undo()
        loading.forget()
    done = eagle3("convert", "x", "y", "--mapping", path)
    assert done.returncode == 3 and "mapping" not in done.stderr  # taken: what is missing is x


def test_an_older_release_is_not_written(tmp_path: Path) -> None:
    done = checked("--wheel", wheel(tmp_path, release="0.5.9"), "--write-to", tmp_path / "x.yaml")
    assert done.returncode == 2 and "older than the newest known" in done.stderr and not (tmp_path / "x.yaml").exists()
