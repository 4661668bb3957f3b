# `make` shows what there is. The environment in .venv makes itself.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The newest Python that really runs; `make PYTHON=…` takes another.
PYTHON ?= $(firstword $(shell .ci/pythons))
# As many as the machine can take, which is measured, see tests/toolbox/timing.py; or a number.
PROCESSES ?= auto
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Reached on the way there: what the demo needs, an eighth of it all.
DEMO_READY := $(VENV)/.demo-ready

# Tests start hundreds of programs, and each of them would compile the package.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(DEMO_READY) ## lost updates without the lock, none with it; ARGS=--once ends by itself
	$(BIN)/python testproject/demo.py $(ARGS)

# A test that needs more than Python fails here, unless its marker says so. Few processes: each reads all tests first.
.PHONY: check
check: $(READY) ## what to run first: style, types and most unit tests; no Java, no server, under ninety seconds
	$(MAKE) --jobs 3 lint types check-units

.PHONY: check-units
check-units: $(READY)
	$(BIN)/pytest tests/unit tests/testserver --without-services -m "not zookeeper and not slow and not program" --numprocesses 4 $(ARGS)

# The machine is measured before anything runs that would be measured too.
.PHONY: test
test: lint $(READY) | os-test ## every check
	ZKLOCK_SLOWNESS=$$($(BIN)/python -m tests.toolbox.timing) \
		$(MAKE) --jobs=2 --keep-going --output-sync=target --no-print-directory \
		test-live types docs test-asynchronous

# The other checks run beside these tests, which wait a lot, one after the other; make shows the output of each when the
# check has ended. That of the tests is shown at once: a make of its own holds nothing back.
.PHONY: test-live test-most
test-live:
	@$(MAKE) --output-sync=none --no-print-directory test-most
test-most: $(READY) | os-test
	$(BIN)/pytest -m "not asynchronous" --numprocesses $(PROCESSES) --dist loadgroup --cov --cov-report=term $(ARGS)

# To collect all tests for the sake of thirty would take as long as ten of them.
.PHONY: test-asynchronous
test-asynchronous: $(READY) | os-test
	$(BIN)/pytest -q -m asynchronous $$(grep --recursive --files-with-matches --include='test_*.py' 'mark\.asynchronous' tests)

# Twice as long as `test`, whose coverage knows lines alone.
.PHONY: coverage
coverage: $(READY) | os-test ## what the tests reach, branches too, as HTML in htmlcov
	$(BIN)/pytest -m "not asynchronous" --numprocesses $(PROCESSES) --dist loadgroup --cov --cov-branch --cov-report=html $(ARGS)

# It does not belong to `test`: it needs a package index, and what it tests is the test server alone.
.PHONY: test-kazoo
test-kazoo: $(READY) | os-kazoo ## kazoo's own tests on real ZooKeeper and on the test server; ARGS="-k lock" for some
	$(BIN)/python -m tests.testserver.kazoo_suite $(ARGS)

# For the same reason, and because it takes longest where nothing has changed for Celery.
.PHONY: test-celery
test-celery: $(READY) | os-celery ## Celery's own tests without the gate and with it; ARGS="--part unit -k worker" for some
	PYTHONPATH=testproject $(BIN)/python -m tests.celery_suite $(ARGS)

# For the same reason as test-kazoo: it installs an application with a hundred packages.
.PHONY: test-weblate
test-weblate: $(READY) | os-test ## Weblate with three of its tasks locked: its worker, its admin in Chromium, the doctor
	$(BIN)/python -m tests.weblate $(ARGS)

