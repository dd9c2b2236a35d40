# `make` tells what there is. Everything below also works on a machine with nothing installed:
# each target first installs what it needs (tools/setup), quickly when all is there.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
DEEP := $(shell sed -n 's/^ *"\(deep-[a-z]*\)".*/\1/p' tools/deep)

.PHONY: help quickstart test build install bench check deep $(DEEP) clean

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile | expand -t 20
	@echo "  make deep-NAME    one of them: $(DEEP)"

quickstart: build  ## install, build, run the main job and show its result
	@build/weightcast demo

test: build/build.ninja  ## install, build, run the tests
	@tools/setup test
	@ninja -C build -j $(JOBS)
	@python3 tools/test.py

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
	@find build -mindepth 1 -maxdepth 1 ! -name venv -exec rm -rf {} +
