# make demo   set up and watch reinforcement learning work on this machine (no GPU needed)
# make test   set up and run the tests
# make parity compare losses, advantages and corrections with trl, verl, areal, skyrl and openrlhf (docs/parity.md)
# make setup  the set-up alone: .venv/ filled by uv from requirements.lock
PYTHON ?= python3
VENV := .venv
UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
PY := $(VENV)/bin/python
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test parity setup lint lock clean

demo: setup
	$(VENV)/bin/kernelmill demo

test: setup
	$(PY) -m pytest tests

parity: setup
	$(PY) -m tests.parity

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(PY) -m mypy core bus

setup: $(VENV)/.ready

$(VENV)/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "KernelMill needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12"; exit 2; }
	@test -x "$(UV)" || command -v uv >/dev/null || { $(PYTHON) -m venv .uv && .uv/bin/python -m pip install --quiet uv; }
	test -x $(PY) || $(UV) venv --quiet --python $(PYTHON) $(VENV)
	$(UV) pip install --quiet --python $(PY) --require-hashes -r requirements.lock
	$(UV) pip install --quiet --python $(PY) --no-deps --no-build-isolation --config-setting editable_mode=compat -e .
	@# Compile what every actor imports, once: it takes a second off the start of each process.
	$(PY) -m core.warm
	touch $@

# Names, versions and hashes; no addresses.
lock:
	$(UV) pip compile pyproject.toml --extra dev --generate-hashes --python-version 3.11 \
		--python-platform x86_64-manylinux_2_28 --constraint <(echo torch==2.13.0) --no-header --no-annotate \
		--output-file requirements.lock
lock: SHELL := /bin/bash

clean:
	rm -rf $(VENV) .uv