# What WHAT may be. Each is a test that `test` has with a smaller number.
soak-leaks := ZKLOCK_LEAK_CYCLES=100000 $(BIN)/pytest tests/integration/load/test_leaks.py
soak-locks := ZKLOCK_MANY_LOCKS=24000 $(BIN)/pytest tests/integration/cluster/test_many_locks.py
soak-waiters := ZKLOCK_WAITERS=10000 $(BIN)/pytest tests/integration/load/test_many_waiters.py
soak-bursts := ZKLOCK_BURSTS=30 $(BIN)/pytest tests/integration/celery/test_gate_no_loop.py -k bursts
soak-writers := ZKLOCK_WRITERS=1000 $(BIN)/pytest tests/integration/databases/test_fencing.py -k test_writers
soak-partitions := ZKLOCK_PARTITIONS=1 $(BIN)/pytest tests/integration/cluster/test_partitions.py --log-level INFO

.PHONY: soak
soak: $(READY) | os-test ## one test for long: WHAT=leaks, locks, waiters, bursts, writers or partitions
	$(or $(soak-$(WHAT)),$(error WHAT is one of $(sort $(patsubst soak-%,%,$(filter soak-%,$(.VARIABLES)))))) -rP $(ARGS)

# Two minutes of it belong to `test`.
.PHONY: chaos
chaos: $(READY) | os-test ## an hour of all faults at random over clients of every kind; ARGS="--seconds 600"
	PYTHONPATH=testproject $(BIN)/python -m tests.chaos --seconds 3600 $(ARGS)

.PHONY: simulate
simulate: $(READY) ## an hour of the core in worlds of one thread; ARGS="--seconds 60"
	$(BIN)/python -m tests.simulation --seconds 3600 $(ARGS)

.PHONY: bench
bench: $(READY) | os-test ## WHAT=peers, testserver, gate, unique, saturation, fleet, listing, admin, scale, once or herd; peers and herd write docs/
	PYTHONPATH=testproject $(BIN)/python -m benchmarks.$(or $(WHAT),peers) $(ARGS)

.PHONY: lint
lint: $(READY) ## style, format, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

.PHONY: types
types: $(READY) ## mypy, strict
	$(BIN)/mypy

# What follows the links needs the network, so it does not belong to `test`.
.PHONY: docs
docs: $(READY) ## the documents as HTML in docs/_build/html, with spelling and links; WHAT=links: the links to other sites
ifeq ($(WHAT),links)
	$(BIN)/sphinx-build -q -d docs/_build/doctrees -b linkcheck docs docs/_build/links
else
	$(BIN)/codespell
	$(BIN)/sphinx-build -n -W --keep-going -q -d docs/_build/doctrees -b html docs docs/_build/html
endif

.PHONY: screenshots
screenshots: $(READY) | os-browser ## the pictures of the admin in docs/ and their references, taken anew
	ZKLOCK_SCREENSHOTS=docs/_static/screenshots $(BIN)/pytest tests/browser/test_pictures.py $(ARGS)

.PHONY: package
package: $(READY) ## wheel and sdist in dist/, looked into and installed
	rm -rf build dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/pytest -m packaging tests/project/test_package.py

# With WHAT=zookeeper it fetches 750 MB once.
.PHONY: matrix
matrix: $(READY) | os-test ## versions of Python, Django, Celery and kazoo; WHAT=zookeeper: of ZooKeeper and Curator
ifeq ($(WHAT),zookeeper)
	PYTHONPATH=testproject $(BIN)/python -m tests.zookeeper_matrix --processes $(PROCESSES) $(ARGS)
else
	$(BIN)/tox run --discover $$(.ci/pythons) $(ARGS)
endif

.PHONY: clean
clean: ## remove what was made, the environment too
	rm -rf $(VENV) .cache .tox .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .coverage* \
		htmlcov build dist docs/_build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: os-browser os-celery os-kazoo os-test
os-browser:
	@.ci/os-packages chromium zookeeper
os-celery:
	@.ci/os-packages redis zookeeper
os-kazoo:
	@.ci/os-packages zookeeper
os-test:
	@.ci/os-packages chromium curator faketime haproxy mariadb postgresql rabbitmq redis zkcli zookeeper

$(DEMO_READY): setup.cfg pyproject.toml
	@$(if $(PYTHON),:,.ci/os-packages python)
	$(or $(PYTHON),python3) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[celery]'
	@touch $@

$(READY): $(DEMO_READY)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@
