# Every target makes its own environment in .venv if it is missing or out of date, and reuses it otherwise.
#   make demo         watch the method work          make test        the fast suite
#   make check        ruff and pyright               make test-slow   the tests that take minutes
#   make docs         the documentation, into docs/_build/html
#   make fruitbot-demo  clone FruitBot's demonstrators from pixels     make test-fruitbot  the tests that need psiphi[fruitbot]
# Another Python (3.11 or newer) can be named: make test PYTHON=/path/to/python3

PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$python; break; }; done)
PYTEST_ARGS ?= -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

BIN := .venv/bin
# Worlds whose rewards are known, for tests and benchmarks. Without its dependencies: it asks for pygame, whose files are those of the
# pygame-ce that highway-env and minigrid ask for; all else that it needs is there.
MO_GYMNASIUM := mo-gymnasium==1.3.2

.PHONY: demo test test-slow check docs format clean fruitbot-demo test-fruitbot
.DELETE_ON_ERROR:

demo: .venv/run.stamp
	$(BIN)/psiphi demo

# Bytecode is kept, whatever the environment says: checked modules are rewritten when they are imported, which takes seconds.
test test-slow: export PYTHONDONTWRITEBYTECODE :=
test: .venv/test.stamp
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-slow: .venv/test.stamp
	$(BIN)/python -m pytest -m slow

test-fruitbot: .venv/fruitbot.stamp
	$(BIN)/python -m pytest tests/test_fruitbot.py

fruitbot-demo: .venv/fruitbot.stamp
	$(BIN)/psiphi train bc --env fruitbot --episodes 24 --updates 2000 --out runs/fruitbot-demo
	$(BIN)/psiphi evaluate runs/fruitbot-demo --episodes 16
	$(BIN)/psiphi watch runs/fruitbot-demo --agent fruits-and-objects

check: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

docs: .venv/docs.stamp
	$(BIN)/python -m pytest -q tests/test_docs.py
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "The documentation is in docs/_build/html/index.html"

format: .venv/dev.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis dist

# One stamp per set of dependencies, so that the demo need not wait for the tools of the developers.
.venv/run.stamp: EXTRA :=
.venv/test.stamp: EXTRA := [test]
.venv/dev.stamp: EXTRA := [dev]
.venv/docs.stamp: EXTRA := [docs]
.venv/fruitbot.stamp: EXTRA := [test,fruitbot]
.venv/run.stamp .venv/test.stamp .venv/dev.stamp .venv/docs.stamp .venv/fruitbot.stamp: pyproject.toml constraints.txt $(BIN)/python
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip --upgrade --default-pip
	@echo "Installing psiphi$(EXTRA) into .venv (some minutes the first time) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.$(EXTRA)'
	@$(if $(EXTRA),$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(MO_GYMNASIUM))
	@touch $@

$(BIN)/python:
	@python='$(PYTHON)'; \
	[ -n "$$python" ] || { \
		echo "psiphi needs Python 3.11 or newer, but none of python3, python3.13, python3.12, python3.11 is one" \
			"(python3 is: $$(python3 --version 2>&1)); install one or name it: make PYTHON=/path/to/python3" >&2; exit 1; }; \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "psiphi needs Python 3.11 or newer, but $$python is: $$("$$python" --version 2>&1)" >&2; exit 1; }; \
	for module in venv ensurepip; do "$$python" -c "import $$module" 2>/dev/null || { \
		echo "$$python lacks the standard library's module $$module" \
			"(on Debian and Ubuntu it comes with the package python3-venv)" >&2; exit 1; }; done; \
	"$$python" -m venv .venv
