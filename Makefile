# Everything a person types in this repository. `make help` lists it.
# Each target sets up what it needs; the environment is made again only when pyproject.toml or constraints.txt change.
# The demo waits only for what a topology needs to run; connectors and tools come with the first other target.

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
RUNS := $(VENV)/.runs
COMPLETE := $(VENV)/.complete
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
ONLY ?=
HAILSTORM_SOAK ?= 7200
SOAK_MINUTES ?= 60
# A ledger syncs every file that it writes. Tests wait for no disk where there is room for their files in memory.
MEMORY := $(shell [ "$$(df -k --output=avail /dev/shm 2>/dev/null | tail -1)" -gt 6000000 ] 2>/dev/null && echo /dev/shm)
IN_MEMORY := $(if $(MEMORY),TMPDIR=$(MEMORY))

.DEFAULT_GOAL := help
.PHONY: help venv java demo test check bench soak

help: ## This list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(COMPLETE) ## Make .venv with Hailstorm and everything for working on it

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Hailstorm needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || echo missing)."; \
	  echo "Type: make venv PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(RUNS): pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing Spark and Hailstorm into $(VENV) (once; Spark is 400 MB)"
	@$(INSTALL) -e .
	@touch $@

$(COMPLETE): pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing everything into $(VENV) (once, about a minute; Spark is 400 MB)"
	@$(INSTALL) -e '.[all,dev]'
	@touch $(RUNS) $@

java:
	@version=$$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p'); \
	if [ "$${version:-0}" -ge 17 ]; then exit 0; fi; \
	if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  echo "Installing Java 17, which Spark needs"; \
	  apt-get update -qq && apt-get install -y -qq openjdk-17-jre-headless >/dev/null; \
	elif command -v apt-get >/dev/null && sudo -n true 2>/dev/null; then \
	  echo "Installing Java 17, which Spark needs"; \
	  sudo apt-get update -qq && sudo apt-get install -y -qq openjdk-17-jre-headless >/dev/null; \
	else \
	  echo "Spark needs Java 17 or newer, and there is $${version:+only Java $$version}$${version:-none}."; \
	  echo "Debian, Ubuntu: sudo apt-get install -y openjdk-17-jre-headless"; \
	  echo "Fedora:         sudo dnf install -y java-17-openjdk-headless"; \
	  echo "macOS:          brew install openjdk@17, then put its bin folder on the PATH"; \
	  exit 1; \
	fi

demo: $(RUNS) java ## Trending words, counted live on Spark
	@$(BIN)/hailstorm demo

test: venv java ## All tests, on two cores (under half an hour)
	@$(IN_MEMORY) $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

check: venv ## Style, types and the tests that need no Spark (under a minute)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy & types=$$!; \
	$(IN_MEMORY) $(BIN)/python -m pytest -n auto tests/unit tests/laws tests/golden -m "not spark and not chaos and not slow and not soak"; \
	tests=$$?; wait $$types && exit $$tests

bench: venv java ## Measure; ONLY=name runs one
	@$(BIN)/python -m bench $(ONLY)

soak: venv java ## The long forms of the tests (hours)
	@HAILSTORM_SOAK=$(HAILSTORM_SOAK) $(BIN)/python -m pytest -m soak --timeout 0
	@$(BIN)/python -m bench.soak full --minutes $(SOAK_MINUTES) --keep
	@$(BIN)/python -m bench.soak small --minutes $(SOAK_MINUTES) --keep
	@$(BIN)/python -m bench.soak latency --minutes $(SOAK_MINUTES) --keep
