# Two commands matter: `make demo` and `make test`. Both set up a virtual environment with the package, built from
# source, and change nothing outside of this folder.

PYTHON ?= python3
# Without bytecode files each of a thousand processes would compile all its imports.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
BIN := $(VENV)/bin
STEP := $(PYTHON) scripts/step.py
# Cargo schedules its own jobs and cannot use the job server of make.
CARGO := env -u MAKEFLAGS cargo
UV := UV_PYTHON_DOWNLOADS=never $(BIN)/uv
# Installs from uv.lock without resolving, and does not remove packages of other commands.
INSTALL := $(UV) pip install --no-deps --require-hashes --requirement
MATURIN := MAKEFLAGS= VIRTUAL_ENV=$(abspath $(VENV)) PATH=$(abspath $(BIN)):$$PATH maturin
# Twice as many test processes as the processors of a small machine, because tests wait a third of the time: three of them
# leave one of two processors idle every fourth second. A file runs in one process, and so do all files of Spark
# (tests/conftest.py); each process has its own S3 server and folder. Files run in the order in which they are found: the
# last ones are small, so all processes end at about the same time.
WORKERS := 4
PARALLEL = --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
RUST_SOURCES := Cargo.toml Cargo.lock $(shell find rust proto -name '*.rs' -o -name 'Cargo.toml' -o -name '*.proto')
PAGE_SOURCES := Cargo.toml Cargo.lock scripts/build_page.py $(shell find page proto $(addprefix rust/,base format tree version) \
	-type f -not -path '*/node_modules/*')

.PHONY: demo demo-alone demo-on-spark test test-rust test-python test-wheel test-browser page test-spark-3.5 test-spark-4.3 test-duckdb-2 lint docs dist check-platforms server check-release locks test-lowest test-deep fuzz soak planted-bugs integrations compatibility bench clean help

help:
	@echo "make demo           set up, build, run the main job on real data, then a pipeline on Spark"
	@echo "make test           set up, build, lint, make the documentation, and pass every test"
	@echo "make test-browser   the page for browsers in Chromium, with its driver (needs both, and npm)"
	@echo "make page           the web page, in the package; leaves it out without npm"
	@echo "make lint           rustfmt, clippy, ruff, mypy, generated files"
	@echo "make docs           the site of the documentation, in target/site"
	@echo "make dist           the wheel for this platform and the source distribution, checked, in dist/"
	@echo "make check-platforms  compile for ARM, macOS and Windows; run the storage tests for Windows on Wine"
	@echo "make server         the REST server in an environment of its own (SERVER=/opt/trinitylake)"
	@echo "make locks          the versions and hashes that all of these install, after a change of dependencies"
	@echo "make test-lowest    tests of the package with the lowest version of each dependency that it allows"
	@echo "make test-deep      the same tests with many more histories (two hours)"
	@echo "make fuzz           damaged and hostile bytes for every decoder (RUNS=10000000)"
	@echo "make soak           processes that commit at once, on disk and on S3, and a REST server, for SECONDS=60 each"
	@echo "make compatibility  Iceberg's REST Compatibility Kit, Trino, Flink, dlt, polars, Spark 3.5 and 4.3, Spark Connect and DuckDB 2 (needs Java 17 and Maven)"
	@echo "make integrations   dlt, dbt, Airflow, Dagster, SQLMesh, Ibis, Daft, Ray and DataFusion, each in an environment of its own"
	@echo "make planted-bugs   plant serious mistakes one at a time; fails if the tests miss one (WORDS=…; about an hour)"
	@echo "make bench          the benchmarks with their peers; writes benches/RESULTS.md"
	@echo "make clean          remove what these commands made"

$(VENV)/.uv: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=…")'
	@test -x $(BIN)/python || $(STEP) "virtual environment" $(PYTHON) -m venv $(VENV)
	@range=$$($(BIN)/python -c 'import tomllib; print(tomllib.load(open("$<", "rb"))["tool"]["uv"]["required-version"])'); \
		$(STEP) "uv" $(BIN)/python -m pip install --quiet --disable-pip-version-check "uv$$range"
	@touch $@

