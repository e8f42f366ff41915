# `make demo` and `make test` set up .venv by themselves; everything else builds on it.
PYTHON ?= python3
OUT ?= gpu-check
BIN := .venv/bin

# Two threads that spin while they wait for each other are slower than two that sleep.
export OMP_WAIT_POLICY ?= passive

.PHONY: demo test lint bench compile-check gpu-check train clean

demo: .venv/.stamp  ## write three functions with and without CoDiLA, and run them
	$(BIN)/python -m codila.demo

test: .venv/.stamp  ## the whole suite, kernels in the interpreter and compiled ahead of time too
	$(BIN)/python -m pytest

lint: .venv/.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/.stamp  ## the plot of the README, in minutes
	$(BIN)/python -m benchmarks.pareto --pair tiny --quick --json pareto-quick.json

compile-check: .venv/.stamp  ## every kernel, every config, every chip: registers, spills, memory
	$(BIN)/python -m codila_kernels.aot

gpu-check:  ## on a machine with a GPU: its tests and the benchmark, into OUT; installs nothing
	$(PYTHON) -m benchmarks.gpu_check $(OUT)

train: .venv/.stamp  ## the bundled pair again, from scratch (hours on two cores)
	$(BIN)/codila train dlm --config tiny --output runs/dlm
	$(BIN)/codila train ar --config tiny --output runs/ar --set dlm=runs/dlm/dlm

.venv/.stamp: setup.py constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and \
	  "codila needs Python >= 3.11, %s is %d.%d: make PYTHON=python3.12" % (sys.executable, *v[:2]))'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
