# make demo | test | test-all | lint | types | faults | screenshots | bench | clean
# Everything runs from .venv, which the first call sets up.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS ?= 2

.PHONY: demo test test-all lint types faults screenshots bench clean

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "tghw needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "python3 has no venv module: install it (Debian: apt-get install python3-venv)"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,lint]'
	@touch $@

demo: $(STAMP)
	@$(BIN)/tghw demo

test: $(STAMP)
	$(BIN)/python -m pytest -n $(JOBS) -m 'not slow'

test-all: $(STAMP)
	$(BIN)/python -m pytest -n $(JOBS)
	$(BIN)/python -m tests.mutation

lint: $(STAMP)
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

faults: $(STAMP)
	$(BIN)/python -m probes.catalogue docs/faults.md

screenshots: $(STAMP)
	$(BIN)/python -m tests.screenshots docs

bench: $(STAMP)
	$(BIN)/tghw bench all

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis build *.egg-info