# Extras and groups of each command. [tool.uv.conflicts] lists sets that cannot be installed together.
SET_build := --group build
SET_demo := --extra demo
SET_spark := --extra demo --extra spark
SET_lint := --all-extras --group lint
SET_test := --all-extras --group test
SET_docs := --group docs
SET_server := --extra rest --extra s3
SET_dist := --group build --group dist
SET_compatibility := --group compatibility
SET_spark-connect := --group spark-connect
SET_bench := --extra spark --group bench
SET_test-spark-3.5 := --extra rest --extra spark --group test-spark-3-5
SET_clients := --only-group clients
SET_generator := --only-group generator
SET_integrations := --extra rest --extra sql --group integrations
SET_integrations-airflow := --extra rest --extra sql --group integrations-airflow
SET_integrations-dbt := --extra rest --extra sql --group integrations-dbt

# The versions and hashes of one set, out of uv.lock.
.SECONDARY:
target/locks/%.txt: $(VENV)/.uv uv.lock
	@mkdir -p target/locks
	@$(UV) export --quiet --frozen --no-header --no-annotate --no-emit-project $(SET_$*) --output-file $@ >/dev/null

$(VENV)/.packages-%: $(VENV)/.uv target/locks/%.txt
	@$(STEP) "packages to $*" env $(INSTALL) target/locks/$*.txt --python $(VENV)
	@touch $@

# The package, editable, with its extension: again when Rust sources or dependencies change.
$(VENV)/.built: $(VENV)/.packages-build pyproject.toml $(RUST_SOURCES)
	@command -v cargo >/dev/null || { echo "Rust is needed (1.95 or newer): https://rustup.rs"; exit 1; }
	@$(STEP) "core, compiled" env $(MATURIN) develop --features development --uv
	@touch $@

# In parallel: packages and Spark are downloaded while cargo compiles.
demo:
	@$(MAKE) --no-print-directory --jobs=4 demo-on-spark

demo-alone: $(VENV)/.built $(VENV)/.packages-demo
	@$(BIN)/trinitylake demo

# The output of Spark is shown only after a failure.
demo-on-spark: demo-alone target/.spark-fetched target/locks/spark.txt
	@if command -v java >/dev/null; then $(INSTALL) target/locks/spark.txt --quiet --python $(VENV); fi
	@echo; echo "Every tenth of these flights in a pipeline on Spark:"
	@TRINITYLAKE_PIPELINE_EVERY=10 $(BIN)/python examples/nycflights_pipeline.py 2>target/spark.log || { cat target/spark.log; exit 1; }

# Downloads Spark (400 MB) into uv's cache only, so that the demo does not wait for it.
target/.spark-fetched: $(VENV)/.uv target/locks/spark.txt
	@mkdir -p target
	@if command -v java >/dev/null; then \
		$(PYTHON) -m venv --without-pip target/spark-fetched; \
		$(STEP) --quietly "Spark, fetched meanwhile" nice env $(INSTALL) target/locks/spark.txt --python target/spark-fetched; \
		rm -rf target/spark-fetched; \
	fi
	@touch $@

lint: $(VENV)/.built $(VENV)/.packages-lint target/locks/generator.txt
	$(CARGO) fmt --check
	$(CARGO) clippy --workspace --all-targets --features trinitylake/testing -- -D warnings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict python/trinitylake
	@# No call that Windows lacks without a check of the platform.
	$(BIN)/mypy --strict --platform win32 --cache-dir .mypy_cache/win32 python/trinitylake
	$(BIN)/lint-imports
	$(UV) run --quiet --no-project --with-requirements target/locks/generator.txt scripts/generate_definitions.py --check

# The site, in target/site; a broken link or an unknown parameter is an error.
docs: $(VENV)/.packages-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

test-rust:
	$(CARGO) test --workspace --features trinitylake/testing --no-fail-fast

