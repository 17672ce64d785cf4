# Every habit of the project; `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help chat test check bench model clean train-env

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TRAIN_VENV := .venv-train
TRAIN_BIN := $(TRAIN_VENV)/bin
# Training at its smallest, as the tests do, needs models/training/requirements.txt only.
TRAIN_REQUIREMENTS ?= models/training/requirements-corpus.txt
WORK := models/training/output

# Linux brings no MLX backend of its own: take the CPU's, unless EXTRA names another (cuda13).
ifeq ($(shell uname -s),Linux)
EXTRA ?= cpu
endif
comma := ,
EXTRAS := [dev$(if $(EXTRA),$(comma)$(EXTRA))]

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# A stamp, so that everything after the first time starts at once.
$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "akunu_py needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.$(EXTRAS)'
	@touch $@

$(TRAIN_VENV)/.ready: $(TRAIN_REQUIREMENTS) models/training/requirements.txt
	$(PYTHON) -m venv $(TRAIN_VENV)
	$(TRAIN_BIN)/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

chat: $(VENV)/.ready ## a conversation with the bundled model, or MODEL=folder-or-hub-name
	@$(BIN)/python -m akunu_py chat $(if $(MODEL),--model $(MODEL))

# A process for each core; ARGS="-n 0" runs all in one.
test: $(VENV)/.ready ## the test suite
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal $(ARGS)

check: $(VENV)/.ready ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(VENV)/.ready ## the measurements of docs/measurements.md, into benchmarks/results/
	AKUNU_BLAS=none $(BIN)/python -m benchmarks.identity --weights quantized --max-tokens 16 --name identity_quantized
	$(BIN)/python -m benchmarks.identity --weights dense --drafters auto ngram --name identity_dense
	$(BIN)/python -m benchmarks.identity --weights dense --drafters all --exact --max-tokens 16 --name identity_drafters
	$(BIN)/python -m benchmarks.exact
	$(BIN)/python -m benchmarks.kv_cache_capacity
	$(BIN)/python -m akunu_py bench cost --json > benchmarks/results/cost.json
	$(BIN)/python -m benchmarks.records cost
	$(BIN)/python -m akunu_py bench speedup --prompts 6 --rounds 2 --json > benchmarks/results/speedup.json
	$(BIN)/python -m benchmarks.records speedup
	$(BIN)/python -m akunu_py bench speedup --workloads question novel --drafter auto --num-draft-tokens auto --prompts 6 --rounds 6 --json > benchmarks/results/speedup_unrepeated.json
	$(BIN)/python -m benchmarks.records speedup_unrepeated
	$(BIN)/python -m benchmarks.drafter_cost
	$(BIN)/python -m benchmarks.sampling_cost
	$(BIN)/python -m benchmarks.serving
	$(BIN)/python -m benchmarks.serving_load
	$(BIN)/python -m benchmarks.serving_load --parallel 1 --name serving_load_one
	$(BIN)/python -m benchmarks.serving_in_company
	$(BIN)/python -m benchmarks.prefill_step

model: $(VENV)/.ready $(TRAIN_VENV)/.ready ## a model like the bundled one, trained from nothing (days on two CPU cores; on an NVIDIA GPU if there is one; resumable)
	$(TRAIN_BIN)/python -m models.training --work $(WORK) --export-with $(BIN)/python
	$(BIN)/python -m benchmarks.evaluate_model --full $(WORK)/full

train-env: $(TRAIN_VENV)/.ready ## the environment that `make model` trains in (PyTorch)

clean: ## everything that was made, the environments included
	rm -rf $(VENV) $(TRAIN_VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
