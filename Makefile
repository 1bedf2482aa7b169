# Two commands matter: `make demo` and `make test`. Both set up what they need: a virtual environment with the
# package, built from source, and nothing outside of this folder.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := demo
RUST_SOURCES := Cargo.toml Cargo.lock $(shell find rust proto -name '*.rs' -o -name 'Cargo.toml' -o -name '*.proto')

.PHONY: demo test test-rust test-python test-wheel test-spark-3.5 lint test-deep fuzz soak planted-bugs compatibility bench clean help

help:
	@echo "make demo           set up, build, run the main job on real data, then a pipeline on Spark"
	@echo "make test           set up, build, lint, and pass every test"
	@echo "make lint           rustfmt, clippy, ruff, mypy, generated files"
	@echo "make test-deep      the same tests with many more histories (hours)"
	@echo "make fuzz           damaged and hostile bytes for every decoder (RUNS=10000000)"
	@echo "make soak           processes that commit at once, on disk and on S3, and a REST server, for SECONDS=60 each"
	@echo "make compatibility  Iceberg's REST Compatibility Kit, Trino, Flink and Spark 3.5 with the server (needs Java 17 and Maven)"
	@echo "make planted-bugs   known mistakes, one at a time, and whether the tests find them (half an hour)"
	@echo "make bench          the benchmarks, with the peers in the same run"
	@echo "make clean          remove what these commands made"

# The environment; maturin installs the dependencies when it installs the package.
$(VENV)/.ready:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1' 'maturin>=1.16,<2'
	touch $@

# The package, editable, with its extension: again when Rust sources or dependencies change.
$(VENV)/.built: $(VENV)/.ready pyproject.toml $(RUST_SOURCES)
	VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/maturin develop --release --quiet \
		--extras=$(EXTRAS) --group=test --group=lint
	touch $@

demo: $(VENV)/.built
	$(BIN)/trinitylake demo
	$(BIN)/python examples/nycflights_pipeline.py

lint: $(VENV)/.built
	cargo fmt --check
	cargo clippy --workspace --all-targets --features trinitylake/testing -- -D warnings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict python/trinitylake
	$(BIN)/python scripts/generate_definitions.py --check

test-rust:
	cargo test --package trinitylake --features testing

test-python: $(VENV)/.built
	$(BIN)/python -m pytest

# The wheel as a stranger gets it: built, installed alone into a new environment, used.
test-wheel: $(VENV)/.ready
	rm -rf target/wheel-test
	VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/maturin build --release --quiet --out target/wheel-test/dist
	$(PYTHON) -m venv target/wheel-test/venv
	target/wheel-test/venv/bin/python -m pip install --quiet target/wheel-test/dist/*.whl
	cd target/wheel-test && venv/bin/python $(abspath scripts/smoke_test.py)

# Spark SQL with the PySpark before, in an environment of its own, from the wheel.
test-spark-3.5: $(VENV)/.ready
	rm -rf target/spark-3.5
	VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/maturin build --release --quiet --out target/spark-3.5/dist
	$(PYTHON) -m venv target/spark-3.5/venv
	target/spark-3.5/venv/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	target/spark-3.5/venv/bin/python -m pip install --quiet --group test-spark-3-5
	target/spark-3.5/venv/bin/python -m pip install --quiet "$$(ls target/spark-3.5/dist/*.whl)[rest,spark]"
	target/spark-3.5/venv/bin/python -m pytest $(addprefix tests/spark/test_,sql.py iceberg_sql.py verification.py)

test: lint test-rust test-python test-wheel

test-deep: export TRINITYLAKE_DEEP := 1
test-deep: test-rust test-python

RUNS := 10000000
fuzz: export TRINITYLAKE_FUZZ_RUNS := $(RUNS)
fuzz:
	cargo test --release --package trinitylake --features testing --test fuzz -- --nocapture

SECONDS := 60
soak: export TRINITYLAKE_SOAK_SECONDS := $(SECONDS)
soak: $(VENV)/.built
	$(BIN)/python -m pytest -s tests/test_sigkill.py -k lose_no_increment
	$(BIN)/python -m benches.python.soak_server --seconds $(SECONDS)

compatibility: $(VENV)/.built test-spark-3.5
	$(BIN)/python compatibility/run_rck.py
	$(BIN)/python compatibility/run_pyiceberg.py
	$(BIN)/python -m pip install --quiet --group compatibility
	$(BIN)/python compatibility/run_trino.py
	$(BIN)/python compatibility/run_flink.py
	$(BIN)/python -m pytest tests/rest
	$(BIN)/python -m pytest tests/spark/with_s3.py

planted-bugs: $(VENV)/.ready
	$(BIN)/python scripts/planted_bugs.py

bench: $(VENV)/.built
	$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python benches/run.py

clean:
	rm -rf $(VENV) target .demo
