# Everything runs in .venv, made here from the pinned versions in requirements/.
# Needed: Python 3.11 (or 3.12) with venv, make, and pip's way to the packages.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-build-isolation
LOCKS := $(patsubst %/truth.csv,%/automap.lock,$(wildcard fixtures/*/truth.csv))

.PHONY: help demo test lint types locks ci relock peers scale faults cost convert training live transforms clean

help:
	@echo "make demo    infer, convert, load and prove the mapping of fixtures/efficientnet"
	@echo "make test    the test suite"
	@echo "make ci      what CI runs: lint, types, tests, the fixtures' locks"
	@echo "make relock  infer and validate the fixtures anew, and accept the result"
	@echo "make scale   time and memory from 1,000 to 100,000 parameters"
	@echo "make faults  faults planted in correct ports, and how many of them automap names"
	@echo "make cost    time and memory of inference with proof, on networks of 50 million parameters"
	@echo "make transforms  time and memory of applying transforms to tensors of 64 MB"
	@echo "make convert conversion of 8 GB beside cp, and conversions that are killed (benchmarks/convert.py, kills.py)"
	@echo "make training  images per second of MindSpore's low-level and high-level training API"
	@echo "make live PAIRS=FOLDER    inference with proof on pairs of live networks (benchmarks/live.py says the format)"
	@echo "make peers PAIRS=FOLDER   automap beside its peers on pairs of listings (benchmarks/peers.py says the format)"

demo: .venv/demo.installed
	@$(BIN)/python fixtures/efficientnet/demo.py

test: .venv/dev.installed
	$(BIN)/python -m pytest -n 2

lint: .venv/dev.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/dev.installed
	$(BIN)/mypy

# The regression check: a test for each fixture's lock. A fixture without its lock fails.
locks: .venv/dev.installed
	$(BIN)/python -m pytest fixtures $(LOCKS:%=--automap-lock %)

ci:
	.ci/run

# Exit status 1 only says that entries are marked for review, which the lock keeps.
relock: .venv/dev.installed
	$(BIN)/automap infer $(patsubst %,fixtures/efficientnet/%:build,build_torch.py port.py) \
	  --input 'float32[2,3,64,64]' --lock fixtures/efficientnet/automap.lock || test $$? -eq 1
	$(BIN)/automap infer $(patsubst %,fixtures/transformer/%:build,torch_net.py ms_net.py) \
	  --input 'int64[2,16]<101' --lock fixtures/transformer/automap.lock || test $$? -eq 1
	$(BIN)/automap infer $(patsubst %,fixtures/recurrent/%:build,torch_net.py ms_net.py) \
	  --input 'float32[2,6,32]' --lock fixtures/recurrent/automap.lock || test $$? -eq 1
	$(BIN)/automap infer $(patsubst %,fixtures/resnet_cifar10/%:build,torch_net.py ms_net.py) \
	  --input 'float32[2,3,32,32]' --lock fixtures/resnet_cifar10/automap.lock || test $$? -eq 1

scale: .venv/dev.installed
	$(BIN)/python benchmarks/scale.py

faults: .venv/dev.installed
	$(BIN)/python benchmarks/faults.py

cost: .venv/dev.installed
	$(BIN)/python benchmarks/cost.py

transforms: .venv/dev.installed
	$(BIN)/python benchmarks/transforms.py

convert: .venv/dev.installed
	$(BIN)/python benchmarks/convert.py
	$(BIN)/python benchmarks/kills.py

training: .venv/dev.installed
	$(BIN)/python benchmarks/training.py

# The pairs come from packages of their own: LIVE_PYTHON is one that has them, beside both frameworks and automap.
LIVE_PYTHON ?= $(BIN)/python
live: .venv/dev.installed
	$(LIVE_PYTHON) benchmarks/live.py $(PAIRS)

peers: .venv/dev.installed .venv-peers/installed
	$(BIN)/python benchmarks/peers.py --peers-python .venv-peers/bin/python $(PAIRS)

clean:
	rm -rf .venv .venv-peers demo-output

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)) \
	  and "The pinned versions are for Python 3.11 and 3.12, $(PYTHON) is %d.%d: make PYTHON=python3.11 ..." % sys.version_info[:2])'
	@$(PYTHON) -m venv .venv

.venv/%.installed: requirements/%.txt requirements/build.txt requirements/demo.txt pyproject.toml | .venv/bin/python
	@echo "Installing the pinned packages into .venv (only this once; a minute or two) ..."
	@$(PIP) -r requirements/build.txt
	@$(PIP) -r $< -e .
	@touch $@

.venv-peers/installed: benchmarks/requirements-peers.txt
	@echo "Installing the peers into .venv-peers ..."
	@$(PYTHON) -m venv .venv-peers
	@.venv-peers/bin/python -m pip install -qq --disable-pip-version-check -r $<
	@touch $@
