# Every habit of the project; `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help chat test test-metal check bench model clean train-env

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TRAIN_VENV := .venv-train
TRAIN_BIN := $(TRAIN_VENV)/bin
# Training at its smallest, as the tests do, needs models/training/requirements.txt only.
TRAIN_REQUIREMENTS ?= models/training/requirements-corpus.txt
WORK := models/training/output

# EXTRA=cuda13 for an NVIDIA GPU.
INSTALL := $(BIN)/pip install --disable-pip-version-check -c constraints.txt -e

help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-12s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Stamps, so that everything after the first time starts at once.
$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "akunu_py needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.$(if $(EXTRA),[$(EXTRA)])'
	@touch $@

$(VENV)/.dev: $(VENV)/.ready
	$(INSTALL) '.[dev]'
	@touch $@

$(TRAIN_VENV)/.ready: $(TRAIN_REQUIREMENTS) models/training/requirements.txt
	$(PYTHON) -m venv $(TRAIN_VENV)
	$(TRAIN_BIN)/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

chat: $(VENV)/.ready ## a conversation with the bundled model, or MODEL=folder-or-hub-name
	@$(BIN)/python -m akunu_py chat $(if $(MODEL),--model $(MODEL))

# A process for each core; ARGS="-n 0" runs all in one. Byte code is kept even where the environment
# says otherwise: dozens of processes would compile everything again.
test: $(VENV)/.dev ## the test suite
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal $(ARGS)

# The parts that depend on the device, again: the package believes in an Apple chip. See
# tests/metal.py.
METAL_TESTS := tests/test_devices.py tests/test_machine.py tests/test_engine.py tests/calibration \
	tests/sampling tests/cache/test_quantized.py tests/cli/test_doctor.py tests/cli/test_serve.py \
	tests/decoding/test_loop.py tests/decoding/test_batch.py tests/drafting/test_draft_model.py \
	tests/server/test_ollama.py
test-metal: $(VENV)/.dev ## the tests that depend on the device, on a simulated Metal
	AKUNU_TESTS=metal $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal $(METAL_TESTS) $(ARGS)

check: $(VENV)/.dev ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Every record in benchmarks/results/, those that take long last; times are of two idle cores, about.
# DATA names a folder with the public data sets of benchmarks/replay_data.py; without it, the records
# that need it are left out. A script alone: its docstring has the options, --quick among them.
BENCH := $(BIN)/python -m benchmarks
bench: $(VENV)/.dev ## every measurement, into benchmarks/results/ (about four hours)
	$(BENCH).draw chat  # 10 s
	$(BENCH).draw edit  # 30 s
	$(BENCH).records cost  # 1 min
	AKUNU_BLAS=none $(BENCH).identity --name identity_quantized --weights quantized --max-tokens 16  # 3 min, reference BLAS
	$(BENCH).identity --name identity_drafters --drafters all --exact --max-tokens 16  # 5 min
	$(BENCH).identity --name identity_dense --weights dense --drafters auto ngram  # 5 min
	$(BENCH).identity --name identity_heads --weights dense --drafters auto head  # 6 min
	$(BENCH).sampling_cost  # 2 min
	$(BENCH).drafter_cost  # 3 min
	$(BENCH).heads acceptance  # 2 min
	$(BENCH).heads draft_model  # 6 min
	$(BENCH).serving cost  # 3 min
	$(BENCH).serving company  # 2 min
	$(BENCH).serving load  # 5 min
	$(BENCH).serving load --parallel 1 --name serving_load_one  # 4 min
	$(BENCH).random_model $(WORK)/hybrid --shape hybrid
	$(BENCH).serving load --model $(WORK)/hybrid --name serving_load_hybrid  # 5 min
	$(BENCH).exact simulate  # 15 min
	$(BENCH).exact here  # 5 min
	$(BENCH).project_memory --live  # 5 min
	$(BENCH).learnt_costs  # 1 min
	$(BENCH).batched  # 15 min
	$(BENCH).batched --name batched_kinds --models qwen3_5 gemma3_text deepseek_v3 qwen3_moe --repeats 3 --tokens 48  # 20 min
	$(BENCH).hostile  # 8 min
	$(BENCH).cache_kinds  # 15 min
	$(BENCH).random_model $(WORK)/m109
	$(BENCH).records speedup --name speedup_109m --model $(WORK)/m109 --workloads edit question novel --answers forced --prompts 3 --rounds 2 --drafter auto --num-draft-tokens auto  # 15 min
	$(BENCH).records speedup --answers own --drafter auto copies head --num-draft-tokens auto --prompts 6 --rounds 6  # 20 min
	$(BENCH).records speedup --name speedup_forced --answers forced --drafter auto copies --num-draft-tokens auto --prompts 6 --rounds 2  # 8 min
ifneq ($(DATA),)
	$(BENCH).seeds --text $(DATA)/tinyshakespeare/input.txt --plot benchmarks/results/seeds.svg > benchmarks/results/seeds.md  # 10 min
	$(BENCH).project_memory --data $(DATA) --fit  # 15 min
	$(BENCH).evaluate_model --data $(DATA)  # 20 min
	$(BENCH).fit_expectations --data $(DATA)  # 1 min
	$(BENCH).ablation --data $(DATA)  # 7 min
	$(BENCH).replay_drafters --data $(DATA)  # 4 min
	$(BENCH).heads simulation --data $(DATA)  # 2 min
	$(BENCH).edits --data $(DATA)  # 5 min
	$(BENCH).edits --data $(DATA) --requests --name edits_requests  # 5 min
endif

model: $(VENV)/.dev $(TRAIN_VENV)/.ready ## a model like the bundled one, trained from nothing (days on two CPU cores; on an NVIDIA GPU if there is one; resumable)
	$(TRAIN_BIN)/python -m models.training --work $(WORK) --export-with $(BIN)/python
	$(BIN)/python -m benchmarks.evaluate_model --full $(WORK)/full

train-env: $(TRAIN_VENV)/.ready ## the environment that `make model` trains in (PyTorch)

clean: ## everything that was made, the environments included
	rm -rf $(VENV) $(TRAIN_VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
