"""Which part of the drawn wiring a finding is about.

Parts: "target", "point-J" (the state that goes into block J of fc), "points" (all of them), "fc-norms", "fc",
"embedding", "residual", "layers", "norm", "feedback", "head", "map", "drafter" (its weights as a whole). Findings about
files, the sample or the command line are about none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from converter.drafter.spec import NORM_FLAGS
from converter.report.reading import Document, Found

# Field of the spec -> part.
_FIELDS = {
    "capture_points": "points", "target_hidden_size": "target", "fc_bias": "fc",
    "norm_before_fc": "fc-norms", "fc_norm": "fc-norms", "norm_before_residual": "residual", "norm_output": "feedback",
    "vocab_size": "map", "draft_vocab_size": "map", "tie_word_embeddings": "head", "dtype": "drafter",
    **dict.fromkeys(("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act",
                     "intermediate_size", "rope", "layer_windows", "qkv_bias", "o_bias", "mlp_bias", "qk_norm",
                     "rms_norm_eps", "max_position_embeddings", "latent"), "layers"), "mask_token_id": "fc",
}  # fmt: skip

_CODES = {
    **dict.fromkeys(("A101", "A102", "A104", "A105", "A106", "A109", "A111", "A112", "A301", "A302", "A303",
                     "K111", "K123", "K125", "K127"), "points"),
    **dict.fromkeys(("A108", "C210", "C212", "C241", "C242", "C243", "K120", "K146"), "target"),
    **dict.fromkeys(("A103", "K114", "N107", "K140", "K143", "C217", "C218"), "fc"),
    **dict.fromkeys(("K104", "K105"), "fc-norms"),
    **dict.fromkeys(("T109", "T130", "K131", "K132"), "embedding"),
    **dict.fromkeys(("K102", "K107", "K108", "K109", "K110", "K112", "K113", "C207", "C213", "C214", "C216",
                     "C227", "C236", "K141", "K142", "K144", "K147", "N109"), "layers"),
    **dict.fromkeys(("V201", "V202", "V203", "V204", "V205", "V206", "V207", "V208", "V209", "V211", "V212", "V213",
                     "C211", "K116", "K119"), "map"),
    **dict.fromkeys(("K115", "K117", "K118", "C205", "T105", "T106", "T107", "T110", "T111", "N105", "N106"),
                    "drafter"),
    "C237": "embedding", "C244": "head", "K103": "residual", "K106": "feedback", "V210": "head", "N101": "head",
}  # fmt: skip

# What a tensor is named, in any dialect -> part; the first that fits.
_TENSORS = (
    (r"(^|\.)(fc_norm|input_norm|aux_norm)", "fc-norms"),
    (r"(^|\.)fc\.", "fc"),
    (r"embed_tokens", "embedding"),
    (r"lm_head", "head"),
    (r"(^|\.)(d2t|t2d)$", "map"),
    (r"(^|\.)(midlayer|layers(\.\d+)?)\.", "layers"),
    (r"(^|\.)norm\.weight$", "norm"),
)


def parts_of(found: Found, document: Document) -> list[str]:
    """The parts that a finding is about; empty where it is about nothing that is drawn."""
    spec = document.get("spec")
    if spec is None:
        return []
    code = found.finding["caused_by"] if found.code == "N102" else found.code
    points = spec["capture_points"]["value"]
    if found.code in ("A101", "A102", "K121", "K122", "K124", "K126"):
        return _points(found, points, document["target"]["layers"])
    if found.code == "A301":
        return list(_other_wiring(document)) or ["points"]
    if code in _CODES:
        return [_CODES[code]]
    places = re.split(r"[,\s]+|\.\.\.", found.finding["where"])
    return list(dict.fromkeys(part for place in places for part in _named(place)))


def better_wiring(document: Document) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """The declared wiring and the one that the sample says is better, where it says so (A301)."""
    judged = document["proof"].get("wiring")
    if judged is None or not any(f["code"] == "A301" for f in document["findings"]):
        return None
    if judged["searched"]:
        declared = judged.get("searched_from")
        return None if declared is None else (declared, judged["of"])
    best = [row["wiring"] for row in judged["others"] if row["contrast"]["verdict"] == "better"]
    return (judged["of"], best[0]) if best else None


def _other_wiring(document: Document) -> Iterator[str]:
    """Where the declared wiring differs from the better one."""
    pair = better_wiring(document)
    if pair is None:
        return
    declared, better = pair
    for j, point in enumerate(declared["points"]):
        if better["points"][j : j + 1] != [point]:
            yield f"point-{j}"
    for flag in NORM_FLAGS:
        if declared[flag] != better[flag]:
            yield _FIELDS[flag]
    if declared["rope_theta"] != better["rope_theta"] or declared.get("damage") != better.get("damage"):
        yield "layers"
    if declared.get("shift") != better.get("shift"):
        yield "points"
    for part in ("map", "embedding"):
        if declared[part] != better[part]:
            yield part


def _points(found: Found, points: list[int], layers: int | None) -> list[str]:
    """Single states: which of them a finding of capture is about."""
    named = {int(n) for n in re.findall(r"\blayer \(?(\d+)", found.finding["message"])}
    about: dict[str, list[int | None]] = {
        "A101": [p for p in points if points.count(p) > 1],
        "A102": [p for p in points if layers is not None and p > layers],
        "K121": [0],
        "K126": [0],
        "K122": [layers],
        "K124": [*named],
    }
    return [f"point-{j}" for j, point in enumerate(points) if point in about[found.code]] or ["points"]


def _named(place: str) -> Iterator[str]:
    """A field of the spec or a tensor."""
    if place in _FIELDS:
        yield _FIELDS[place]
        return
    yield from [part for pattern, part in _TENSORS if re.search(pattern, place)][:1]
