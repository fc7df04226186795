# Every target that needs Python makes .venv by itself; a second run finds it and starts at once.

PRESET ?= cpu
DEMO_DIR ?= demo
# Empty for CPU; cuda, cuda13 or tpu to add that kind of JAX to .venv.
ACCELERATOR ?= $(if $(filter gpu,$(PRESET)),cuda)
# Further arguments for pytest, e.g. ARGS='tests/metrics -k bootstrap', or of benchmarks/quality.py, e.g. ARGS=--models=ar,padir.
ARGS ?=
# Test processes at once; each needs up to 3 GB. A test file is run by one of them.
JOBS ?= 2

INSTALLED := .venv/.installed $(if $(ACCELERATOR),.venv/.installed-$(ACCELERATOR))

export TF_CPP_MIN_LOG_LEVEL ?= 2
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo test docs figures quality benchmark check-data lint wheel clean

help: ## list the targets
	@echo "usage: make TARGET [VARIABLE=VALUE ...]"; echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo; echo "variables: PYTHON, DEMO_DIR, DATA, PRESET=cpu|gpu, REVERSE=1, ACCELERATOR=cuda|cuda13|tpu, ARGS, JOBS"

install: $(INSTALLED) ## make .venv with everything that padir needs (ACCELERATOR for a GPU or TPU)

demo: $(INSTALLED) ## teacher, distillation, student, comparison on the embedded language pair (DEMO_DIR)
	.venv/bin/padir demo --output_dir "$(DEMO_DIR)"

test: $(INSTALLED) ## run the tests (ARGS goes to pytest; all of them with ARGS=--slow)
	.venv/bin/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

quality: check-data $(INSTALLED) ## PaDIR, its teacher and its rivals on real text (DATA=folder PRESET=cpu|gpu REVERSE=1)
	.venv/bin/python benchmarks/quality.py --data "$(DATA)" --preset "$(PRESET)" $(if $(REVERSE),--reverse) $(ARGS)

NTREX_SYSTEMS = [@greedy/System(), @beam/System(), @deep_greedy/System(), @one/System(), @System(), \
  @candidates/active/System(), @candidates/five/active/System(), @greedy/int8/System(), @beam/int8/System(), \
  @deep_greedy/int8/System(), @int8/System(), @candidates/five/active/int8/System()]
THROUGHPUT_SYSTEMS = [@greedy/System(), @beam/System(), @one/System(), @System(), @candidates/System(), \
  @candidates/active/System(), @greedy/int8/System(), @int8/System()]

benchmark: $(INSTALLED) ## latency, throughput, roofline at paper size into benchmarks/results (DATA=folder of ntrex: its lengths, too)
	.venv/bin/padir benchmark roofline --gin_file=bench/paper.gin --output=benchmarks/results/roofline_$(PRESET).json
	.venv/bin/padir benchmark latency --gin_file=bench/paper.gin --gin_file=bench/fixed_32.gin \
	  --output=benchmarks/results/latency_$(PRESET).json --repeats=15
	$(if $(DATA),.venv/bin/padir benchmark latency --gin_file=bench/paper.gin --gin_file=bench/lengths.gin \
	  --gin.SOURCES="'$(DATA)/test.de.gz'" --gin.REFERENCES="'$(DATA)/test.en.gz'" \
	  --gin.SYSTEMS="$(NTREX_SYSTEMS)" --gin.Refinement.target_buckets="(32, 64, 96)" \
	  --gin.ParallelText.num_requests=60 --repeats=1 --output=benchmarks/results/latency_ntrex_$(PRESET).json)
	.venv/bin/padir benchmark throughput --gin_file=bench/paper.gin --gin_file=bench/fixed_32.gin \
	  --gin.benchmark_throughput.systems="$(THROUGHPUT_SYSTEMS)" \
	  --gin.benchmark_throughput.batch_sizes="(1, 4, 16, 64)" \
	  --output=benchmarks/results/throughput_$(PRESET).json --repeats=2

docs: $(INSTALLED) ## build the documentation into docs/_build/html, strictly: every warning is an error
	.venv/bin/python -m sphinx --fail-on-warning --keep-going --jobs 1 docs docs/_build/html

figures: $(INSTALLED) ## write README.md and docs/results from their templates and benchmarks/results
	.venv/bin/python docs/figures.py

