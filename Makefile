# Two commands on a fresh machine without a GPU: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
WHEEL   = build/wheel

.PHONY: install demo test test-long check format generate wheels artifacts gpu gpu-site gpu-test gpu-test-long gpu-bench gpu-ranks gpu-linear \
  sanitize clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[cuda12,dev]'
	touch $@

# Build the shipped library, show what dispatches where and why, run one boundary on the CPU.
demo: install
	$(BIN)/kernwright build
	$(BIN)/kernwright verify qwen38_flash_tp1 --candidate replicated --case boundary:normal:1
	$(BIN)/kernwright explain sm70-fp16-hc4-h2560-n1-tp1
	$(BIN)/kernwright explain fp16-hc4-h2560-n1-tp1 --device 'NVIDIA H200'
	$(BIN)/python examples/boundary.py

test: install
	$(BIN)/python -m pytest -m "not long" -n 2 --dist loadfile

test-long: install
	$(BIN)/python -m pytest -m "long and not gpu" -n 2

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf build dist && mkdir -p $(WHEEL)
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	$(BIN)/python -m zipfile -e dist/kernwright-*.whl $(WHEEL)
	cd $(WHEEL) && $(abspath $(BIN))/mypy --config-file $(abspath pyproject.toml) -p kernwright
	PYTHONPATH=$(WHEEL) $(BIN)/lint-imports --no-cache pyproject.toml
	$(BIN)/kernwright generate --check

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

generate: install
	$(BIN)/kernwright generate

# What a GPU machine may lack: pure or cp312 wheels, into an ignored folder that travels with the tree.
wheels:
	$(PYTHON) -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
	  --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
	  -c constraints.txt -d wheels \
	  annotated-types platformdirs pydantic pydantic-core tomlkit typing-extensions typing-inspection

# For a Hopper machine: its cubins, and PTX of the sm_70 builds, as a bundle.
artifacts: install
	$(BIN)/kernwright bundle --arch sm_70 --arch sm_90 --ptx sm_70 -o artifacts

# On a machine with a GPU, with its own Python: nothing is installed into it, nothing is downloaded. Each part can be
# run alone; what needs several GPUs says so and does nothing where there is one.
GPU_SITE = build/gpu
OUT     ?= figures
ON_GPU   = PYTHONPATH="$(CURDIR)/$(GPU_SITE)" KERNWRIGHT_BUNDLE="$(CURDIR)/artifacts" PYTHONUNBUFFERED=1
GPUS     = $$($(PYTHON) -c 'import torch; print(torch.cuda.device_count())')

gpu: gpu-test gpu-bench gpu-ranks gpu-linear

gpu-site:
	rm -rf $(GPU_SITE) && mkdir -p $(GPU_SITE) $(OUT) && ln -s "$(CURDIR)" $(GPU_SITE)/kernwright
	if ls wheels/*.whl >/dev/null 2>&1; then \
	  $(PYTHON) -m pip install --quiet --no-index --no-deps --no-compile --target $(GPU_SITE) wheels/*.whl; fi

gpu-test: gpu-site
	$(ON_GPU) KERNWRIGHT_FIGURES=$(OUT)/proof.json $(PYTHON) -m pytest -m "gpu and not long" --durations=10 \
	  -p no:cacheprovider $$(find tests -name '*_gpu.py')

# The same with every layer and replay of a decoder; what `gpu-test` ran isn't run again.
gpu-test-long: gpu-site
	$(ON_GPU) KERNWRIGHT_FIGURES=$(OUT)/proof_long.json $(PYTHON) -m pytest -m "gpu and long" --durations=10 \
	  -p no:cacheprovider $$(find tests -name '*_gpu.py')

gpu-bench: gpu-site
	$(ON_GPU) $(PYTHON) benchmarks/distance.py $(OUT)/distance.json
	$(ON_GPU) $(PYTHON) benchmarks/rows.py --out $(OUT)
	$(ON_GPU) $(PYTHON) benchmarks/call_cost.py --profile $(OUT)/call_cost.json
	$(ON_GPU) $(PYTHON) -m kernwright bench
	tar -czf $(OUT)/records.tgz -C ledger records

gpu-ranks: gpu-site
	if test $(GPUS) -lt 2; then echo "one GPU: benchmarks/wide.py is for two or more"; else \
	  $(ON_GPU) $(PYTHON) -m torch.distributed.run --standalone --nproc-per-node $(GPUS) benchmarks/wide.py --out $(OUT); fi

gpu-linear: gpu-site
	if test $(GPUS) -lt 2; then echo "one GPU: linear_all_reduce is timed on two"; else \
	  ranks="$(PYTHON) -m torch.distributed.run --standalone --nproc-per-node 2" && \
	  $(ON_GPU) $$ranks -m kernwright bench linear_all_reduce_5120 linear_all_reduce_7168 --groups 9 --replays 5 && \
	  $(ON_GPU) $$ranks benchmarks/linear_all_reduce.py --out $(OUT) && \
	  tar -czf $(OUT)/linear_records.tgz -C ledger records/linear_all_reduce_5120 records/linear_all_reduce_7168; fi

# Every kernel at small shapes under compute-sanitizer; each tensor is an allocation of its own then.
SANITIZE_OPTIONS ?=
sanitize: gpu-site
	for tool in memcheck initcheck synccheck; do \
	  $(ON_GPU) PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool $$tool --error-exitcode 9 $(SANITIZE_OPTIONS) \
	    $(PYTHON) -m pytest -m gpu -p no:cacheprovider $$(find tests -name 'test_sanitized*_gpu.py') || exit 1; done

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
