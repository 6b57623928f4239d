PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --constraint constraints.txt --editable
.PHONY: demo test venv lint docs bench-cpu bench-gpu growth tables fuzz crash soak lock audit dist

demo: .venv/demo
	$(BIN)/anocaps demo

test: venv lint docs
	$(BIN)/pytest

lint: venv
	$(BIN)/lint-imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: venv
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench-cpu: venv
	$(BIN)/python benchmarks/speed_cpu.py

bench-gpu: venv
	$(BIN)/python benchmarks/speed_gpu.py

growth: venv
	$(BIN)/python benchmarks/growth.py

tables: venv
	$(BIN)/python benchmarks/tables.py
	$(BIN)/anocaps study report field --folder results/field --out docs/paper

# Also guided by coverage where atheris can be installed.
fuzz: venv
	$(BIN)/python benchmarks/fuzz.py
	if $(BIN)/pip install --quiet --constraint constraints.txt atheris; then \
	  $(BIN)/python benchmarks/fuzz.py --guided --out results/fuzz-guided.json; fi

crash: venv
	$(BIN)/python benchmarks/crash_points.py

soak: venv
	$(BIN)/python benchmarks/soak.py

# All versions with the hashes of their files, one file per extra; asks the package index.
lock: .venv/tools/ready
	.venv/tools/bin/python .ci/lock.py

# Known weaknesses of what the lock files pin. Exit code 3: the database could not be reached.
audit: .venv/tools/ready
	.ci/audit

# Wheel and sdist of the last commit, built twice; fails if the two wheels differ.
dist: venv
	.ci/dist

venv: .venv/ready

.venv/made: pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'anocaps needs Python 3.11 or newer')"
	$(PYTHON) -m venv .venv
	touch $@

.venv/demo: .venv/made
	$(INSTALL) ".[train]"
	touch $@

.venv/ready: .venv/made
	$(INSTALL) ".[dev]"
	touch .venv/demo $@

.venv/tools/ready: requirements/tools.txt
	$(PYTHON) -m venv .venv/tools
	.venv/tools/bin/pip install --quiet --require-hashes --requirement $<
	touch $@
