"""Hostile files by the million: what a stranger can write into a drafter's folder, tried by mutation.

`header`, `index`, `config`, `pointer` and `seal` are fuzzed with atheris (libFuzzer, guided by the branches of
`converter` that an input reaches), `mapping`, `samples` and `pickles` with hypothesis. `make fuzz` runs
them and prints a table; tests/test_fuzz.py runs each over its committed corpus (corpus/TARGET) or over
a few examples that are always the same.

A target has `one(data)`, which may raise nothing but the project's own errors, and `guard.watched()` sees to it that
nothing is written outside its folders, nothing is connected to, started, unpickled or run from a file.
"""
