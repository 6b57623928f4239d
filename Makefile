PYTHON ?= python3
BIN := .venv/bin
.PHONY: demo test venv lint docs bench-cpu bench-gpu growth tables

demo: venv
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

venv: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'anocaps needs Python 3.11 or newer')"
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@
