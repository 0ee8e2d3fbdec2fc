# Everything that a fresh clone needs. `make` alone prints what there is.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The first Python that is new enough; `make PYTHON=/path/to/python test` overrides it.
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3.10 python3; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo $$python && break; done)

BIN := .venv/bin
BIN40 := .venv-spark40/bin

# Spark starts its workers with `python3` from PATH unless it is configured, and that one has no pyarrow.
export PYSPARK_PYTHON = $(CURDIR)/$(BIN)/python
export PYSPARK_DRIVER_PYTHON = $(PYSPARK_PYTHON)
# A name that resolves everywhere: Spark on a laptop otherwise binds to whatever the network says today.
export SPARK_LOCAL_IP ?= 127.0.0.1

# Tests start many processes: each would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

# More for pytest: make test ARGS="-k delta -x"
ARGS ?=
PYTEST_ARGS := --durations=10 $(ARGS)
# Each process with a Spark of its own, and one more than there are cores, as kills and servers are waited for;
# make PARALLEL= test for one after the other.
PROCESSES = $(shell $(PYTHON) -c 'import os; print(min((os.cpu_count() or 1) + 1, 4))')
PARALLEL ?= --numprocesses=$(PROCESSES) --dist=loadfile --no-loadscope-reorder

.PHONY: help
help: ## Print this list
	@echo "Penstock: exactly-once streaming from Spark. Needs Python 3.10+ and Java 17+; the rest is installed"
	@echo "into .venv on first use."
	@echo
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

.PHONY: demo
demo: .venv/.installed java ## Stream real flights into Delta and Iceberg, kill the driver, restart, prove every row
	@$(BIN)/python notebooks/demo.py

.PHONY: demo-fanout
demo-fanout: .venv/.installed java ## Stream flights into Delta, OpenSearch and Kinesis at once, with an outage and kills
	@$(BIN)/python notebooks/fanout_demo.py

.PHONY: demo-changes
demo-changes: .venv/.installed java ## Stream a change feed of Debezium into five destinations at once, with kills; prove every row
	@$(BIN)/python notebooks/changes_demo.py

.PHONY: demo-kafka
demo-kafka: .venv/.installed java ## Stream 2 million Kafka events into Iceberg and Delta on a Spark cluster, with kills; prove every event
	@$(BIN)/python notebooks/kafka_demo.py $(ARGS)

.PHONY: test
test: .venv/spark.jsa java ## The fast tests: units, protocol, real Spark, kills of Delta and Iceberg streams
	@$(BIN)/pytest $(PARALLEL) -m "not slow" $(PYTEST_ARGS)

.PHONY: test-all
test-all: .venv/spark.jsa java ## All tests on the newest Spark except campaigns
	@$(BIN)/pytest $(PARALLEL) -m "not campaign" $(PYTEST_ARGS)

.PHONY: campaigns
campaigns: .venv/spark.jsa java ## What test-all leaves out: kills of each destination, chaos trials, variants of destinations
	@$(BIN)/pytest $(PARALLEL) -m campaign $(PYTEST_ARGS)

.PHONY: check
check: lint test-all ## Lint, types, direction of imports, all tests

.PHONY: lint
lint: .venv/.installed ## Format, lint, types and direction of imports, without tests
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

.PHONY: format
format: .venv/.installed ## Rewrite the code the way `make lint` wants it
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

.PHONY: test-spark40
test-spark40: export PYSPARK_PYTHON = $(CURDIR)/$(BIN40)/python
test-spark40: .venv-spark40/spark.jsa java ## The Spark tests on the oldest supported Spark, 4.0 (without kills)
	@$(BIN40)/pytest $(PARALLEL) -m "spark and not kills" $(addprefix --ignore=tests/,chaos test_deploy.py) $(PYTEST_ARGS)

.PHONY: test-paimon
test-paimon: export PYSPARK_PYTHON = $(CURDIR)/.venv-paimon/bin/python
test-paimon: .venv-paimon/.installed java ## The tests of penstock.paimon, in an environment with the pins of pypaimon
	@.venv-paimon/bin/pytest $(PARALLEL) tests/paimon $(PYTEST_ARGS)

