"""Everything that is published against its JSON Schema: rule files, reports, plans, findings, seals."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest

from converter import transforms
from converter.drafter.drafter import Embedding
from converter.drafter.layout import expected_tensors
from converter.drafter.spec import FIELDS, OPTIONAL, DrafterSpec, How, Latent
from converter.drafter.vocab import FORMS, MapSource
from converter.findings import SEVERITIES
from converter.look.diff import Meaning, diff
from converter.look.inspect import inspect as look_at
from converter.look.subject import Asked
from converter.look.values import Relation
from converter.pipeline import Request, validate
from converter.report import differing, document, explain, inspected
from converter.rules import behaviours, ids, loading, targets
from converter.rules.loading import known_releases
from converter.rules.schema import check, load, validator
from tests.support import DRAFTERS, PRODUCERS, SAMPLE, TARGET, eagle3, run

RULES = {
    **{f"dialects/{name}.yaml": "dialect" for name in loading.names("dialects")},
    **{f"engines/{name}.yaml": "engine" for name in loading.names("engines")},
    **{f"engines/{name}.targets.json": "targets" for name in loading.names("engines")},
    "findings.yaml": "findings",
    "common.yaml": "common",
    "fused.yaml": "fused",
    "others.yaml": "others",
    "recognition.yaml": "recognition",
}
SPECULATORS, SGLANG, FINDINGS = "dialects/speculators.yaml", "engines/sglang.yaml", "findings.yaml"
TARGETS = "engines/sglang.targets.json"


def rules(file: str) -> Any:
    """A built-in rule file as it lies there."""
    return loading.parse(loading.rules_folder("").joinpath(file).read_bytes(), file)


# --- the schemas themselves ---------------------------------------------------------------------------------


@cache
def closed(name: str) -> Any:
    """The validator of a schema in which every key must be described, as `additionalProperties: false` says it."""
    from referencing import Registry, Resource

    def close(node: Any) -> Any:
        if isinstance(node, list):
            return [close(part) for part in node]
        if not isinstance(node, dict):
            return node
        node = {key: part if key == "if" else close(part) for key, part in node.items()}
        if isinstance(node.get("properties"), dict) and "$ref" not in node:
            node.setdefault("additionalProperties", False)
        return node

    schemas = {key: close(schema) for key, schema in load().items()}
    registry: Any = Registry().with_resources((s["$id"], Resource.from_contents(s)) for s in schemas.values())
    return type(validator(name))(schemas[name], registry=registry)


def properties(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    for key, part in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        if key == "properties" and not path.endswith("/if"):
            yield from ((f"{path}/{name}", schema) for name, schema in part.items())
        yield from properties(part, f"{path}/{key}")


@pytest.mark.parametrize("name", sorted(load()))
def test_schema_is_sound_and_describes_every_key(name: str) -> None:
    schema = load()[name]
    validator(name).check_schema(schema)
    assert schema["$id"].endswith(f"/{name}.schema.json") and schema["title"] and schema["description"]
    for path, part in properties(schema, name):
        if "description" not in part:
            file, _, pointer = part["$ref"].partition("#/$defs/")
            assert "description" in load()[file.removesuffix(".schema.json") or name]["$defs"][pointer], path


def test_enumerations_are_the_registries() -> None:
    shared, engine = load()["rules"]["$defs"], load()["engine"]["$defs"]
    row, report, plan = load()["targets"]["$defs"], load()["report"]["$defs"], load()["plan"]["$defs"]
    page = load()["findings"]["$defs"]["page"]["properties"]
    look = load()["inspect"]["$defs"]
    pair, key = (load()["diff"]["$defs"][part]["properties"] for part in ("tensor", "key"))
    computed = [name for key, part in shared.items() if key.startswith("computed_") for name in part["properties"]]
    single = {*FIELDS, "rope.kind", "rope.names", "latent.compressed_q"}
    single -= {"rope", "layer_windows", "capture_points", "latent"}
    derived = {name for name, part in inspect.getmembers(DrafterSpec) if isinstance(part, property)}
    for found, registry in (
        (shared["reader"]["enum"], behaviours.READERS),
        (shared["writer"]["enum"], behaviours.WRITERS),
        (shared["launch_behaviour"]["enum"], behaviours.LAUNCH),
        (shared["points"]["enum"], behaviours.POINTS),
        (computed, behaviours.DEFAULTS),
        (engine["embedding"]["enum"], behaviours.EMBEDDINGS),
        (shared["id_rule"]["enum"], ids.RULES),
        (row["row"]["properties"]["id_rule"]["enum"], {*ids.RULES, *ids.WITHOUT_IDS}),
        (row["capture"]["enum"], get_args(targets.Capture)),
        (shared["vocabulary_map"]["enum"], FORMS),
        (engine["written"]["properties"]["field"]["enum"], {*FIELDS, "layer_ids"}),
        (engine["limit_attribute"]["enum"], single | derived),
        (
            plan["operation"]["properties"]["name"]["enum"],
            {*transforms.MAP_OPERATIONS, transforms.PERMUTE_BLOCKS, transforms.CAST, transforms.SPLIT_ROWS},
        ),
        (report["origin"]["properties"]["how"]["enum"], get_args(How)),
        (load()["finding"]["properties"]["severity"]["enum"], SEVERITIES),
        (page["severity"]["enum"], SEVERITIES),
        (page, {"title", "severity", "allow", *explain.SECTIONS}),
        (look["stored"]["enum"], {*get_args(MapSource), ""}),
        (look["owners"]["properties"]["embedding_is"]["enum"], get_args(Embedding)),
        (pair["relation"]["enum"], {*get_args(Relation), "only in a", "only in b"}),
        (key["meaning"]["enum"], get_args(Meaning)),
    ):
        assert set(found) == set(registry)
    for fields in (shared["field_name"]["enum"], report["spec"]["required"], shared["fields"]["properties"],
                   report["spec"]["properties"]):  # fmt: skip
        assert tuple(fields) == FIELDS
    assert tuple(shared["every_field"]["required"]) == tuple(f for f in FIELDS if f not in OPTIONAL)
    assert set(engine["variants"]["propertyNames"]["enum"]) == OPTIONAL
    for field in FIELDS:
        described = (part["properties"][field]["description"] for part in (shared["fields"], report["spec"]))
        assert len(set(described)) == 1


def test_every_canonical_tensor_has_a_name_that_the_schema_knows() -> None:
    flags = dict.fromkeys(FIELDS, True) | {"tie_word_embeddings": False}
    counts = dict.fromkeys(behaviours.COUNTS, 2)
    plain: Any = {**flags, **counts, "capture_points": (1, 2), "origins": {}}
    pattern = load()["rules"]["$defs"]["canonical_name"]["pattern"]
    for latent in (None, Latent(2, 2, 2, 2, 2), Latent(None, 2, 2, 2, 2)):
        names = expected_tensors(DrafterSpec(**{**plain, "latent": latent}))
        assert all(re.search(pattern, name) for name in (*names, "d2t", "t2d"))


# --- rule files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", RULES)
def test_built_in_rules_are_valid(file: str) -> None:
    """As they stand, and merged for every release, where blocks could leave half a rule."""
    releases = {f"engines/{name}.yaml": known_releases(name) for name in loading.names("engines")}
    releases[SPECULATORS] = ["0.1.0", "0.3.0", "0.4.0.1", "0.5.0", "0.7.0", "0.9.0"]
    assert check(rules(file), RULES[file]) == []
    blocks = {loading.blocks_for(rules(file), release): release for release in releases.get(file, ())}
    for release in blocks.values():  # one of those with the same rules
        assert check(loading.for_release(rules(file), release), RULES[file]) == [], release


def at(document: Any, path: str) -> tuple[Any, Any]:
    """What holds the last part of a path, and that part."""
    *parents, last = (int(part) if re.fullmatch("[0-9]{1,3}", part) else part for part in path.split("/"))
    for part in parents:
        document = document[part]
    return document, last


@pytest.mark.parametrize(
    ("file", "path"),
    [
        *[(SPECULATORS, path) for path in (
            "dialect", "recognise", "release/key", "recognise/0/equals", "refuse/0/why", "ids/rule", "ids/default",
            "fields/hidden_size", "fields/head_dim/default", "fields/head_dim/default/quotient", "fields/rope/uses",
            "fields/qk_norm/map", "provenance/proposals", "releases/0/range", "releases/1/fields/layer_windows",
            "releases/1/fields/layer_windows/fixed", "releases/2/ids/rule")],
        *[(SGLANG, path) for path in (
            "known", "served_dtype", "read/qk_norm/consequence", "read/rope/default/rope_theta", "limits/num_points",
            "limits/num_points/equals", "write/dtype/field", "write/model_type/value", "context_limit/environment",
            "launch/command", "releases/1/limits/num_points", "releases/1/read", "releases/1/read/fc_norm",
            "releases/1/read/layer_windows/how", "releases/1/tensors")],
        *[(TARGETS, path) for path in ("engine", "targets", "targets/0/last", "targets/130/id_rule")],
        *[(FINDINGS, path) for path in ("findings", "findings/K103", "findings/K103/mend")],
    ],
)  # fmt: skip
def test_a_misspelt_key_is_named(file: str, path: str) -> None:
    broken = deepcopy(rules(file))
    node, last = at(broken, path)
    node[f"{last}x"] = node.pop(last)
    assert any(f"{last}x: " in message for message in check(broken, RULES[file]))


@pytest.mark.parametrize(
    ("file", "path", "value", "message"),
    [
        (SPECULATORS, "fields/rope/how", "rope_first", 'found "rope_first", expected one of plain, dtype, ids, rope_'),
        (SPECULATORS, "tensors/d2t", "dt2", 'tensors.d2t: found "dt2", expected a canonical tensor name'),
        (SPECULATORS, "fields/fc_bias/default", True, "fields.fc_bias.default: this key does not belong here"),
        (SPECULATORS, "drop/rotary_emb.inv_freq", None, 'drop["rotary_emb.inv_freq"]: found null, expected text'),
        (SGLANG, "known/0", 0.5, "known[0]: found 0.5, expected text"),
        (SGLANG, "launch/options/--steps", "{step}", "no other {placeholder}"),
        (SGLANG, "limits/rope.names/one_of", ["a"], "rope.names is a set"),
        (SGLANG, "read/dtype", {"source": "x"}, "found the keys source, expected one of the keys keys, fixed, launch"),
        (SGLANG, "write/dtype", {"field": "d_type"}, "expected dtype perhaps"),
        (FINDINGS, "findings/K10", {}, "expected a letter of F T V A C K N S H and three digits"),
        (FINDINGS, "findings/K103", {5: 1}, "findings.K103: found the key 5, expected text; quote it"),
    ],
)
def test_message_says_what_was_found_and_expected(file: str, path: str, value: Any, message: str) -> None:
    broken = deepcopy(rules(file))
    node, last = at(broken, path)
    node[last] = value
    assert any(message in line for line in check(broken, RULES[file])), check(broken, RULES[file])


# --- what a command prints and writes -----------------------------------------------------------------------


def assert_published(found: Any, name: str) -> None:
    found = json.loads(json.dumps(found, allow_nan=False))
    assert check(found, name) == []
    assert [f"{e.json_path}: {e.message}" for e in closed(name).iter_errors(found)] == []
    more = {**found, "added": 1}  # fields may be added, and are described then
    assert check(more, name) == [] and list(closed(name).iter_errors(more)) != []
    assert check({k: v for k, v in found.items() if k != "schema"}, name) != []


@pytest.mark.parametrize(
    ("name", "outcome", "options"),
    [
        ("g_aux024", "converted", {"sample": SAMPLE}),
        ("i_rope_headdim", "converted", {"aux": (5, 1, 3), "allow": ("A106",), "digest": False}),
        ("b_nbr", "refused", {}),
        ("b_nbr", "refused", {"aux": (1, 9, 9), "target": None, "target_arch": "LlamaForCausalLM"}),
        ("e_2layers", "planned", {"dry_run": True}),
    ],
)
def test_reports_and_seals(name: str, outcome: str, options: dict[str, Any], tmp_path: Path) -> None:
    report = run(DRAFTERS / name, tmp_path / "out", **options)
    assert report.outcome == outcome
    assert_published(document.as_json(report), "report")
    if outcome == "converted":
        assert_published(json.loads((tmp_path / "out" / "eagle3-seal.json").read_text()), "seal")


def test_report_of_validate() -> None:
    report = validate(Request(source=str(DRAFTERS / "c_nbfc"), engines=("sglang", "sglang==0.5.9"), target=TARGET))
    found = document.as_json(report)
    assert found["outcome"] == "validated" and found["engines"][1]["findings"]
    assert_published(found, "report")


def test_what_inspect_and_diff_print(tmp_path: Path) -> None:
    run(DRAFTERS / "g_aux024", tmp_path / "out")
    with_target, without = Asked(target=TARGET), Asked(engines=("sglang==0.5.9", "vllm==0.22.0"))
    for folder in (DRAFTERS / "g_aux024", tmp_path / "out", PRODUCERS / "angelslim", TARGET):
        for asked in (with_target, without):
            assert_published(inspected.as_json(look_at(str(folder), asked)), "inspect")
    for a, b in (("g_aux024", tmp_path / "out"), ("a_plain", DRAFTERS / "d_fcnorm_normout")):
        assert_published(differing.as_json(diff(str(DRAFTERS / a), str(b), with_target)), "diff")


@pytest.mark.parametrize("command", [("inspect", "no-such-folder"), ("diff", "no-such-folder", "nor-this")])
def test_a_folder_that_cannot_be_looked_at_prints_an_error_document(command: tuple[str, ...]) -> None:
    done = eagle3(*command, "--json")
    assert done.returncode == 3
    found = json.loads(done.stdout)
    assert_published(found, "error")
    assert check(found, command[0]) == [] and found["findings"][0]["code"] == "F100"


def test_missing_input_prints_an_error_document(tmp_path: Path) -> None:
    done = eagle3("convert", "no-such-folder", tmp_path / "out", "--json")
    assert done.returncode == 3
    found = json.loads(done.stdout)
    assert_published(found, "error")
    assert check(found, "report") == [] and found["findings"][0]["code"] == "F100"
