"""The YAML block of a model card: the user's lines as they are, and ours between comments.

huggingface_hub writes a block anew: comments, quotes and keys with an empty value go, and of a model-index what it does
not know (2.4.0, repocard_data.py, CardData.to_dict, ModelCardData._to_dict). So its classes make and check what is
ours, and the user's lines are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import Any

from converter.checkpoint.jsonfile import shortened
from converter.errors import InputError
from converter.findings import error
from converter.hub.snapshot import CARD
from converter.publish.marked import NAME, damaged, line_of

INDEX = "model-index"
SAMPLE = "eagle3-convert-sample"  # the dataset type by which our results are known

# What the Hub takes for a block (huggingface_hub 2.4.0, repocard.py, REGEX_YAML_BLOCK), and one without any line.
_BLOCK = re.compile(r"(\s*---(?:\r\n|\r|\n))((?:[\s\S]*?(?:\r\n|\r|\n))??)(---[ \t]*(?:\r\n|\n|\Z))")
_BEGUN = re.compile(r"\s*---[ \t]*(?:[\r\n]|\Z)")
_COMMENT = re.compile(rf"(?:(?<=[\r\n])|\A)# (?P<closing>/?){NAME}:metadata[ \t]*(?:\r\n|\r|\n|\Z)")
# Blank lines and comments at the end, from the start of a line.
_TRAILING = re.compile(r"(?:(?<=\n)|(?<=\r)(?!\n))(?:[ \t]*(?:#[^\r\n]*)?(?:\r\n|\r|\n))*\Z")


def with_metadata(text: str, ours: Mapping[str, Any], line_break: str) -> tuple[str, str]:
    """The block of a card with our keys, and what stands below it.

    A key that the user has is the user's, but for the results in a model-index that are ours. Raises InputError H437
    where our comments are damaged and H438 where the block cannot be read.
    """
    match = _BLOCK.match(text)
    if match is None:
        if _BEGUN.match(text):
            raise _broken(line_of(text, text.index("---")), "no line of --- closes the block that is begun here")
        return f"---{line_break}{_marked(ours, line_break)}---{line_break}{line_break if text else ''}", text
    opening, block, closing = match.groups()
    block = _block(block, ours, line_break, line_of(text, len(opening)) - 1)
    if not closing.endswith("\n"):
        closing += line_break
    return opening + block + closing, text[match.end() :]


def _block(block: str, ours: Mapping[str, Any], line_break: str, above: int) -> str:
    """above: lines of the file before the block."""
    start, stop = _place(block, above)
    before, after = block[:start], block[stop:]
    hidden = re.sub(r"[^\r\n]+", "#", block[start:stop])  # lines keep their numbers
    users = before + hidden + after
    data = _read(users, above)
    mine = {key: value for key, value in ours.items() if key not in data}
    wanted = dict(data)
    if INDEX in data:
        wanted[INDEX] = _results(data[INDEX], ours.get(INDEX), above + _line_of_key(users, INDEX))
        if data[INDEX] and not wanted[INDEX]:
            del wanted[INDEX]
        if not _same(wanted, data):
            before, after = (_with_index(part, wanted.get(INDEX), line_break) for part in (before, after))
    new = before + _marked(mine, line_break) + after
    if not _says(new, {**wanted, **mine}):  # flow style, anchors that are used elsewhere, ...
        new = (_yaml(wanted, line_break) if wanted else "") + _marked(mine, line_break)
    return new


def _place(block: str, above: int) -> tuple[int, int]:
    """Where our lines are, their comments included; the end of the block where there are none."""
    marks = list(_COMMENT.finditer(block))
    if not marks:
        return len(block), len(block)
    if [m["closing"] for m in marks] != ["", "/"]:
        wrong = marks[min(2, len(marks) - 1)]
        raise damaged(above + line_of(block, wrong.start()), f"{wrong[0].strip()} is not one of one pair")
    return marks[0].start(), marks[1].end()


def _marked(ours: Mapping[str, Any], line_break: str) -> str:
    if not ours:
        return ""
    return f"# {NAME}:metadata{line_break}{_yaml(ours, line_break)}# /{NAME}:metadata{line_break}"


def _yaml(data: Mapping[Any, Any], line_break: str) -> str:
    import yaml

    return str(yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True, line_break=line_break))


def _read(block: str, above: int) -> dict[Any, Any]:
    """The keys of a block. Raises InputError H438."""
    import yaml

    try:
        data = yaml.safe_load(block)
        root = yaml.compose(block, Loader=yaml.SafeLoader)
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None) or getattr(problem, "context_mark", None)
        index = mark.index if mark is not None else getattr(problem, "position", 0)
        what = getattr(problem, "problem", None) or getattr(problem, "reason", None) or "it is no YAML"
        raise _broken(above + line_of(block, index), str(what)) from problem
    # PyYAML's constructors raise these for values that their tag does not allow (`!!int x`, 2020-99-99).
    except (ValueError, LookupError, AttributeError, ArithmeticError, TypeError, RecursionError) as problem:
        raise _broken(above + 1, f"a value in it cannot be read ({problem})") from problem
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise _broken(above + 1, "it holds no keys with values")
    seen: set[Hashable] = set()
    for key, _ in _pairs(root):
        if key.value in seen:
            raise _broken(above + line_of(block, key.start_mark.index), f"the key {key.value!r} is there twice")
        seen.add(key.value)
    return data


def _pairs(root: Any) -> list[tuple[Any, Any]]:
    """The nodes of the keys at the top, each with its value's."""
    return list(root.value) if root is not None and root.id == "mapping" else []


