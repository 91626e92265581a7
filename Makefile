# Everything from nothing, on a machine with Python 3.11 and make.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
FAULTS ?= faults
PYTHONS ?= $(PYTHON)

.PHONY: demo test faults faults-sample guard check format site viewer package clean

demo: $(INSTALLED)
	$(BIN)/anofpdm demo --out demo

test: $(INSTALLED)
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --durations=20

faults: $(INSTALLED) # kills, full disks, bad files, on Linux; about an hour
	$(BIN)/python -m pytest -rs $(FAULTS)

faults-sample: $(INSTALLED) # a seeded sample of each part, some minutes
	$(BIN)/python -m pytest -rs $(FAULTS) --sample -n 2 --dist loadfile

guard: $(INSTALLED) # fails if something became slower; ratios within one run
	$(BIN)/python benchmarks/guard.py

viewer: $(INSTALLED) # niivue, for view and serve; needs npm
	$(BIN)/anofpdm serve --set-up

site: $(INSTALLED) # the documentation as a web site: open site/index.html
	$(BIN)/python -m mkdocs build --strict

package: # wheel and sdist into dist/, checked, and run in new environments with each of PYTHONS
	.ci/package $(PYTHONS)

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'Python 3.11 or newer is needed: make PYTHON=python3.11')"
	$(PYTHON) -m venv .venv
	PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install -q -e '.[dev]'
	touch $@

clean:
	rm -rf .venv demo site
