# `make` lists the verbs. Each one sets up .venv first if necessary.

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)
VENV := .venv
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.run-installed
STAMP := $(VENV)/.installed
WEIGHTS := $(VENV)/.weights-installed
RECORDER := .cache/recorder
PAGE := src/dragoman/web/static/index.html
TYPED := src/dragoman $(if $(wildcard scripts/*.py),scripts)

PYTEST_ARGS ?=
# Two workers more than cores, because many tests wait; at most six, because some start servers and browsers.
WORKERS := $(shell cores=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$((cores < 4 ? cores + 2 : 6)))
PYTEST_PARALLEL ?= -n $(WORKERS) --dist worksteal
RUN_ARGS ?=
BENCH ?= peers format dialect fidelity store postgres convert turn server mail loop page
BENCH_ARGS ?=
SOAK_S ?= 3600
LOCK_ARGS ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup run test test-full test-install test-agents faults front-ends fuzz check format bench soak docs cassettes golden lock clean

help: ## List the targets
	@echo "make TARGET, where TARGET is one of"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) $(PAGE) $(WEIGHTS) ## Create .venv for all other targets, build the web page, and fetch the embedded model

run: $(RUN_STAMP) $(PAGE) $(WEIGHTS) ## Serve the web page and the chat API with the embedded model (RUN_ARGS="chat" for the terminal, or any other command)
	@exec $(BIN)/dragoman $(if $(RUN_ARGS),$(RUN_ARGS),serve --model local --log-level warning)

test: check $(PAGE) $(WEIGHTS) ## Run every check and the tests (PYTEST_ARGS="-k name" selects some)
	$(BIN)/pytest $(PYTEST_PARALLEL) --timeout 600 $(PYTEST_ARGS)

test-full: check $(PAGE) $(WEIGHTS) ## Run all tests without sampling, with more generated examples
	DRAGOMAN_TESTS=full $(BIN)/pytest $(PYTEST_PARALLEL) --timeout 600 $(PYTEST_ARGS)

test-install: $(STAMP) $(PAGE) $(WEIGHTS) ## Install the wheel and the sdist in clean environments, and repeat a new user's first minute
	DRAGOMAN_TESTS=install $(BIN)/pytest tests/install $(PYTEST_ARGS)
	$(BIN)/python -m scripts.first_minute

test-agents: $(STAMP) $(PAGE) ## Install six coding agents and run them through the gateway: about 5 minutes (GOLDEN=write updates their golden files)
	DRAGOMAN_TESTS=agents DRAGOMAN_GOLDEN=$(GOLDEN) $(BIN)/pytest tests/agents --timeout 600 $(PYTEST_ARGS)

faults: $(STAMP) ## Run the long fault-injection tests: about half an hour, best as root on Linux
	DRAGOMAN_FAULTS=long $(BIN)/pytest $(PYTEST_PARALLEL) tests/store/faults tests/turn tests/server tests/mail $(PYTEST_ARGS)

front-ends: $(STAMP) $(PAGE) ## Run the front ends of docs/front-ends.md in a browser, and 200 clients while workers are killed
	DRAGOMAN_TESTS=front-ends $(BIN)/pytest tests/server/front_ends --timeout 1800 $(PYTEST_ARGS)

fuzz: $(STAMP) ## Fuzz every dialect and format for about half an hour (DRAGOMAN_FUZZ_COUNT=… of each, DRAGOMAN_FUZZ_SEED=…)
	DRAGOMAN_FUZZ_COUNT=$${DRAGOMAN_FUZZ_COUNT:-5000} DRAGOMAN_FUZZ_SEED=$${DRAGOMAN_FUZZ_SEED:-$$(date +%s)} \
		$(BIN)/pytest $(PYTEST_PARALLEL) tests/fuzz $(PYTEST_ARGS)

check: $(STAMP) ## Check style, format, types, import layers and names
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(TYPED)
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m scripts.check_names

format: $(STAMP) ## Format the code and apply automatic fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## Run the benchmarks beside other libraries (BENCH="store" selects, BENCH_ARGS="…" is passed on)
	@for bench in $(BENCH); do $(BIN)/python -m "benchmarks.$${bench}_bench" $(BENCH_ARGS) || exit 1; done

soak: $(STAMP) ## Load the gateway for an hour, and print its memory, open files and latency (SOAK_S=… seconds)
	$(BIN)/python -m benchmarks.gateway_bench --soak $(SOAK_S)

# Strict mode finds dead links in pages. A page that only the menu names stays a link to its .md file.
docs: $(STAMP) ## Build the documentation into site/; a dead link is an error
	rm -rf site
	$(BIN)/zensical build --clean --strict
	@if grep -rhoE 'href="\.[^":]*\.md[#"]' --include='*.html' site | sort -u | grep .; then \
		echo "zensical.toml names pages that do not exist." >&2; exit 1; fi

# The recording servers have their own environment. CONTRIBUTING.md says when to record.
cassettes: $(STAMP) $(RECORDER)/.installed ## Record the answers of real servers into tests/cassettes
	$(BIN)/python -m scripts.record_cassettes $(RECORDER)

golden: $(STAMP) ## Write tests/golden from the cassettes; review the difference
	$(BIN)/python -m scripts.record_cassettes --golden

# Pins stay as long as pyproject.toml allows them; LOCK_ARGS=--upgrade updates all.
lock: ## Pin every dependency, with hashes, in requirements/ (LOCK_ARGS=--upgrade for newer ones)
	@$(needs_python)
	@tool=$$(mktemp -d) && trap 'rm -rf "$$tool"' EXIT && mkdir -p requirements && \
	"$(PYTHON)" -m venv "$$tool" && "$$tool/bin/pip" install --quiet --require-hashes --only-binary :all: -r requirements/uv.txt && \
	compile="$$tool/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes $(LOCK_ARGS)" && \
	export UV_CUSTOM_COMPILE_COMMAND="make lock" UV_SYSTEM_CERTS=1 && \
	$$compile pyproject.toml --group dev --output-file requirements/dev.txt && \
	$$compile pyproject.toml --extra server --extra local --extra tui --constraint requirements/dev.txt \
		--output-file requirements/run.txt && \
	for group in build page uv; do \
		$$compile --group $$group --constraint requirements/dev.txt --output-file requirements/$$group.txt || exit 1; done && \
	$$compile --group record --output-file requirements/record.txt && \
	for other in requirements/bench/*.in requirements/judges/*.in; do \
		$$compile "$$other" --output-file "$${other%.in}.txt" || exit 1; done

clean: ## Remove everything that can be rebuilt, including .venv
	rm -rf $(VENV) site build dist .cache .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	rm -rf web/node_modules src/dragoman/web
	find src tests scripts benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# --- set-up ----------------------------------------------------------------------------------------------------------

# scripts/set_up.py installs only wheels: no step needs a compiler.
$(RUN_STAMP): pyproject.toml scripts/set_up.py requirements/run.txt requirements/build.txt requirements/uv.txt
	@$(needs_python)
	@"$(PYTHON)" scripts/set_up.py run
	@touch $@

$(STAMP): $(RUN_STAMP) requirements/dev.txt
	@"$(PYTHON)" scripts/set_up.py dev
	@touch $@

# The page is built with Node.js of a wheel, from the sources and pins in web/.
$(PAGE): scripts/build_page.py requirements/page.txt $(filter-out web/node_modules/%,$(wildcard web/*.* web/src/*.* web/src/*/*.*)) \
		| $(RUN_STAMP)
	@"$(PYTHON)" scripts/set_up.py page
	@touch $@

$(WEIGHTS): src/dragoman/local/weights.py | $(RUN_STAMP)
	@"$(PYTHON)" scripts/set_up.py weights
	@touch $@

$(RECORDER)/.installed: requirements/record.txt scripts/package.json scripts/package-lock.json
	@command -v npm >/dev/null || { echo "Recording needs Node.js 20 or later, with npm." >&2; exit 1; }
	mkdir -p $(RECORDER)
	$(BIN)/python -m venv --clear $(RECORDER)/venv
	$(RECORDER)/venv/bin/pip install --quiet --require-hashes --only-binary :all: -r requirements/record.txt
	cp scripts/package.json scripts/package-lock.json $(RECORDER)
	npm ci --silent --no-audit --no-fund --ignore-scripts --prefix $(RECORDER)
	@touch $@

define needs_python
"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	echo "Dragoman needs Python 3.11 or later, and $(or $(PYTHON),python3) is not that ($$($(or $(PYTHON),python3) --version 2>&1))."; \
	echo "Install a newer version, or select it: make PYTHON=/path/to/python3.11 $(or $(MAKECMDGOALS),setup)"; exit 1; } >&2
endef
