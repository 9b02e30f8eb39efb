# Each target does all of its own set-up. What follows ARGS= goes to the command behind it:
#   make demo ARGS="--json demo.json --seed 3"
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help install demo test dev bench lint docs

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
STAMP := .venv/.installed

# The stamp says for which folder the environment was made. It is void when the environment does not run (half made, moved,
# its Python upgraded away): the recipe below then starts over.
RUNS := $(shell $(BIN)/python -c 'import pip, sys; print(sys.version_info >= (3, 11))' 2>/dev/null)
ifneq ($(RUNS) $(shell cat $(STAMP) 2>/dev/null),True $(CURDIR))
$(shell rm -f $(STAMP))
endif

help:
	@echo 'make install   the environment in .venv, pinned by constraints.txt'
	@echo 'make demo      the whole flywheel on this machine: a few minutes, no GPU'
	@echo 'make dev       the Dagster UI on a free port'
	@echo 'make test      all tests'
	@echo 'make lint      ruff, mypy, import contracts'
	@echo 'make bench     benchmarks, each against a named baseline'
	@echo 'make docs      the generated pages under docs/'
	@echo 'Arguments: make demo ARGS="--json demo.json --seed 3"'

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo >&2 \
	  '$(PYTHON) is older than 3.11 or not there; install Python 3.11 or newer, or name one: make PYTHON=python3.12'; exit 1; }
	@[ '$(RUNS)' = True ] || { echo 'Making .venv'; $(PYTHON) -m venv --clear .venv; }
	@echo 'Installing what flywheel needs into .venv (minutes the first time)'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@printf '%s\n' '$(CURDIR)' > $@

demo: $(STAMP)
	@$(BIN)/flywheel demo $(ARGS)

dev: $(STAMP)
	@$(BIN)/flywheel dev $(ARGS)

test: $(STAMP)
	@$(BIN)/python -m pytest $(ARGS)

bench: $(STAMP)
	@for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python "$$file" $(ARGS) || exit 1; done

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(STAMP)
	@$(BIN)/python -m flywheel.cli.reference docs
