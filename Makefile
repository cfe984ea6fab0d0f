# make demo and make test (on all cores, or PYTEST_XDIST_AUTO_NUM_WORKERS of them) need only Python 3.11 or later, pip, make and a C library; they make .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SLURM := build/slurm

.PHONY: setup demo test test-slow test-slurm fuzz lint clean

setup: $(VENV)/.ready

# Rebuilt when the list of dependencies changes.
$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,lint]'
	touch $@

demo: setup
	$(BIN)/dmkl demo --output dmkl-demo

test: setup
	$(BIN)/python -m pytest -n auto

test-slow: setup
	$(BIN)/python -m pytest -n auto -m slow

# 100,000 mutated files of every format that is read; FUZZ='--inputs 1000 --formats npy' takes others.
fuzz: setup
	cd tests && ../$(BIN)/python -m helpers.fuzzing.campaign $(FUZZ)

test-slurm: setup $(SLURM)/.ready
	$(BIN)/python -m pytest -m slurm tests/slurm

# Status 3: this machine has no Debian packages. The tests then take the SLURM that is installed, or say that there is none.
$(SLURM)/.ready: tests/slurm/fetch.sh
	rm -rf $(SLURM)
	mkdir -p $(SLURM)
	tests/slurm/fetch.sh $(SLURM) || [ $$? -eq 3 ]
	touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) dmkl-demo $(SLURM)
