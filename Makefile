# Two commands do everything on a fresh machine: make profile, make test. CI runs make test-long as well.
PYTHON ?= python3
VENV := .venv
CUDA12 := .venv-cuda12
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The tests run in seven parts, some at a time, the longest first; each on one thread, for threads of two processes on the
# same cores wait for each other (where a test asks for two, they sleep). A part's output comes when it has ended; all are
# run, whichever fails.
FIRST := $(addprefix tests/,slurm verification report)
SECOND := $(addprefix tests/,storage selection training cli conv3d)
THIRD := tests/kernels
FOURTH := $(addprefix tests/,prediction dataset cluster)
FIFTH := tests/inference
SIXTH := $(filter-out tests/test_shell_blocks.py,$(wildcard tests/test_*.py))
PARTS := part-second part-third part-rest part-fourth part-first part-fifth part-sixth
SIDE_BY_SIDE := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(MAKE) --keep-going --output-sync=target
# Python may keep its bytecode, whatever the caller says: else every process that imports PyTorch compiles for 10 s.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: profile test test-long rest $(PARTS) mutants slurm browser site lint resolve cuda12 gpu-test clean

profile: $(READY)  ## the main job on the CPU: AlexNet, direct, one input size
	$(BIN)/python run_profile.py --model alexnet --algorithm direct --test --device cpu

test: $(READY)  ## the tests that need no GPU, but for the long ones
	$(SIDE_BY_SIDE) --jobs=4 $(PARTS)

test-long: $(READY)  ## the long ones, and those with drawn examples again with all their examples
	$(SIDE_BY_SIDE) --jobs=4 $(PARTS) SELECTED='-m long'

rest: $(READY)  ## all that CI runs besides: the long tests, those with the pins for CUDA 12, the pins, linters, the site
	$(SIDE_BY_SIDE) --jobs=6 cuda12 $(PARTS) resolve lint site SELECTED='-m long'

part-first: FOLDERS := $(FIRST)
part-second: FOLDERS := $(SECOND)
part-third: FOLDERS := $(THIRD)
part-fourth: FOLDERS := $(FOURTH)
part-fifth: FOLDERS := $(FIFTH)
part-sixth: FOLDERS := $(SIXTH)
part-rest: FOLDERS := $(addprefix --ignore=,$(FIRST) $(SECOND) $(THIRD) $(FOURTH) $(FIFTH) $(SIXTH))

$(PARTS): $(READY)
	$(BIN)/python -m pytest --durations=5 $(SELECTED) $(FOLDERS)

gpu-test: $(READY)  ## the tests that need an NVIDIA GPU: JOBS=6 at a time on all GPUs, then one by one those that need a card alone
	OMP_NUM_THREADS=2 $(BIN)/python -m pytest -m 'gpu and not quiet' --numprocesses=$(or $(JOBS),6) --durations=10; \
	first=$$?; $(BIN)/python -m pytest -m 'gpu and quiet' --durations=10 && exit $$first

mutants: $(READY)  ## small changes that tests must notice: MODULES="power/energy", SAMPLE=40 of each, SEED=0 (docs/mutants.md)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[mutants]'
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutants.py $(addprefix --sample=,$(SAMPLE)) $(addprefix --seed=,$(SEED)) $(MODULES)

slurm:  ## a SLURM for tests/slurm, unpacked into .slurm/ where the system has none; nothing of the system is changed
	tests/slurm/install.sh

browser:  ## a Chromium for tests/report, from Debian's packages, where there is none and it can be installed
	tests/report/install.sh

site: $(READY)  ## the documents as a site, in site/; fails at a page that is not current, a broken link or any other warning
	$(BIN)/python docs/generate.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/shellcheck -x *.sh slurm/*.sh tests/slurm/*.sh tests/report/*.sh benchmarks/*.sh .ci/run

resolve: $(READY)  ## the pins fit together on every Python that the project is for; installs nothing
	for pins in constraints.txt constraints-cuda12.txt; do for version in 3.10 3.11 3.12 3.13; do \
	    $(BIN)/uv pip compile --quiet --python-version $$version --constraint $$pins --extra dev pyproject.toml >/dev/null || exit; \
	done; done

cuda12: $(CUDA12)/.ready  ## the tests of what depends on PyTorch and cuDNN, with the pins for CUDA 12, in an environment of its own
	OMP_NUM_THREADS=1 $(CUDA12)/bin/python -m pytest $(addprefix tests/,cudnn convolution timing pinning profiling/test_run_profile.py profiling/test_sweep.py)

$(CUDA12)/.ready: $(READY) pyproject.toml setup.py constraints-cuda12.txt
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(CUDA12)
	$(BIN)/uv pip install --quiet --python $(CUDA12)/bin/python --constraint constraints-cuda12.txt --editable '.[dev]'
	touch $@

$(READY): pyproject.toml setup.py constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -c 'import profiler, run_profile'  # writes PyTorch's bytecode, once
	touch $@

clean:
	rm -rf $(VENV) $(CUDA12) .slurm site