# A Python that is not on this machine and that uv cannot download is skipped, with a line that says so.
# make test-python3.10 MARKS="not slow and not spark": those without Spark, as in CI
MARKS ?= not slow
.PHONY: test-python3.10 test-python3.13 environment-python3.10 environment-python3.13
test-python3.10 test-python3.13: test-python%: environment-python% java ## The fast tests on the oldest and the newest Python
	@if [ -e .venv-python$*/.installed ]; then \
		PYSPARK_PYTHON=$(CURDIR)/.venv-python$*/bin/python PYSPARK_DRIVER_PYTHON=$(CURDIR)/.venv-python$*/bin/python \
			.venv-python$*/bin/pytest $(PARALLEL) -m "$(MARKS)" $(PYTEST_ARGS); \
	fi

environment-python3.10 environment-python3.13: environment-python%: .venv/.installed
	@if python=$$($(call find_python,$*)); then \
		$(MAKE) --no-print-directory .venv-python$*/.installed PYTHON=$$python; \
	else \
		echo "skipped: there is no Python $* here, and uv cannot download one"; \
	fi

.PHONY: environment-spark40 environment-paimon
environment-spark40 environment-paimon: environment-%: .venv-%/.installed

.PHONY: newest-python
newest-python: .venv/.installed
	@$(call find_python,3.13) || echo $(PYTHON)

# All else comes from .venv, whose site directory the new environment includes.
CONTRACTS := $(addprefix tests/committers/test_,library_hooks.py iceberg_library.py iceberg_transaction.py delta_library.py)
.PHONY: test-newest
test-newest: .venv/.installed ## Before raising caps: the contract tests with the newest deltalake, pyiceberg and obstore
	@rm -rf .venv-newest
	@$(BIN)/python -m venv .venv-newest
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> "$$(.venv-newest/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth"
	@.venv-newest/bin/python -m pip install --quiet --upgrade deltalake obstore pyiceberg pyiceberg-core
	@.venv-newest/bin/python -m pip list 2>/dev/null | grep -E '^(deltalake|obstore|pyiceberg)'
	@.venv-newest/bin/python -m pytest -q $(CONTRACTS) $(ARGS)

.PHONY: kills
kills: .venv/spark.jsa java ## SIGKILL the driver three times at every crash point; figures at the end
	@PENSTOCK_KILLS=3 $(BIN)/pytest -m kills -s $(PYTEST_ARGS)

# make simulate SEEDS=100000; the timeline of one history: make simulate ARGS="--seed 4711"
SEEDS ?= 10000
.PHONY: simulate
simulate: .venv/.installed ## Play SEEDS random histories of crashes, lost requests and concurrent drivers in memory
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) $(ARGS)

# make fuzz SECONDS=3600 SEED=7: so long for each decoder. A finding names its seed.
SECONDS ?= 60
.PHONY: fuzz
fuzz: .venv/.installed ## Decode damaged manifests, settings, dead letters and logs, SECONDS for each decoder, until one crashes
	@$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

.PHONY: mutants
mutants: .venv/.installed ## Take guards away, one at a time, and count the histories until the simulation notices
	@$(BIN)/python -m tests.simulation.mutants $(ARGS)

# make chaos MINUTES=10 SEED=4711; into some destinations: make chaos ARGS="--lakes http,redis --stores sqlite"
MINUTES ?= 60
SEED ?=
.PHONY: chaos
chaos: .venv/spark.jsa java ## Kill, pause, starve and disconnect real streams for MINUTES, and check every row
	@$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

# make flames NAMES=writer
.PHONY: flames
flames: .venv/.installed ## Draw where the time goes, before and after what was changed for speed
	@$(BIN)/python -m benchmarks.flames $(NAMES)

# make bench NAMES="throughput small_batches"; a short look: make bench NAMES=throughput ARGS="--quick"
NAMES ?=
.PHONY: bench
bench: .venv/.installed .venv-spark41/.installed java ## All benchmarks, or those in NAMES, into docs/benchmarks/
	@$(BIN)/python -m benchmarks $(NAMES) --write $(ARGS)

