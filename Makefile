# Two commands set everything up: `make demo` and `make test`. Both need only Python >= 3.11, git, bash and make.
# `make static` checks without running anything, `make test-slow` runs the long tests that guard numbers, and `make
# test-all` every test. `make test-lowest` and `make test-newest` test with other versions of what the package needs.
SHELL       := bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: demo test test-times test-slow test-all rehearsal test-lowest test-newest static lint types contracts docs clean

# The libraries to compare with come along where they can be installed. Nothing but comparisons needs them.
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable ".[reference]" || $(BIN)/python -m pip install --quiet --editable .
	$(BIN)/python -m pip install --quiet --force-reinstall --no-deps opencv-python-headless
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable ".[reference]" --group dev
	touch $@

$(VENV)/docs/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)/docs
	$(VENV)/docs/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(VENV)/docs/bin/python -m pip install --quiet --group docs
	touch $@

# Exit code 2 of the comparison: a library is missing, and the last line names it.
demo: $(VENV)/.installed
	$(BIN)/rbk board demo
	$(BIN)/rbk cross-check --quiet || test $$? -eq 2

test: $(VENV)/.installed-dev
	$(BIN)/pytest

# Five runs of the short suite on an idle machine: what each found, and the seconds that it took.
test-times: $(VENV)/.installed-dev
	TIMEFORMAT='%R s wall, %U + %S s CPU'; for run in 1 2 3 4 5; do \
	  time $(BIN)/pytest -q > $(VENV)/test-times.log; tail -n 1 $(VENV)/test-times.log; \
	done

test-slow: $(VENV)/.installed-dev
	RBK_TYPECHECK=1 $(BIN)/pytest -m slow --ignore tests/faults --ignore tests/fuzz

test-all: $(VENV)/.installed-dev
	RBK_TYPECHECK=1 $(BIN)/pytest -m "slow or not slow"

# Every set at its true size, on stand-ins: about an hour (tests/true_size/README.md).
rehearsal: $(VENV)/.installed-dev
	RBK_REHEARSAL=whole $(BIN)/pytest -n 0 -o tmp_path_retention_policy=failed tests/true_size

# What the package needs in the lowest versions that pyproject.toml states (of others, old releases call what the newest
# deprecate), and in the newest with pre-releases.
test-lowest: $(VENV)/lowest/.installed
	$(VENV)/lowest/bin/pytest -W default::DeprecationWarning

test-newest: $(VENV)/newest/.installed
	$(VENV)/newest/bin/pytest

$(VENV)/lowest/.installed: WITH = --constraint $(VENV)/lowest/versions.txt
$(VENV)/newest/.installed: WITH = --prerelease allow
$(VENV)/lowest/.installed $(VENV)/newest/.installed: pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet uv
	$(@D)/bin/uv pip compile --quiet --no-deps --resolution lowest --extra reference --output-file $(@D)/versions.txt $<
	$(@D)/bin/uv pip install --quiet --python $(@D)/bin/python --editable ".[reference]" --group dev $(WITH)
	$(@D)/bin/uv pip install --quiet --python $(@D)/bin/python --reinstall --no-deps opencv-python-headless $(WITH)
	touch $@

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

clean:
	rm -rf $(VENV) dist build site rbk-demo
