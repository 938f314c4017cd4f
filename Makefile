# Every target makes .venv by itself; nothing outside this folder is touched.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all check bench bench-gpu format clean

# The first Python on PATH that is new enough and really runs (version managers leave shims that do not).
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo "$$p" && break; done)

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "everstep needs Python 3.11 or newer on PATH (or: make PYTHON=/path/to/python3.11)"; exit 1; }
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

setup: $(STAMP)  ## make .venv with everything that the other targets need

demo: $(STAMP)  ## train undisturbed, then through preemptions, live: under five minutes, three of them live
	$(BIN)/everstep demo $(ARGS)

test: $(STAMP)  ## run the tests; of each expensive family a sample, chosen by the commit
	$(BIN)/python -m scripts.run_tests $(ARGS)

test-all: $(STAMP)  ## run every test, expensive families in full
	EVERSTEP_TEST_ALL=1 $(BIN)/python -m scripts.run_tests $(ARGS)

check: $(STAMP)  ## lint, format, types, import contracts, purity, ceilings, oldest Pythons
	@$(BIN)/python -m scripts.check $(ARGS)

bench: $(STAMP)  ## run the benchmarks; one JSON object a line
	@$(BIN)/python -m benchmarks $(ARGS)

bench-gpu: $(STAMP)  ## the benchmark of saves with all tensors on a GPU; skips where there is none
	@$(BIN)/python -m benchmarks saving -- --device cuda $(ARGS)

format: $(STAMP)  ## let ruff sort imports and lay out the code
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format --quiet .

clean:  ## remove .venv, caches and build outputs
	rm -rf $(VENV) build dist demo-report .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
