"""Faults put into real drafters on purpose: `rows.py` one for each code, `doubles.py` two at once.

To add a code to the catalogue, add a row for it to `FAULTS` in `rows.py`. A row is a named change of a bundled drafter
(`tests/data`), of its target or of its sample, or an option that is the fault; `tests/test_fault_matrix.py` then runs
the drafter with and without it. What a change can be stands in `changes.py`: edits of a folder's files, small enough to
be put together with `all_of`. A row

- shows its code at the severity that `mappings/findings.yaml` gives it, at the place that `where` names (a part of it);
- shows no other error, except those of `follows`, which one of the two findings must name as its cause;
- is silent of its code without the fault, with all other options the same.

`target`, `sample` and `engines` are given by default: the target's config.json alone (the whole target where the row
says `"target": TARGET`, which costs 0.15 s), no sample, SGLang 0.5.23. A row with a sample costs about a second.

    python -m pytest tests/test_fault_matrix.py -k T103

A code that no change of a file can show (the network, a running target, a writer's own mistake) goes into `ELSEWHERE`,
with the test that shows it.
"""
