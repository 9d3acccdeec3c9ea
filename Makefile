# Two commands are enough: `make book` builds the book, `make test` proves it.
# Each makes .venv first, when it is missing or older than requirements.txt.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready
NB ?=
TEST := $(BIN)/python -m pytest --numprocesses 2 --dist loadfile

.PHONY: book test lab check bench notebooks setup fmt lint types clean

book: $(READY)
	$(BIN)/jupyter-book build . --all -W -n --keep-going --quiet
	@$(BIN)/python -c "import pathlib; print('\nThe book is ready. Open', pathlib.Path('_build/html/index.html').resolve().as_uri())"

test: $(READY)
	$(TEST)

lab: $(READY)
	$(BIN)/jupyter lab

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(TEST)

bench: $(READY)
	$(BIN)/python -m tests.bench

notebooks: $(READY)
	$(BIN)/python book/_tools/execute_notebooks.py $(NB)

fmt: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

setup: $(READY)

$(READY): requirements.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $(READY)

clean:
	rm -rf _build build *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
	find . -name .ipynb_checkpoints -not -path './.venv/*' -prune -exec rm -rf {} +
