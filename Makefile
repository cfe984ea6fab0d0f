# make demo and make test (on all cores, or PYTEST_XDIST_AUTO_NUM_WORKERS of them) need only Python 3.11 or later, pip, make and a C library; they make .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SLURM := build/slurm

.PHONY: setup demo test test-slow test-oldest test-newest test-slurm test-browser fuzz mutants properties lint docs experiments package lock clean

setup: $(VENV)/.ready

# Rebuilt when the list of dependencies changes. make setup LOCKED=yes, as in .ci/run, takes the releases of deploy/lock.txt, whose
# hashes pip checks.
$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
ifdef LOCKED
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r deploy/lock.txt
endif
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,lint]'
	touch $@

demo: setup
	$(BIN)/dmkl demo --output dmkl-demo

test: setup
	$(BIN)/python -m pytest -n auto

test-slow: setup
	$(BIN)/python -m pytest -n auto -m slow

# Models, stores and inputs with the lowest versions that pyproject.toml allows. Later packages, such as click, may find them
# outdated: deprecations are not reported.
OLDEST := build/oldest
test-oldest: $(OLDEST)/.ready
	PYTHONPATH=$(CURDIR) $(OLDEST)/bin/python -m pytest -n auto -W ignore::DeprecationWarning \
		tests/learners tests/store tests/inputs

$(OLDEST)/.ready: pyproject.toml tests/helpers/lowest_versions.py
	rm -rf $(OLDEST)
	$(PYTHON) -m venv $(OLDEST)
	$(PYTHON) tests/helpers/lowest_versions.py > $(OLDEST)/requirements.txt
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: -r $(OLDEST)/requirements.txt
	touch $@

# The fast tests with the newest release of every package, on the newest Python of this machine that can make environments (on
# the path, or under ~/.pyenv); make test-newest NEWEST_PYTHON=python3.14 takes another. Tables are also read and written without
# anndata and mudata, which may hold pandas back.
NEWEST := build/newest
NEWEST_PYTHON ?= $(shell for minor in $$(seq 30 -1 11); do for python in python3.$$minor ~/.pyenv/versions/3.$$minor.*/bin/python; do \
	$$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info.releaselevel != "final")' 2>/dev/null && \
	echo $$python && exit; done; done)
NEWEST_INSTALL = $(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager
test-newest:
	$(NEWEST_PYTHON) -m venv --clear $(NEWEST)
	$(NEWEST_INSTALL) --editable '.[hdf5,parquet,plink]' hypothesis pytest pytest-timeout pytest-xdist
	$(NEWEST)/bin/python -m pytest -n auto tests/inputs tests/cli/test_cli_export.py tests/searching/test_predictions.py
	$(NEWEST_INSTALL) --editable '.[test]'
	$(NEWEST)/bin/python -m pip list --disable-pip-version-check
	$(NEWEST)/bin/python -m pytest -n auto

# The archives of a release, and the wheel in an environment that has nothing else.
package: setup
	rm -rf dist build/package
	$(BIN)/python -m pip install --quiet --disable-pip-version-check build
	$(BIN)/python -m build
	$(PYTHON) -m venv build/package
	build/package/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	cd build/package && bin/dmkl demo --output demo

# deploy/lock.txt: the newest release of everything that dmkl, its tests, lint and documentation need, with hashes, for all systems and
# versions of Python.
lock: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --upgrade --all-extras \
		--output-file deploy/lock.txt pyproject.toml

# 100,000 mutated files of all formats that are read; make fuzz INPUTS=1000 FUZZ='-k npy' takes others.
# Each arena of the allocator, and each thread's stack, reserves memory that is never used.
INPUTS ?= 100000
fuzz: setup
	FUZZ_INPUTS=$(INPUTS) MALLOC_ARENA_MAX=1 ZARR_THREADING__MAX_WORKERS=1 $(BIN)/python -m pytest -n auto \
		--max-worker-restart=1000 --timeout=3600 tests/hostile/test_mutated_files.py $(FUZZ)

# Lines of numerics, solvers and learners that could change without a failing test: changes at random, an hour for 60 of them.
mutants: setup
	$(BIN)/python tests/mutants.py $(MUTANTS)

# New random examples of every property, many of each: make test takes the same few each time.
properties: setup
	$(BIN)/python -m pytest -n auto -m hypothesis --hypothesis-profile=random --timeout=0

test-slurm: setup $(SLURM)/.ready
	$(BIN)/python -m pytest -m slurm tests/slurm

# Status 3: this machine has no Debian packages. The tests then take the SLURM that is installed, or say that there is none.
$(SLURM)/.ready: tests/slurm/fetch.sh
	rm -rf $(SLURM)
	mkdir -p $(SLURM)
	tests/slurm/fetch.sh $(SLURM) || [ $$? -eq 3 ]
	touch $@

# Status 3: Chromium cannot be installed here. The tests then say that there is none.
test-browser: setup
	tests/reports/install_chromium.sh || [ $$? -eq 3 ]
	$(BIN)/python -m pytest -rs -m browser tests/reports

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Executes the tutorials, and fails at any warning: a page, a link or a docstring that Sphinx cannot read.
docs: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

# The published experiments in small, beside the published figures; EXPERIMENTS='--only proteins' runs one.
experiments: setup
	$(BIN)/python pipelines/experiments.py $(EXPERIMENTS)
	@echo "out/experiments/experiments.md"

clean:
	rm -rf $(VENV) dmkl-demo $(SLURM) docs/_build docs/_reference docs/_tutorials docs/tutorials/*.html
