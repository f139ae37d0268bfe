PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: setup demo test test-integration test-slow bench lint clean

setup: $(VENV)/.dev

$(VENV)/.base: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fedgloss needs Python 3.11 or newer; run make PYTHON=python3.11 ..."; exit 1; }
	@test -x $(BIN)/python || { echo "Creating $(VENV) ..."; $(PYTHON) -m venv $(VENV); }
	@echo "Installing fedgloss and what it needs (the first time downloads PyTorch) ..."
	@$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	@$(PIP) -e '.[dev]'
	@touch $@

$(VENV)/.integration: $(VENV)/.dev
	@$(PIP) -e '.[integration]'
	@touch $@

demo: $(VENV)/.base
	@$(BIN)/fedgloss compare digits --methods fedavg,fedsam,fedsmoo,fedgloss --clients sam --out runs/demo
	@$(BIN)/fedgloss report runs/demo --out runs/demo/report.html

lint: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

test: lint
	@$(BIN)/pytest -n 2 -m "not integration and not slow"

test-integration: $(VENV)/.integration
	@bash scripts/integration-setup.sh
	@$(BIN)/pytest -m "integration and not slow" tests

test-slow: $(VENV)/.integration
	@bash scripts/integration-setup.sh
	@$(BIN)/pytest -m slow tests

bench: $(VENV)/.dev
	@$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist
