# Each target works alone on a fresh machine with Python 3.11, make and the package index.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
READY := $(VENV)/.ready

.PHONY: venv run check test storm bench proto clean
.DELETE_ON_ERROR:

venv: $(READY)

# -c keeps every version at its pin; only what pyproject.toml names and what that needs is installed.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

# The main job: three replica groups of two ranks, one killed every 15 s or so.
run: $(READY)
	$(BIN)/python -m train.local --groups 3 --ranks 2 --kill-every 15

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m protos.generate --check

# Most clusters are tested one after the other: they need the cores to themselves.
test: $(READY)
	$(BIN)/python -m pytest -m "not storm and (tolerant or not e2e)" -n 2 --dist loadfile
	$(BIN)/python -m pytest -m "not storm and e2e and not tolerant"

# Minutes of kills of everything; STORM_S is how long one storm lasts.
storm: $(READY)
	$(BIN)/python -m pytest -m storm -s tests/storm tests/e2e

# Side by side with the peers, in the same run.
bench: $(READY)
	for each in tests/bench/bench_*.py; do $(BIN)/python $$each || exit 1; done

proto: $(READY)
	$(BIN)/python -m protos.generate

clean:
	rm -rf $(VENV) build *.egg-info
