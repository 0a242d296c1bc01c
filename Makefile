# The two commands: `make run` starts a node, `make test` passes all tests. Each sets up what it
# needs on a machine that has only Python 3.11+ and make.

UV := $(shell command -v uv 2>/dev/null || echo .setup/boot/bin/uv)
BIN := .venv/bin
ARGS ?=

.PHONY: help run test setup check lint sim chaos bench format clean

help:
	@echo "make run     start a node at localhost:9092 (ARGS='--port 9093 ...' for options)"
	@echo "make test    set up and run all tests"
	@echo "make setup   everything for development, in .venv"
	@echo "make check   lint, types, import contracts, unit tests (the fast layer)"
	@echo "make sim     crash campaigns on a simulated disk, many seeds (SEEDS=2000)"
	@echo "make chaos   kill -9 under load, many times (KILLS=200), and through a chain of transactions"
	@echo "             (RECORDS=1000000)"
	@echo "make bench   Chronik beside a real Apache Kafka, as ratios; then what a node costs inside"

run: .setup/core
	@exec $(BIN)/chronik start $(ARGS)

setup: .setup/dev

test: lint .setup/clients
	$(BIN)/python -m pytest -q

check: lint
	$(BIN)/python -m pytest -q tests/unit tests/test_tidy.py

lint: .setup/dev
	$(BIN)/ruff format --check -q .
	$(BIN)/ruff check -q .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

sim: .setup/dev
	CHRONIK_SIM_SEEDS=$(or $(SEEDS),2000) $(BIN)/python -m pytest -q tests/sim

chaos: .setup/dev
	CHRONIK_KILLS=$(or $(KILLS),200) CHRONIK_TEST_RECORDS=$(or $(RECORDS),1000000) \
		$(BIN)/python -m pytest -q -s --timeout 3600 tests/chaos/test_kill.py tests/chaos/test_exactly_once.py

bench: .setup/dev .setup/clients
	$(BIN)/python -m bench $(ARGS)
	$(BIN)/python -m bench.coordinators
	$(BIN)/python -m bench.inside

format: .setup/dev
	$(BIN)/ruff format -q .
	$(BIN)/ruff check -q --fix .

clean:
	rm -rf .venv .setup .cache

# What the targets above stand on.

.setup/venv: scripts/bootstrap.sh
	@mkdir -p .setup
	@bash scripts/bootstrap.sh
	@touch $@

.setup/core: .setup/venv pyproject.toml uv.lock
	@$(UV) sync -q --frozen --inexact
	@touch $@

.setup/dev: .setup/venv pyproject.toml uv.lock
	@$(UV) sync -q --frozen --inexact --extra dev
	@touch $@ .setup/core

.setup/clients: .setup/dev $(wildcard scripts/clients/*)
	@$(BIN)/python scripts/clients/setup.py
	@touch $@
