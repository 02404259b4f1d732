# Every target sets up what it needs. PYTHON says which Python makes the virtual environment.

PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
# Tests at once: most of them wait for a server most of the time.
WORKERS ?= 2
# Where the real API server's programs are; may point at a folder shared by several clones.
export KUBE_INFORMERS_ENVTEST_BIN ?= $(CURDIR)/hack/envtest/bin

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help .venv demo test coverage check envtest-bin envtest update-parity long fuzz bench bench-faults constraints clean

help: ## print this list
	@awk -F ':.*## ' '/^[.a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

.venv: .venv/.complete ## set up the virtual environment; nothing to do when it is current

.venv/.complete: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "$(PYTHON) is Python " + sys.version.split()[0] + "; 3.11 or newer is needed: make PYTHON=python3.12 …")'
	@echo "setting up .venv: downloads packages, a minute or two"
	@$(PYTHON) -m venv .venv
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: .venv ## see the copier keep a target equal to its source, on the embedded API server
	@$(BIN)/python hack/demo.py

test: check ## check, then unit, property and flow tests on the embedded API server
	$(PYTEST) -n $(WORKERS) --dist worksteal -m "not real and not slow"

coverage: .venv ## the same tests, with the branches that they do not reach
	$(PYTEST) -n $(WORKERS) --dist worksteal -m "not real and not slow" --cov --cov-report=term

check: .venv ## format, lint, types, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

envtest-bin: .venv ## build etcd, kube-apiserver, kube-controller-manager and kubectl (10 minutes, once)
	@PYTHON=$(BIN)/python hack/envtest/build.sh "$(KUBE_INFORMERS_ENVTEST_BIN)"

envtest: .venv ## flow and parity tests on the real API server that envtest-bin built
	$(PYTEST) -m "real and not slow"

update-parity: .venv ## record the real API server's answers anew, for the embedded one to be held against
	UPDATE_PARITY=1 $(PYTEST) -m real tests/parity

long: .venv ## tests that take many minutes, on both servers; properties by thousands of examples
	$(PYTEST) -m slow --timeout=7200
	$(PYTEST) -m "hypothesis and not slow" --hypothesis-profile=thorough --timeout=7200

fuzz: .venv ## look for a text that the copier's parser stumbles over (FUZZ=-max_total_time=60)
	@$(BIN)/python -m hack.fuzz $(FUZZ)

bench: build/bench/peers/.complete build/bench/client-go ## benchmarks against other libraries, 25 minutes (BENCH=--quick: 5); see hack/bench
	@$(BIN)/python -m hack.bench $(BENCH)

bench-faults: build/bench/peers/.complete build/bench/client-go ## what other libraries do when a server misbehaves
	@$(BIN)/python -m hack.bench --report=faults $(BENCH) faults

build/bench/peers/.complete: hack/bench/peers.txt | .venv
	@echo "setting up build/bench/peers: downloads the libraries that are compared"
	@rm -rf build/bench/peers && $(PYTHON) -m venv build/bench/peers
	@build/bench/peers/bin/python -m pip install --quiet --disable-pip-version-check -r hack/bench/peers.txt
	@touch $@

build/bench/client-go: $(wildcard hack/bench/client-go/*) | .venv
	@PYTHON=$(CURDIR)/$(BIN)/python; export PYTHON; \
	go=$$(hack/find-go $$(awk '$$1 == "go" { print $$2 }' hack/bench/client-go/go.mod)) && \
	GOFLAGS=-mod=readonly GOWORK=off GOTOOLCHAIN=local CGO_ENABLED=0 "$$go" -C hack/bench/client-go build -trimpath -o $(CURDIR)/$@ .

constraints: ## refresh the pinned versions of everything that development installs
	@hack/update-constraints.sh "$(PYTHON)"

clean: ## remove all that was made here: environment, built programs, caches
	rm -rf .venv build dist *.egg-info .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	rm -rf hack/envtest/bin hack/envtest/.go-bin
	find informers controllers tests hack -name __pycache__ -prune -exec rm -rf {} +
