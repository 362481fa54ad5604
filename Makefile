# make demo    set up .venv and run the first claim
# make test    set up .venv and run every check and test      (PLUGIN=sps_safe: the tests of one plugin)
# make lint    ruff, mypy --strict and the import contracts alone
# make bench   every benchmark against its peers, written to benchmarks.md
# make docs    the documentation, in site/
# make wheels  a wheel of every package, in dist/
# make clean   remove .venv, caches and what building left

PYTHON ?= python3
PLUGIN ?=
WORKERS ?= 2

BIN := .venv/bin
PACKAGES := core callbacks datamodules $(sort $(wildcard plugins/*))
METADATA := $(addsuffix /pyproject.toml,$(PACKAGES))
PEERED := $(patsubst %/pyproject.toml,%,$(shell grep -l '^peers = ' $(METADATA)))
SOURCES := $(addsuffix /src,$(PACKAGES))
TESTS := $(if $(PLUGIN),plugins/$(PLUGIN)/tests,tests $(addsuffix /tests,$(PACKAGES)))
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: demo test lint bench docs wheels clean

demo: .venv/ready
	$(BIN)/leyden reproduce sps_safe/digits

# Long files go first, in the order of TESTS, so that no worker is left with one at the end.
test: lint
	sh tests/system-packages.sh
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder \
		--durations 15 $(TESTS)

lint: .venv/ready-to-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(SOURCES)
	$(BIN)/lint-imports

bench: .venv/ready-to-test
	$(BIN)/pip install -q $(foreach package,$(PEERED),-e './$(package)[peers]')
	for script in $(sort $(wildcard $(addsuffix /benchmarks/*.py,$(PACKAGES)))); do \
		OMP_NUM_THREADS=1 $(BIN)/python $$script || exit 1; echo; done | tee benchmarks.md

docs: .venv/ready-to-test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wheels: .venv/ready-to-test
	$(BIN)/pip wheel -q --no-deps --no-build-isolation -w dist $(addprefix ./,$(PACKAGES))
	@ls dist/*.whl

clean:
	rm -rf .venv dist build site .mypy_cache .ruff_cache .import_linter_cache benchmarks.md

# torch goes first and alone: the other packages' ranges would accept a newer build of several gigabytes.
.venv/ready: $(METADATA)
	@$(PYTHON) -c 'import sys; sys.exit("Leyden needs Python 3.11 or newer; set PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q --upgrade pip
	$(BIN)/pip install -q torch==2.13.0
	$(BIN)/pip install -q $(addprefix -e ./,$(PACKAGES))
	touch $@

.venv/ready-to-test: .venv/ready pyproject.toml
	$(BIN)/pip install -q --group dev --group docs $(foreach package,$(PACKAGES),-e './$(package)[test]')
	touch $@
