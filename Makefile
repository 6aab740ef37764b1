# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3.12
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-$(shell cat pyproject.toml constraints.txt | cksum | cut -d' ' -f1)

.PHONY: demo test test-all lint install clean
.DELETE_ON_ERROR:

demo: $(STAMP)
	$(BIN)/torchrun --standalone --nproc-per-node 4 launch/run.py --scenario scenarios/quickstart

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow and not gpu"

test-all: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

install: $(STAMP)

$(STAMP):
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test,browser]'
	rm -f $(VENV)/.installed-*
	touch $@

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