# A short look: make bench-delivery ARGS="--minutes 2 --outage-seconds 20"
.PHONY: bench-delivery
bench-delivery: .venv/.installed java ## Ten minutes of one-second batches, coupled and decoupled, with an outage and a kill
	@$(BIN)/python -m benchmarks.delivery --write $(ARGS)

NOTEBOOKS ?= notebooks/*.ipynb
.PHONY: notebook
notebook: .venv/.installed java ## Execute NOTEBOOKS, or all, into build/, two at a time, as they wait for streams
	@printf '%s\n' $(NOTEBOOKS) \
		| xargs -n 1 -P 2 $(BIN)/python -m nbconvert --to notebook --execute --output-dir build

.PHONY: figures
figures: .venv/.installed ## Draw docs/images/figures.png from the tables of docs/benchmarks/
	@$(BIN)/python -m benchmarks.figures

.PHONY: ui-pictures
ui-pictures: .venv/.installed ## Draw the pictures of docs/ui.md in a headless Chromium
	@$(BIN)/python -m tests.ui.pictures

# MkDocs reads one folder: links to what the site has, so that links between files work there and in the repository.
SITE_SOURCE := build/site-source
.PHONY: docs
docs: .venv-docs/.locked .venv-docs/scripts ## The documentation site, into build/site; fails on dead links
	@rm -rf $(SITE_SOURCE) build/site
	@mkdir -p $(SITE_SOURCE)
	@ln -s $(addprefix $(CURDIR)/,README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE deploy docs notebooks) $(SITE_SOURCE)
	@ln -s $(CURDIR)/docs/site/site.css $(CURDIR)/.venv-docs/scripts/* $(SITE_SOURCE)
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build
	@echo "Open build/site/index.html"

.venv-docs/scripts: docs/site/fetch_scripts.py | .venv-docs/.locked
	@.venv-docs/bin/python docs/site/fetch_scripts.py $@
	@touch $@

.PHONY: pyfiles
pyfiles: .venv/.installed ## dist/penstock-<version>.zip for spark-submit --py-files
	@rm -rf dist/*.whl
	@$(BIN)/python -m build --wheel --no-isolation --outdir dist . > /dev/null
	@# A wheel is a zip with the package at its root; Spark only looks at the suffix.
	@for wheel in dist/*.whl; do name=$${wheel%-py3-none-any.whl}; cp $$wheel $$name.zip; echo $$name.zip; done

.PHONY: release
release: .venv/.installed .venv-release/.locked .venv-runtime/.locked ## All but the upload: checks, tests, archives built twice, SBOM, licences, hashes, into dist/
	@$(BIN)/python -m release checks
	@$(MAKE) --no-print-directory check
	@$(BIN)/python -m release archives

.PHONY: lock
lock: .venv/.installed ## Write requirements/*.txt anew from pyproject.toml; UPGRADE=--upgrade takes new versions
	@$(call lock,requirements/dev.txt,pyproject.toml --extra all --group dev)
	@$(call lock,requirements/spark40.txt,pyproject.toml --extra all --group test requirements/spark40.in)
	@$(call lock,requirements/spark41.txt,pyproject.toml --extra all requirements/spark41.in)
	@$(call lock,requirements/paimon.txt,pyproject.toml --extra paimon --group test)
	@$(call lock,requirements/docs.txt,--group docs)
	@$(call lock,requirements/release.txt,--group release)
	@$(call lock,requirements/runtime.txt,pyproject.toml --extra all --constraint requirements/dev.txt)
	@$(call lock,requirements/uv.txt,requirements/uv.in)

.PHONY: clean
clean: ## Remove what was built, cached and generated; the environments stay
	@rm -rf build dist .cache demo-data spark-warehouse metastore_db derby.log artifacts
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

.PHONY: distclean
distclean: clean ## The same, and the environments too
	@rm -rf .venv .venv-docs .venv-newest .venv-paimon .venv-python* .venv-release .venv-runtime .venv-spark40 .venv-spark41

# What the targets need -----------------------------------------------------------------------------

# No registry is named in the locks: uv and pip take the one that pip is configured for. The locks are complete: with
# --no-deps, uv need not build pyspark to learn what it depends on, which takes 20 s and leaves 2 GB in uv's cache.
.venv/.locked: requirements/dev.txt
	@$(call create,.venv,$<)

.venv-docs/.locked: requirements/docs.txt
	@$(call create,.venv-docs,$<)

.venv-release/.locked: requirements/release.txt
	@$(call create,.venv-release,$<)

.venv-runtime/.locked: requirements/runtime.txt
	@$(call create,.venv-runtime,$<)

.venv-spark40/.locked: requirements/spark40.txt
	@$(call create,.venv-spark40,$<)

.venv-spark41/.locked: requirements/spark41.txt
	@$(call create,.venv-spark41,$<)

.venv-paimon/.locked: requirements/paimon.txt
	@$(call create,.venv-paimon,$<)

.venv-python%/.locked: requirements/dev.txt
	@$(call create,$(@D),$<)

%/.installed: %/.locked pyproject.toml
	@$*/bin/python -m pip install --quiet --no-build-isolation --no-deps --editable .
	@touch $@

