# The two commands: `make run` starts a node, `make test` passes all tests. Each sets up what it
# needs on a machine that has only Python 3.11+ and make.

UV := $(shell command -v uv 2>/dev/null || echo .setup/boot/bin/uv)
BIN := .venv/bin
ARGS ?=

.PHONY: help run test setup check lint sim chaos lake-chaos pipeline-chaos demo bench format clean

help:
	@echo "make run     start a node at localhost:9092 (ARGS='--port 9093 ...' for options)"
	@echo "make demo    a cluster, a producer, the pipeline and SQL, in two minutes"
	@echo "make test    set up and run all tests"
	@echo "make setup   everything for development, in .venv"
	@echo "make check   lint, types, import contracts, unit tests (the fast layer)"
	@echo "make sim     campaigns against a simulated cluster, network and disk, many seeds (SEEDS=500)"
	@echo "make chaos   kill -9 under load, many times (KILLS=200), and through a chain of transactions"
	@echo "             (RECORDS=1000000); a cluster and its replicas in trouble for MINUTES=10"
	@echo "make lake-chaos  a lake committer killed at KILLS=5000 points, and an hour of commits"
	@echo "make pipeline-chaos  the whole pipeline with Spark killed KILLS=200 times, the broker too"
	@echo "make bench   Chronik beside a real Apache Kafka, as ratios; what a node costs inside; a cluster"

run: .setup/core
	@exec $(BIN)/chronik start $(ARGS)

demo: .setup/dev
	@$(BIN)/python examples/demo.py

setup: .setup/dev

# Most of the time goes into waiting, so two files of tests run at a time, in the order of the tree.
test: lint .setup/clients
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder

check: lint
	$(BIN)/python -m pytest -q -n 2 tests/unit tests/test_tidy.py

lint: .setup/dev
	$(BIN)/ruff format --check -q .
	$(BIN)/ruff check -q .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

sim: .setup/dev
	PYTHONHASHSEED=0 CHRONIK_SIM_SEEDS=$(or $(SEEDS),500) $(BIN)/python -m pytest -q tests/sim

chaos: .setup/dev
	CHRONIK_KILLS=$(or $(KILLS),200) CHRONIK_TEST_RECORDS=$(or $(RECORDS),1000000) \
		CHRONIK_TEST_MINUTES=$(or $(MINUTES),10) CHRONIK_TEST_IDLE_S=$(or $(IDLE),90) \
		$(BIN)/python -m pytest -q -s --timeout 3600 tests/chaos/test_kill.py \
		tests/chaos/test_exactly_once.py tests/chaos/test_cluster_chaos.py \
		tests/chaos/test_cluster_reports.py tests/chaos/test_replication.py \
		tests/chaos/test_failover.py

lake-chaos: .setup/dev
	$(BIN)/python tests/lake/kill_campaign.py --kills $(or $(KILLS),5000)
	CHRONIK_TEST_COMMITS=720 $(BIN)/python -m pytest -q --timeout 3600 tests/lake/test_upkeep.py

pipeline-chaos: .setup/dev
	$(BIN)/python tests/spark/pipeline_chaos.py --kills $(or $(KILLS),200)

bench: .setup/dev .setup/clients
	$(BIN)/python -m bench $(ARGS)
	$(BIN)/python -m bench.coordinators --peer kafka
	$(BIN)/python -m bench.inside
	$(BIN)/python -m bench.cluster --peer kafka
	$(BIN)/python -m bench.replication --partitions

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
