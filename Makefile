# Two commands do everything on a fresh machine: make profile, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The tests run in three parts at a time, of which one mostly waits; each on one thread, for threads of two processes on
# the same cores wait for each other. A part's output comes when it has ended; all are run, whichever fails.
# These are the files whose tests take about as long as all the others together.
LONG := $(addprefix tests/test_,kill.py run_inference.py run_training.py storage.py)
# Python may keep its bytecode, whatever the caller says: else every process that imports PyTorch compiles for 10 s.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: profile test test-slurm test-long test-rest slurm lint gpu-test clean

profile: $(READY)  ## the main job on the CPU: AlexNet, direct, one input size
	$(BIN)/python run_profile.py --model alexnet --algorithm direct --test --device cpu

test: $(READY)  ## all tests that need no GPU, in three parts side by side
	OMP_NUM_THREADS=1 $(MAKE) --jobs=3 --keep-going --output-sync=target test-slurm test-long test-rest

test-slurm: $(READY)  ## a part of them: those that mostly wait for a queue
	$(BIN)/python -m pytest --durations=5 tests/slurm

test-long: $(READY)  ## another part
	$(BIN)/python -m pytest --durations=10 $(LONG)

test-rest: $(READY)  ## the others
	$(BIN)/python -m pytest --durations=10 $(addprefix --ignore=,tests/slurm $(LONG))

gpu-test: $(READY)  ## the tests that need an NVIDIA GPU
	$(BIN)/python -m pytest -m gpu

slurm:  ## a SLURM for tests/slurm, unpacked into .slurm/ where the system has none; nothing of the system is changed
	tests/slurm/install.sh

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/shellcheck -x *.sh slurm/*.sh tests/slurm/*.sh benchmarks/*.sh .ci/run

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .slurm