test-python: $(VENV)/.built $(VENV)/.packages-test target/.page-built
	$(BIN)/python -m pytest $(PARALLEL)

# Builds the wheel, installs it into a new environment with the versions of the lock, and uses it.
test-wheel: $(VENV)/.packages-build target/locks/test.txt
	rm -rf target/wheel-test
	@$(STEP) "wheel" env $(MATURIN) build --features development --out target/wheel-test/dist
	$(PYTHON) -m venv target/wheel-test/venv
	$(UV) pip install --quiet --python target/wheel-test/venv --constraint target/locks/test.txt target/wheel-test/dist/*.whl
	cd target/wheel-test && venv/bin/python $(abspath scripts/smoke_test.py)

# Release build: optimised across crates and, on Linux, linked by zig against a C library of 2018. PYTHONS are the
# interpreters to test the wheel with; default: the oldest and the newest installed one.
PYTHONS :=
DIST_FLAGS := --profile dist $(if $(filter Linux,$(shell uname -s)),--zig --compatibility manylinux_2_28)
dist: $(VENV)/.packages-dist
	rm -rf dist
	@$(PYTHON) scripts/build_page.py --required
	@$(STEP) "wheel" env $(MATURIN) build $(DIST_FLAGS) --out dist
	@$(STEP) "source distribution" env $(MATURIN) sdist --out dist
	$(BIN)/python scripts/check_dist.py dist $(PYTHONS)

# Compiles the workspace for the other platforms of the release workflow, and the tests of storage for Windows, which
# run where Wine is installed. Zig compiles the C code of dependencies.
TARGETS := aarch64-unknown-linux-gnu aarch64-apple-darwin x86_64-apple-darwin x86_64-pc-windows-gnu
ZIGBUILD = env -u MAKEFLAGS PATH=$(abspath $(BIN)):$$PATH CARGO_TARGET_DIR=target/other-platforms $(BIN)/cargo-zigbuild
check-platforms: $(VENV)/.packages-dist
	rustup target add $(TARGETS)
	for target in $(TARGETS); do $(ZIGBUILD) check --quiet --workspace --target $$target || exit; done
	$(ZIGBUILD) test --no-run --target x86_64-pc-windows-gnu -p trinitylake-base -p trinitylake-storage \
		--features trinitylake-storage/testing
	if command -v wine >/dev/null; then $(BIN)/python scripts/test_on_wine.py target/other-platforms/x86_64-pc-windows-gnu/debug/deps; fi

# The server alone, with the versions of the lock. SERVER is its folder, SERVER_BUILD the options of its core.
SERVER := target/server
SERVER_BUILD := --profile dist
server: $(VENV)/.packages-build target/.page-built target/locks/server.txt
	rm -rf target/server-wheel
	@$(STEP) "wheel" env $(MATURIN) build $(SERVER_BUILD) --out target/server-wheel
	$(PYTHON) -m venv --clear --without-pip $(SERVER)
	@$(STEP) "packages of the server" env $(INSTALL) target/locks/server.txt --python $(SERVER)
	$(UV) pip install --quiet --python $(SERVER) --no-deps target/server-wheel/*.whl
	$(SERVER)/bin/trinitylake serve --help >/dev/null

# The lowest version of each direct dependency that pyproject.toml allows, in an environment of its own, so that its
# lower bounds are facts.
TESTS_LOWEST := tests/catalog $(addprefix tests/,cli/test_cli.py core/test_bad_input.py iceberg_storage/test_iceberg_disjoint.py \
	iceberg_storage/test_iceberg_io.py iceberg_storage/test_iceberg_staging.py lakehouse/test_checks.py \
	lakehouse/test_external_federated.py lakehouse/test_time_travel.py project/test_definitions.py tables/test_schema_mapping.py \
	test_tables.py test_transactions.py) \
	$(addprefix tests/rest/test_,access.py protocol.py pyiceberg_client.py)
test-lowest: $(VENV)/.packages-build
	rm -rf target/lowest
	@$(STEP) "wheel" env $(MATURIN) build --features development --out target/lowest/dist
	$(PYTHON) -m venv target/lowest/venv
	$(UV) pip compile --quiet --python target/lowest/venv --resolution lowest-direct \
		$(addprefix --extra ,demo rest s3 sql telemetry) pyproject.toml --output-file target/lowest/versions.txt
	@$(STEP) "packages, the lowest" env $(UV) pip install --python target/lowest/venv --requirement target/lowest/versions.txt --group test-tools
	$(UV) pip install --quiet --python target/lowest/venv --no-deps target/lowest/dist/*.whl
	@# That test builds a root itself and needs a parameter that the lowest pyarrow lacks.
	target/lowest/venv/bin/python -m pytest $(PARALLEL) $(TESTS_LOWEST) \
		--deselect tests/core/test_bad_input.py::test_versions_beyond_32_bits_can_be_committed

# After a change of dependencies; `make locks UPGRADE=--upgrade` for their newest versions.
UPGRADE :=
locks: $(VENV)/.uv
	$(UV) lock $(UPGRADE)

# Checked by the release workflow before it builds.
TAG :=
check-release:
	$(PYTHON) scripts/check_release.py $(TAG)

# Spark SQL with the previous PySpark, in a separate environment, from the wheel.
test-spark-3.5: $(VENV)/.packages-build target/locks/test-spark-3.5.txt
	rm -rf target/spark-3.5
	@$(STEP) "wheel" env $(MATURIN) build --features development --out target/spark-3.5/dist
	$(PYTHON) -m venv target/spark-3.5/venv
	@$(STEP) "packages to test Spark 3.5" env $(INSTALL) target/locks/test-spark-3.5.txt --python target/spark-3.5/venv
	$(UV) pip install --quiet --python target/spark-3.5/venv --no-deps target/spark-3.5/dist/*.whl
	target/spark-3.5/venv/bin/python -m pytest $(addprefix tests/spark/test_,sql.py iceberg_sql.py fsck_on_executors.py)

# The data source with the newest PySpark, for which Iceberg has no runtime. The lock has the PySpark of SQL.
test-spark-4.3: $(VENV)/.packages-build
	rm -rf target/spark-4.3
	@$(STEP) "wheel" env $(MATURIN) build --features development --out target/spark-4.3/dist
	$(PYTHON) -m venv target/spark-4.3/venv
	@$(STEP) "packages to test Spark 4.3" env $(UV) pip install --python target/spark-4.3/venv --group test-tools pyspark==4.3.0 pandas
	$(UV) pip install --quiet --python target/spark-4.3/venv target/spark-4.3/dist/*.whl
	target/spark-4.3/venv/bin/python -m pytest $(addprefix tests/spark/test_,batch_read.py one_line_errors.py streams.py stream_positions.py table_frames.py) \
		--deselect tests/spark/test_batch_read.py::test_rows_that_spark_marked_as_deleted_are_not_read_without_the_jar
	target/spark-4.3/venv/bin/python -m pytest --lane spark-4.3 tests/spark/test_available_now.py

# SQL with the newest DuckDB. The other tests use 1.5, for which there are packages of extensions; the one that generates
# TPC-H has none for 2.0, so the tests over its tables are left out.
test-duckdb-2: $(VENV)/.built $(VENV)/.packages-test
	@$(UV) pip install --quiet --target target/duckdb-2 --no-deps duckdb==2.0.1
	PYTHONPATH=target/duckdb-2 $(BIN)/python -m pytest tests/cli/test_load.py tests/tables/test_merge.py tests/tables/test_change_feed.py \
		$(addprefix tests/lakehouse/test_,lake_sql.py checks.py check_sandbox.py time_travel.py sql_*.py) \
		-k "not tpch and not filters_of_joins"

# The web page, in python/trinitylake/page/built. Without npm it is left out, with a printed line.
page: target/.page-built
target/.page-built: $(PAGE_SOURCES)
	@mkdir -p target
	@$(PYTHON) scripts/build_page.py
	@test ! -d python/trinitylake/page/built || touch $@

# The web page in a real browser: Chromium and its driver (Debian: chromium, chromium-driver).
test-browser: $(VENV)/.built $(VENV)/.packages-test target/.page-built
	cd page && npm ci --silent --ignore-scripts --no-audit --no-fund
	$(BIN)/python -m pytest --lane browser tests/page

# Changed and untracked files of the checkout; nothing outside of a checkout. A clone may belong to another user.
CHECKOUT = if test -e .git; then git -c safe.directory='*' status --porcelain --untracked-files=all; fi

# While types are checked and the site is made, each on one processor, cargo has the other.
test:
	@mkdir -p target && $(CHECKOUT) >target/checkout-before
	@$(MAKE) --no-print-directory --jobs=3 lint docs test-rust page
	@$(MAKE) --no-print-directory test-python
	@$(MAKE) --no-print-directory test-wheel
	@$(CHECKOUT) >target/checkout-after
	@diff target/checkout-before target/checkout-after || { echo "make test changed the files above in the checkout"; exit 1; }

test-deep: export TRINITYLAKE_DEEP := 1
# One test runs for many minutes.
test-deep: export PYTEST_ADDOPTS := --timeout=14400
test-deep: test-rust test-python

RUNS := 10000000
fuzz: export TRINITYLAKE_FUZZ_RUNS := $(RUNS)
fuzz:
	cargo test --release --package trinitylake --features testing --test fuzz -- --nocapture

SECONDS := 60
soak: export TRINITYLAKE_SOAK_SECONDS := $(SECONDS)
soak: $(VENV)/.built $(VENV)/.packages-test
	$(BIN)/python -m pytest -s tests/core/test_sigkill.py -k lose_no_increment
	$(BIN)/python -m pytest -s tests/core/test_vacuum_soak.py
	$(BIN)/python -m benches.soak_server --seconds $(SECONDS)

# The pages of docs/integrations that need environments of their own; INTEGRATIONS="dlt dbt" for some of them.
INTEGRATIONS :=
integrations: $(VENV)/.packages-build $(addprefix target/locks/,$(addsuffix .txt,integrations integrations-airflow integrations-dbt))
	rm -rf target/integrations-wheel
	@$(STEP) "wheel" env $(MATURIN) build --features development --out target/integrations-wheel
	$(BIN)/python compatibility/run_integrations.py target/integrations-wheel/*.whl $(INTEGRATIONS)

compatibility: target/locks/clients.txt $(VENV)/.built $(VENV)/.packages-test $(VENV)/.packages-compatibility $(VENV)/.packages-spark-connect test-spark-3.5 test-spark-4.3 test-duckdb-2 integrations
	$(BIN)/python compatibility/run_rck.py
	$(BIN)/python compatibility/run_pyiceberg.py
	$(BIN)/python compatibility/run_trino.py
	$(BIN)/python compatibility/run_flink.py
	$(PYTHON) -m venv --clear --without-pip target/clients
	@$(STEP) "packages of clients" env $(INSTALL) target/locks/clients.txt --python target/clients
	$(BIN)/python compatibility/run_dlt_polars.py target/clients/bin/python
	$(BIN)/python -m pytest $(PARALLEL) tests/rest
	$(BIN)/python -m pytest --lane spark-on-s3 tests/spark/test_sql_on_s3.py
	$(BIN)/python -m pytest --lane spark-connect tests/spark/test_connect.py

# WORDS="gc commits" for those whose kind, name or file contains one of the words.
WORDS :=
planted-bugs: $(VENV)/.built $(VENV)/.packages-test
	$(BIN)/python scripts/planted_bugs.py $(WORDS)

# With a core compiled for release.
bench: $(VENV)/.built $(VENV)/.packages-bench
	@$(STEP) "core, compiled for release" env $(MATURIN) develop --release --uv
	$(BIN)/python -m benches --results benches/RESULTS.md

clean:
	rm -rf $(VENV) target .demo
