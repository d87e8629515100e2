# Everything that a contributor or a machine needs: `make help` lists it.
# `make demo` and `make test` install what they need by themselves, into .venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# A Python that has a CUDA build of torch, for `make gpu-test`.
GPU_PYTHON ?= $(PYTHON)
WEB    := $(VENV)/.web
SITE   := $(VENV)/.site
# For example: make test ARGS="-k split -x"
ARGS   ?=
# How many test files run at a time: on two cores three, since tests wait more than they compute.
WORKERS ?= 3
QUICK  := not slow and not gpu
# The tests start hundreds of processes, each of which would compile the sources again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install web docs up demo test test-full faults gpu-wheels gpu-test compose-test bench bench-quick release lock lint format clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## Install shardyard and its tools into .venv

web: $(STAMP) ## Build the dashboard again from web/, and fail if that is not possible
	$(PYTHON) -c 'import shutil; shutil.rmtree("api/web", ignore_errors=True)'
	SHARDYARD_REQUIRE_WEB=1 $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .

docs: $(STAMP) ## Build the site of the documents into site/, and check every link; the service has it at /help
	@$(BIN)/python -m tools.site

up: $(WEB) ## Start the whole service on this machine (Ctrl-C stops it); ARGS="--devices cpu:4" for virtual devices
	@$(MAKE) --no-print-directory --silent $(SITE) || echo "the service has no /help: make docs says why" >&2
	@$(BIN)/shardyard up $(ARGS)

demo: $(STAMP) ## Train on digits under dp and ddp, show what each device got, and stop
	@$(BIN)/shardyard demo $(ARGS)

# Files that share a service run in one process (tests/support/file_order.py), the others in their order.
test: $(WEB) ## All tests but slow ones and those that need a GPU; ARGS="-k split" selects some
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "$(QUICK)" $(ARGS)

test-full: $(WEB) ## All tests, including slow ones and those that need a GPU
	$(BIN)/pytest $(ARGS)

faults: $(STAMP) ## All tests of tests/faults, including slow ones and random faults (some need root)
	$(BIN)/pytest tests/faults $(ARGS)
	$(BIN)/python -m tests.faults.nemesis --seconds 120
	test "$$(id -u)" -ne 0 || $(BIN)/python -m tests.faults.host_nemesis --seconds 120

gpu-wheels: $(STAMP) ## Download wheels into .gpu-wheels, for a GPU machine without access to a package registry
	@$(BIN)/python -m tools.gpu_wheels .gpu-wheels

gpu-test: ## All checks on a CUDA device, in at most eight minutes; GPU_PYTHON=/path/to/python with a CUDA build of torch
	@$(GPU_PYTHON) -m tools.gpu_test $(ARGS)

compose-test: $(STAMP) ## Build the images, and test the service in containers (needs Docker)
	SHARDYARD_REQUIRE_DOCKER=1 $(BIN)/pytest tests/compose $(ARGS)

bench: $(STAMP) ## All measurements beside other systems, about 15 minutes (installs those into .venv-peers at first)
	@$(BIN)/python -c "import matplotlib" 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[bench]"
	$(BIN)/python -m benchmarks $(ARGS)

bench-quick: $(STAMP) ## The same with few rounds and without Ray, about 2 minutes; results are not stored
	$(BIN)/python -m benchmarks --quick --into $(VENV)/bench-quick $(ARGS)

release: $(STAMP) ## Build sdist, wheel and their list of contents into dist/, and try them in a fresh environment
	$(BIN)/python -m tools.site >/dev/null
	$(BIN)/python -m tools.release dist $(ARGS)

lock: $(STAMP) ## Lock the newest versions that pyproject.toml allows, for development and images
	$(BIN)/python -m tools.locks --upgrade

lint: $(STAMP) ## Check style, types, import rules and generated files
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m workers.training.recipes.generate_catalogue --check
	$(BIN)/python -m tools.generate_sync_client --check
	$(BIN)/python -m tools.web_checks
	$(BIN)/python -m tools.references --check
	$(BIN)/python -m tools.site $(VENV)/site

format: $(STAMP) ## Format the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	@test ! -x web/node_modules/.bin/biome || (cd web && node_modules/.bin/biome check --write)

clean: ## Remove .venv and all files that tools have created
	rm -rf $(VENV) api/web api/help site web/node_modules build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An older pip, as Python brings it, takes twice as long to find what fits; where there is no newer one, it will do. What
# pip would compile on one core is compiled on all, but for tests, some of which are not for this Python.
$(STAMP): pyproject.toml locks/development.txt hatch_build.py web/package-lock.json
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: $(PYTHON) is missing or older than Python 3.11; name another: make PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "error: $(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV); the first time brings torch and takes a few minutes"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip || true
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes --no-deps -r locks/development.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[dev]'
	@$(BIN)/python -m compileall -q -j 0 -x '/tests?/' $(VENV)/lib api jobs shardyard workers >/dev/null || true
	@git rev-parse --git-dir >/dev/null 2>&1 && git config core.hooksPath .githooks || true
	@touch $@ $(WEB)

# The dashboard is a part of the package: an installation builds it where its sources have changed.
$(WEB): $(STAMP) $(shell find web -name node_modules -prune -o -type f -print) $(wildcard examples/jobs/*.json)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

# In a checkout the service shows the site that lies there.
$(SITE): $(STAMP) mkdocs.yml $(shell find docs tools/site examples -type f -not -name '*.pyc') $(wildcard *.md)
	@$(BIN)/python -m tools.site >/dev/null
	@touch $@
