# `make` tells what there is. Everything below also works on a machine with nothing installed:
# each target first installs what it needs (tools/setup), quickly when all is there.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
DEEP := $(shell sed -n 's/^ *"\(deep-[a-z]*\)".*/\1/p' tools/deep)

.PHONY: help quickstart quickstart-vllm test test-vllm test-megatron bench-vllm python wheel vllm build install \
  bench check deep $(DEEP) clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20
	@echo "  make deep-NAME    one of them: $(DEEP)"

quickstart: build  ## install, build, run the main job and show its result
	@build/weightcast demo

test: python  ## install, build, run the tests
	@ninja -C build -j $(JOBS)
	@python3 tools/test.py

quickstart-vllm: wheel vllm  ## install vLLM for CPUs (0.75 GB) and the wheel, run a short RL loop, show table and proof
	@build/vllm-venv/bin/uv pip install -q --python build/vllm-venv/bin/python --no-deps --reinstall \
	  build/wheels/weightcast-*-cp311-*.whl
	@PATH="$(CURDIR)/build/vllm-venv/bin:$$PATH" build/vllm-venv/bin/python examples/rl/quickstart.py

bench-vllm: python vllm  ## the pause of a live engine; record bench/vllm.md
	@PYTHONPATH=build/python WEIGHTCAST_BINARY=build/weightcast build/vllm-venv/bin/python tools/bench_vllm.py

test-vllm: python vllm  ## install vLLM for CPUs too (0.75 GB), run the tests that need it
	@python3 tools/test.py --no-ctest --venv build/vllm-venv --label vllm tests/vllm \
	  tests/python/test_package.py

test-megatron: python  ## install Megatron too where there is a Python 3.12 (0.6 GB), run what needs it
	@tools/megatron/setup
	@python3 tools/test.py --no-ctest --label megatron tests/megatron

# The Python package in build/python, beside the binary.
python: build/build.ninja
	@tools/setup test
	@cmake --preset release -DWC_PYTHON=ON -DPython_EXECUTABLE=$(CURDIR)/build/venv/bin/python \
	  >build.log || { cat build.log; exit 1; }
	@rm build.log
	@ninja -C build -j $(JOBS) weightcast _core _core_stub

wheel:  ## the Python package as a wheel in build/wheels
	@tools/setup test
	@rm -rf build/wheels
	@CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) build/venv/bin/python -m pip wheel -q . --no-deps \
	  --no-build-isolation --disable-pip-version-check -w build/wheels
	@ls build/wheels/*.whl

vllm:
	@tools/setup vllm

build: build/build.ninja  ## install, build build/weightcast
	@ninja -C build -j $(JOBS) weightcast

# The optimised build that quickstart, test and bench share.
build/build.ninja: CMakePresets.json
	@tools/setup demo
	@cmake --preset release >build.log || { cat build.log; exit 1; }
	@rm build.log

install: build  ## copy the binary below PREFIX (default /usr/local)
	@cmake --install build --prefix $(PREFIX)

bench: build  ## measure; print each target as met or missed; record bench/results.md
	@tools/setup test
	@build/venv/bin/python tools/bench.py

check: build/build.ninja  ## format, house rules, clang-tidy of changed files, links
	@tools/setup test
	@tools/check

deep:  ## every long job that this commit has not passed yet (recorded in bench/deep.md)
	@tools/setup deep
	@tools/deep all

$(DEEP):
	@tools/setup deep
	@tools/deep $@

clean:  ## remove all builds (Python packages stay)
	@find build -mindepth 1 -maxdepth 1 ! -name "*venv" -exec rm -rf {} +
	@rm -rf build-megatron build-wheel-*