# The tests start many JVMs, and each of them would load Spark's classes from the jars.
%/spark.jsa: %/.locked | %/.installed java
	@echo "Keeping Spark's classes in $@, half a minute"
	@PYSPARK_PYTHON=$(CURDIR)/$*/bin/python $*/bin/python -m tests.support.class_archive $@ > $@.log 2>&1 || true
	@[ -s $@ ] || echo "This Java keeps no classes: Spark starts slower in the tests. See $@.log"

.PRECIOUS: %/.locked .venv-python%/.locked %/spark.jsa

define create
if [ -z "$(PYTHON)" ]; then \
	echo "Penstock needs Python 3.10 or newer, and none of python3.13 ... python3.10, python3 on PATH is." >&2; \
	echo "Install one (apt install python3 python3-venv; brew install python@3.13), or name it:" >&2; \
	echo "    make PYTHON=/path/to/python $(MAKECMDGOALS)" >&2; \
	exit 1; \
fi; \
echo "Installing $(2) into $(1) with $$($(PYTHON) --version), about a minute"; \
$(PYTHON) -m venv $(1); \
$(1)/bin/python -m pip install --quiet --require-hashes --requirement requirements/uv.txt; \
index=$$($(1)/bin/python -m pip config list | sed -nE "s/^.*\.index-url='(.*)'/\1/p" | tail -n 1); \
$(1)/bin/uv pip install --quiet --python $(1)/bin/python $${index:+--default-index "$$index"} \
	--require-hashes --no-deps --requirement $(2) || { \
		echo "uv could not install it; pip takes some minutes"; \
		$(1)/bin/python -m pip install --quiet --require-hashes --requirement $(2); \
	}; \
touch $(1)/.locked
endef

# Prints the path of this version's interpreter: on PATH, of pyenv, or what uv has or downloads. Fails if there is none.
define find_python
for python in python$(1) $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$(1).*/bin/python; do \
	$$python -c 'import sys; print(sys.executable)' 2>/dev/null && exit; \
done; \
$(BIN)/uv python install --quiet $(1) 2>/dev/null && $(BIN)/uv python find --managed-python $(1)
endef

define lock
$(BIN)/uv pip compile $(2) --output-file $(1) --universal --python-version 3.10 \
	--generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --quiet $(UPGRADE)
endef

# Spark takes the Java of JAVA_HOME, else the one on PATH.
.PHONY: java
java:
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	version=$$("$$java" -version 2>&1 | sed -nE 's/.*version "([0-9]+).*/\1/p' | head -n 1) || true; \
	if [ "$${version:-0}" -lt 17 ]; then \
		echo "Spark needs Java 17 or newer. $$java: $${version:-not found}" >&2; \
		echo "Install one (apt install openjdk-17-jre-headless; brew install openjdk@17; https://adoptium.net)" >&2; \
		echo "and set JAVA_HOME to it, or put its java on PATH." >&2; \
		exit 1; \
	fi