def _says(block: str, wanted: Mapping[Any, Any]) -> bool:
    try:
        return _same(_read(block, 0), wanted)
    except InputError:
        return False


def _same(a: Mapping[Any, Any], b: Mapping[Any, Any]) -> bool:
    """Whether two blocks say the same; NaN is itself here."""
    return {k: _yaml({0: v}, "\n") for k, v in a.items()} == {k: _yaml({0: v}, "\n") for k, v in b.items()}


def _line_of_key(block: str, name: str) -> int:
    place = _key(block, name)
    return 1 if place is None else line_of(block, place[0])


def _key(block: str, name: str) -> tuple[int, int] | None:
    """Where a key of the top and its value are, without the comments before the next; None where it is not."""
    import yaml

    keys = [key for key, _ in _pairs(yaml.compose(block, Loader=yaml.SafeLoader))]
    for number, key in enumerate(keys):
        if key.value == name:
            end = keys[number + 1].start_mark.index if number + 1 < len(keys) else len(block)
            trailing = _TRAILING.search(block, key.start_mark.index, end)
            return key.start_mark.index, trailing.start() if trailing is not None else end
    return None


def _with_index(part: str, index: Any, line_break: str) -> str:
    """The user's lines above or below ours, with other results in their model-index, or without it."""
    import yaml

    try:
        place = _key(part, INDEX)
    except yaml.YAMLError:  # only whole is it YAML; then it is written anew
        return part
    if place is None:
        return part
    return part[: place[0]] + (_yaml({INDEX: index}, line_break) if index else "") + part[place[1] :]


def _results(index: Any, ours: Any, line: int) -> list[Any]:
    """The user's model-index with our results as they are now, among those of its first model."""
    models = index if isinstance(index, list) else [] if index is None else None
    if models is None or not all(isinstance(m, dict) and isinstance(m.get("results", []), list) for m in models):
        raise _broken(line, f"{INDEX} is no list of models with a name and a list of results")
    kept = []
    for model in models:
        results = [r for r in model.get("results", []) if not _is_ours(r)]
        if ours and model is models[0]:
            results += ours[0]["results"]
        if results or not model.get("results"):  # a model of ours alone goes with them
            kept.append({**model, "results": results} if "results" in model or results else model)
    return kept or list(ours or [])


def _is_ours(result: Any) -> bool:
    dataset = result.get("dataset") if isinstance(result, dict) else None
    return isinstance(dataset, dict) and dataset.get("type") == SAMPLE


def _broken(line: int, what: str) -> InputError:
    """H438."""
    return InputError(
        error(
            "H438",
            f"the metadata at the top of {CARD} cannot be read: {shortened(what)}",
            where=f"{CARD}, line {line}",
            expected="YAML keys with values between two lines of ---, which the Hub can read too",
            why="what you wrote there would be lost if the block were written anew",
            fix=("correct that line",),
        )
    )


def check_card(text: str) -> None:
    """Raises InputError H438 where huggingface_hub, and so the Hub, cannot read what is in the block."""
    from huggingface_hub import ModelCard

    try:
        ModelCard(text)
    except (ValueError, TypeError) as problem:
        match = _BLOCK.match(text)
        opening = match[1] if match is not None else ""
        line = line_of(text, len(opening)) + _line_of_key(match[2], INDEX) - 1 if match is not None else 1
        raise _broken(line, str(problem)) from problem