# Before anything is installed.
check-data:
	@test -n "$(DATA)" || { echo "error: name the data folder: make quality DATA=FOLDER PRESET=cpu, where FOLDER has {train,valid}.{de,en}.gz" >&2; exit 2; }
	@case "$(PRESET)" in cpu|gpu) ;; *) echo "error: PRESET=$(PRESET) is neither cpu nor gpu" >&2; exit 2;; esac
	@test -d "$(DATA)" || { echo "error: DATA=$(DATA) is not a folder" >&2; exit 2; }

lint: $(INSTALLED) ## check style with ruff
	.venv/bin/ruff check .

# build/ is removed first: setuptools would pack files that a former build left there.
wheel: $(INSTALLED) ## build dist/padir-*.whl
	rm -rf build
	.venv/bin/python -m build --wheel --no-isolation
	rm -rf build

clean: ## remove build output and caches (not .venv, demo/, runs/ or report/)
	rm -rf build dist padir.egg-info docs/_build docs/reference/generated .pytest_cache .ruff_cache .hypothesis
	find padir tasks tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# PYTHON may be set by the user; otherwise the first of these that runs and is new enough. (A name on the
# path is not proof that it runs: pyenv leaves shims for versions that are not selected.)
# The pins of constraints.txt are for Python 3.11; newer Pythons get the JAX that padir supports there.
# Without editable_mode a script beside a clone called padir would import the clone's folder, not the package in it.
# The compilers of `padir compile` lie apart: where Python finds them, JAX looks for a TPU or a GPU in every process, and
# complains if there is none. That for GPUs is three wheels without the libraries that a GPU would need.
.venv/.installed: setup.py constraints.txt
	@set -e; new_enough='import sys; sys.exit(sys.version_info < (3, 11))'; \
	if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then \
	  found=; \
	  for candidate in $(if $(PYTHON),"$(PYTHON)",python3.11 python3.12 python3); do \
	    if "$$candidate" -c "$$new_enough" >/dev/null 2>&1; then found="$$candidate"; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo "error: padir needs Python 3.11 or newer, and $(if $(PYTHON),PYTHON=$(PYTHON) is not one,none of python3.11, python3.12, python3 is one);" \
	      "install it, or name it: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 2; \
	  fi; \
	  echo "Making .venv with $$found ($$("$$found" --version))"; \
	  "$$found" -m venv --clear .venv || { echo "error: '$$found -m venv' failed; on Debian and Ubuntu install python3-venv" >&2; exit 2; }; \
	fi; \
	.venv/bin/python -c "$$new_enough" || { echo "error: .venv holds a Python older than 3.11; remove it: rm -rf .venv" >&2; exit 2; }; \
	echo "Installing padir and what it needs into .venv (one to three minutes)"; \
	jax=; libtpu='import importlib.metadata as m; print(*[r.split(";")[0] for r in m.requires("jax") if r[:6] == "libtpu"])'; \
	if .venv/bin/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; \
	then pins='--constraint constraints.txt'; else pins=; jax='jax>=0.11,<0.12'; fi; \
	.venv/bin/python -m pip install --quiet $$pins --config-settings editable_mode=compat \
	  --editable '.[data,gcs,dev,docs]' $${jax:+"$$jax"}; \
	.venv/bin/python -m pip install --quiet $$pins --upgrade --no-deps --target .venv/libtpu \
	  "$$(.venv/bin/python -c "$$libtpu")" \
	  || echo "No libtpu, the compiler for TPUs, for this machine: padir compile will not work for them, and its tests are skipped"; \
	version=$$(.venv/bin/python -c 'import importlib.metadata as m; print(m.version("jax"))'); \
	.venv/bin/python -m pip install --quiet $$pins --upgrade --no-deps --target .venv/cuda_compiler \
	  "jax-cuda12-plugin==$$version" "jax-cuda12-pjrt==$$version" nvidia-cuda-nvcc-cu12 \
	  || echo "No compiler for NVIDIA GPUs for this machine: padir compile will not work for them, and its tests are skipped"; \
	touch $@

# Adds one accelerator's JAX, of the version installed already.
.venv/.installed-%: .venv/.installed
	@set -e; echo "Adding jax[$*] to .venv"; \
	version=$$(.venv/bin/python -c 'import importlib.metadata as m; print(m.version("jax"))'); \
	.venv/bin/python -m pip install --quiet "jax[$(patsubst cuda,cuda12,$*)]==$$version"; \
	touch $@
