# Two commands set everything up: `make demo` and `make test`. Both need only Python >= 3.11, git, bash and make.
# `make test-all` adds the tests that take long, and checks shapes and types on every call.
SHELL       := bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: demo test test-all static lint types contracts unit clean

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable ".[reference]" --group dev
	$(BIN)/python -m pip install --quiet --force-reinstall --no-deps opencv-python-headless
	touch $@

demo: $(VENV)/.installed
	$(BIN)/rbk demo

# The tests begin at once and are shown after the static checks, so that their summary comes last.
STATIC_THEN_TESTS = { $(MAKE) --no-print-directory --keep-going static </dev/null; code=$$?; cat; exit $$code; }

test: $(VENV)/.installed-dev
	@$(BIN)/pytest | $(STATIC_THEN_TESTS)

test-all: $(VENV)/.installed-dev
	@RBK_TYPECHECK=1 $(BIN)/pytest -m "slow or not slow" | $(STATIC_THEN_TESTS)

static: lint types contracts

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

contracts: $(VENV)/.installed-dev
	$(BIN)/lint-imports

unit: $(VENV)/.installed-dev
	$(BIN)/pytest

clean:
	rm -rf $(VENV) dist build rbk-demo
