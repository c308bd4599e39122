# make demo    set up and run the main job
# make test    set up and run the tests (a few minutes on two cores)
# make check   format, lint, types and the fast tests
# make bench   side-by-side timings, printed as ratios
# make docs    docs/reference.md from the docstrings
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test test-all check format bench docs clean

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt torch
	$(BIN)/pip install --quiet -c constraints.txt --editable ".[dev]"
	touch $@

demo: $(STAMP)
	$(BIN)/aleator quickstart --output aleator-quickstart-$$(date +%Y%m%d-%H%M%S)

# Two processes of one thread each: threads that wait for each other are slower than none.
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "not slow" -n 2

test-all: $(STAMP)
	$(BIN)/python -m pytest -q --hypothesis-profile exploring

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "not slow" -n 2

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)
	$(BIN)/python -m benchmarks

docs: $(STAMP)
	$(BIN)/python docs/reference.py

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
