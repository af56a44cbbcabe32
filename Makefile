# Two commands set everything up: `make demo` and `make test`. Both need only Python >= 3.11, git, bash and make.
# `make test-slow` runs the tests that take long, with shapes and types checked on every call, but for those of kills and
# lost machines; `make test-all` runs everything.
SHELL       := bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: demo test test-slow test-all static lint types contracts docs unit clean

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable ".[reference]" --group dev
	$(BIN)/python -m pip install --quiet --force-reinstall --no-deps opencv-python-headless
	touch $@

$(VENV)/docs/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)/docs
	$(VENV)/docs/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(VENV)/docs/bin/python -m pip install --quiet --group docs
	touch $@

demo: $(VENV)/.installed
	$(BIN)/rbk board demo

# The tests begin at once and are shown after the static checks, so that their summary comes last.
STATIC_THEN_TESTS = { $(MAKE) --no-print-directory --keep-going static </dev/null; code=$$?; cat; exit $$code; }

test: $(VENV)/.installed-dev
	@$(BIN)/pytest | $(STATIC_THEN_TESTS)

test-slow: $(VENV)/.installed-dev
	RBK_TYPECHECK=1 $(BIN)/pytest -m slow --ignore tests/faults

test-all: $(VENV)/.installed-dev
	@RBK_TYPECHECK=1 $(BIN)/pytest -m "slow or not slow" | $(STATIC_THEN_TESTS)

static: lint types contracts docs

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

contracts: $(VENV)/.installed-dev
	$(BIN)/lint-imports

# The site's tools live in an environment of their own; they ask that of the package what `rbk list` shows.
docs: $(VENV)/.installed $(VENV)/docs/.installed
	NO_MKDOCS_2_WARNING=1 RBK_PYTHON=$(BIN)/python $(VENV)/docs/bin/mkdocs build --strict --quiet

unit: $(VENV)/.installed-dev
	$(BIN)/pytest

clean:
	rm -rf $(VENV) dist build site rbk-demo
