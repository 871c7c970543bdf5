# Two commands on a fresh machine without a GPU: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
WHEEL   = build/wheel

.PHONY: install demo test test-long check format generate wheels artifacts gpu clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[cuda12,dev]'
	touch $@

# Build the shipped library, show what dispatches where and why, run one boundary on the CPU.
demo: install
	$(BIN)/kernwright build
	$(BIN)/kernwright explain sm70-fp16-hc4-h2560-n1
	$(BIN)/kernwright explain sm90-fp16-hc4-h2560-n1
	$(BIN)/python examples/boundary.py

test: install
	$(BIN)/python -m pytest -m "not long" -n 2 --dist loadfile

test-long: install
	$(BIN)/python -m pytest -m "long" -n 2

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf build dist && mkdir -p $(WHEEL)
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	$(BIN)/python -m zipfile -e dist/kernwright-*.whl $(WHEEL)
	cd $(WHEEL) && $(abspath $(BIN))/mypy --config-file $(abspath pyproject.toml) -p kernwright
	PYTHONPATH=$(WHEEL) $(BIN)/lint-imports --config pyproject.toml --no-cache
	$(BIN)/kernwright generate --check

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

generate: install
	$(BIN)/kernwright generate

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
