# `make help` lists what there is. ARGS="…" is passed on by train, test, bench and bench-learning.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3.11 python3 python3.12 python3.13 python
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=

# The defaults of `make train`; a choice of the user's takes the place of ours (a sweep may not name a group twice).
chosen = $(filter $(1)=% '$(1)=% "$(1)=%,$(ARGS))
TRAIN := $(if $(call chosen,algo),,algo=reinforce) $(if $(call chosen,env),,env=CartPole-v1)

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{ printf "  make %-16s %s\n", $$1, $$2 }'

.PHONY: setup
setup: $(STAMP) ## make .venv with pgtrain and all it needs (does nothing when nothing changed)
	@:

# The first of PYTHON that runs and is new enough (a pyenv shim may exist and yet not run).
$(STAMP): pyproject.toml constraints.txt
	@python=; for name in $(PYTHON); do \
	  if "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$name; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "make setup: pgtrain needs Python 3.11 or newer; none of these is: $(PYTHON). Try: make setup PYTHON=/path/to/python3.11" >&2; exit 1; \
	fi; \
	echo "make setup: $$("$$python" --version) -> $(VENV)"; \
	if ! "$$python" -m venv $(VENV); then \
	  echo "make setup: '$$python -m venv' failed; on Debian and Ubuntu the package python3-venv is needed" >&2; exit 1; \
	fi
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt torch -e '.[dev]'
	@touch $@

.PHONY: train
train: setup ## train an agent: make train ARGS="algo=a2c env=Acrobot-v1 seed=3" (default: REINFORCE on CartPole)
	@$(BIN)/pgtrain $(TRAIN) $(ARGS)

.PHONY: tensorboard
tensorboard: setup ## show all runs under outputs/ in TensorBoard
	@$(BIN)/tensorboard --logdir outputs $(ARGS)

.PHONY: test
test: setup ## run the fast tests
	@$(BIN)/python -m pytest $(ARGS)

.PHONY: test-slow
test-slow: setup ## run the slow tests: whole learning runs
	@$(BIN)/python -m pytest -m slow $(ARGS)

.PHONY: lint
lint: setup ## check style, formatting and the floors (which module may import which)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-cache

.PHONY: format
format: setup ## mend style and formatting where a tool can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

.PHONY: types
types: setup ## check the types of the package
	@$(BIN)/pyright --pythonpath $(BIN)/python

.PHONY: bench
bench: setup ## measure training speed; ARGS=--write-readme updates the README's table
	@$(BIN)/python benchmarks/throughput.py $(ARGS)

.PHONY: bench-scaling
bench-scaling: setup ## measure how time and memory grow with a run's length, envs and rows; writes docs/scaling.png
	@$(BIN)/python benchmarks/scaling.py $(ARGS)

.PHONY: spaces
spaces: setup ## write the tables of docs/spaces.md anew
	@$(BIN)/python -m tests.integration.test_spaces_table

.PHONY: bench-learning
bench-learning: setup ## train presets and recipes on several seeds, update docs/results.md; ARGS=--quick tests today's code
	@$(BIN)/python benchmarks/learning.py $(ARGS)

.PHONY: bench-per-sample
bench-per-sample: setup ## measure per-sample gradient norms against one backward pass
	@$(BIN)/python benchmarks/per_sample.py $(ARGS)

.PHONY: legend
legend: setup ## update the README's table of dashboard metrics
	@$(BIN)/python benchmarks/readme.py legend

.PHONY: clean
clean: ## remove caches and build results (runs in outputs/ and .venv stay)
	@rm -rf build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -path ./$(VENV) -prune -o -type d -name __pycache__ -print0 | xargs -0 rm -rf
