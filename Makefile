# Everything a person or CI runs. A bare machine with Python >= 3.11 is enough: each target sets up
# the virtual environment it needs.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
export PYTHONDONTWRITEBYTECODE =# empty: else every process compiles everything anew
NATIVE := wattserve_proto/v1/inference.proto
OIP    := wattserve_proto/oip/open_inference.proto

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-llm demo-model demo-llm-model serve test test-integration test-worlds test-language-models test-docs test-accounts test-verify test-fuzz test-stack test-kubernetes test-ray test-clients check fmt size proto docs cover bench bench-engines bench-policy bench-attribution bench-energy bench-metrics bench-overload bench-memory bench-generation bench-openai bench-peers test-gpu image image-test clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 20

setup: $(READY) ## Make the virtual environment .venv with everything in it

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or later is needed; name one with PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY) ## Serve the demo model, sweep three precisions, leave build/demo/sweep/report.html
	PATH="$(CURDIR)/$(BIN):$$PATH" bash deploy/demo.sh build/demo

demo-llm: $(READY) ## Serve the demo language model, sweep its precisions, leave build/demo-llm/sweep/report.html
	PATH="$(CURDIR)/$(BIN):$$PATH" bash deploy/demo_llm.sh build/demo-llm

demo-model: $(READY) ## Train the demo model again, in minutes, and hold it against the one that is shipped
	$(BIN)/python -m demo_model build/demo-model

demo-llm-model: $(READY) ## Train demo-llm again, in 20 minutes, and hold it against the one that is shipped (needs bible-kjv)
	$(BIN)/python -m demo_llm build/demo-llm-model

serve: $(READY) ## Serve the demo model on 127.0.0.1:50051 (ARGS="--model ... --variants ...")
	$(BIN)/wattserve serve $(ARGS)

test: $(READY) ## Run the tests that need neither a GPU nor a server of their own (ARGS="tests/unit -n 0": one process)
	$(BIN)/python -m pytest -n 3 --dist loadfile --ignore tests/integration --ignore tests/clients $(ARGS)

test-integration: $(READY) ## Start servers, commands and whole sweeps, and hold what they answer, meter and show together
	$(BIN)/python -m pytest -n 4 --dist loadfile tests/integration $(ARGS)

test-worlds: $(READY) ## Hold attribution, statistics and the models that are shipped against what is known to be true
	$(BIN)/python -m pytest -n 2 -m long tests/property tests/unit/bench tests/unit/loadgen tests/unit/server/audit \
	  tests/unit/server/energy tests/unit/server/engine tests/unit/server/verify tests/unit/server/test_counters.py $(ARGS)

test-language-models: $(READY) ## Try language models: their servers, sweeps, perplexity and OpenAI's client
	$(BIN)/python -m pytest -n 2 --dist loadfile -m long tests/unit/tools tests/integration/test_generation.py \
	  tests/integration/test_loadgen_language_model.py tests/integration/test_openai.py $(ARGS)

test-docs: $(READY) ## Run every command that a document shows, in minutes
	$(BIN)/python -m pytest -n 2 -m documents tests/docs $(ARGS)

test-accounts: $(READY) ## Try the account book on PostgreSQL, which it fetches, and kill a loaded server ten times
	postgres=$$(bash tests/fixtures/get_postgres.sh build/postgres) && \
	  export WATTSERVE_POSTGRES=$$postgres && $(BIN)/python -m pytest -m 'not gpu' tests/unit/server/accounts $(ARGS) && \
	  $(BIN)/python -m pytest -m long tests/integration/test_account*.py $(ARGS)

test-verify: $(READY) ## Run `wattserve meter verify` whole, on the simulated board: eight minutes
	$(BIN)/python -m pytest -m long tests/integration/test_meter_verify_unscaled.py $(ARGS)

test-fuzz: $(READY) ## Fuzz every RPC with 12,000 messages and raw bytes
	WATTSERVE_FUZZ_INPUTS=12000 $(BIN)/python -m pytest -m 'not gpu' tests/fuzz -s $(ARGS)

test-stack: $(READY) ## Try dashboards, rules and status page with a real Prometheus and browser; build and run the image
	PYTHON=$(BIN)/python bash tests/stack/get_stack.sh build/stack
	WATTSERVE_STACK=build/stack $(BIN)/python -m pytest tests/stack $(ARGS)
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  bash deploy/image/build.sh --no-registry && PYTHON=$(BIN)/python bash deploy/image/test.sh; \
	else echo "The image is built without a registry by root on Debian only: make image, make image-test"; fi

test-kubernetes: $(READY) ## Build deploy/kubernetes and hold it against the schemas of Kubernetes, KServe and Prometheus' operator
	PYTHON=$(BIN)/python bash tests/kubernetes/get_schemas.sh build/kubernetes
	WATTSERVE_KUBERNETES=build/kubernetes $(BIN)/python -m pytest tests/kubernetes $(ARGS)

build/ray/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv build/ray
	build/ray/bin/python -m pip install -q -c constraints.txt -e '.[ray,loadgen]' pytest pytest-asyncio pytest-timeout hypothesis tritonclient pyyaml
	@touch $@

test-ray: build/ray/.ready ## Try two replicas under the real Ray with PostgreSQL, which it fetches: clients, a kill, the books' end
	postgres=$$(bash tests/fixtures/get_postgres.sh build/postgres) && \
	  WATTSERVE_RAY=1 WATTSERVE_POSTGRES=$$postgres build/ray/bin/python -m pytest tests/ray_serve $(ARGS)

test-clients: $(READY) ## Try buf, perf_analyzer, AIPerf, guidellm, MLServer and the stubs of MLServer and KServe, which it fetches
	PYTHON=$(BIN)/python bash tests/clients/get_perf_analyzer.sh build/clients/perf
	PYTHON=$(BIN)/python bash tests/clients/get_peers.sh build/clients/peers
	PYTHON=$(BIN)/python bash tests/clients/get_mlserver.sh build/clients/mlserver
	PYTHON=$(BIN)/python bash tests/clients/get_token_clients.sh build/clients
	WATTSERVE_PERF_ANALYZER=build/clients/perf/perf_analyzer WATTSERVE_PEERS=build/clients/peers \
	  WATTSERVE_MLSERVER=build/clients/mlserver/bin/mlserver \
	  WATTSERVE_AIPERF=build/clients/aiperf/bin/aiperf WATTSERVE_GUIDELLM=build/clients/guidellm/bin/guidellm \
	  $(BIN)/python -m pytest tests/clients $(ARGS)

check: $(READY) ## Lint, format, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: $(READY) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

size: ## Count the hand-written Python outside tests and bench: lines and files of each package
	@git ls-files '*.py' | grep -vE '_pb2(_grpc)?\.py$$|^(tests|bench)/' | xargs wc -l | \
	  awk '$$2 != "total" {n = split($$2, part, "/"); room = part[1]; \
	    for (i = 2; i < n && i < 4; i++) room = room "/" part[i]; \
	    lines[room] += $$1; files[room]++; all += $$1; count++} \
	    END {for (room in lines) printf "%6d lines %4d files  %s\n", lines[room], files[room], room | "sort -k5"; \
	    close("sort -k5"); printf "%6d lines %4d files  in all\n", all, count}'

proto: $(READY) ## Generate the stubs beside the .proto files
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -Iproto --python_out=proto \
	  --mypy_out=quiet:proto $(NATIVE) $(OIP)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -Iproto --grpc_python_out=proto \
	  --mypy_grpc_out=quiet:proto $(NATIVE)

docs: $(READY) ## Write the generated reference pages
	$(BIN)/python -m wattserve_server.telemetry.describe > docs/metrics.md
	$(BIN)/python -m tests.docs.reference

cover: $(READY) ## Run the tests and report what they do not reach
	$(BIN)/python -m coverage run -m pytest $(ARGS)
	$(BIN)/python -m coverage report --skip-covered --sort=cover

bench: $(READY) ## The figures to reach: server, engine and torch by turns, in about 12 minutes (ARGS="--rows limit,latency")
	$(BIN)/python -m tests.bench.speed $(ARGS)

bench-engines: $(READY) ## Compare ways to run a model on this CPU (ARGS="--variant bf16 --threads 1,2")
	$(BIN)/python -m tests.bench.cpu_engines $(ARGS)

bench-policy: $(READY) ## Simulate the batching policy against arrival order and a sorted window
	$(BIN)/python -m tests.bench.policy $(ARGS)

bench-attribution: $(READY) ## Hold the attribution against simulated worlds with a known truth
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.bench.attribution $(ARGS)

bench-energy: $(READY) ## What accounting for energy costs: CPU per request, throughput on and off, memory
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m tests.bench.energy_cost $(ARGS)

bench-overload: $(READY) ## What is answered in time at multiples of what the server can do
	$(BIN)/python -m tests.bench.overload $(ARGS)

bench-generation: $(READY) ## Output tokens/s beside transformers' own ways, by turns, in about 25 minutes (ARGS="--requests 24 --longest 96 --rounds 1")
	$(BIN)/python -m tests.bench.generation $(ARGS)

bench-openai: $(READY) ## Output tokens/s of the front for OpenAI's clients beside native streams, by turns, in about 4 minutes
	$(BIN)/python -m tests.bench.openai_front $(ARGS)

bench-peers: $(READY) ## Beside LitServe, PyTriton and MLServer by turns, which it fetches, in about 12 minutes (ARGS="--out FILE")
	PYTHON=$(BIN)/python bash tests/bench/peers/get.sh build/peers
	$(BIN)/python -m tests.bench.peers $(ARGS)

bench-metrics: $(READY) ## What the metrics take of a request: less than 10 us
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m tests.bench.metrics_cost $(ARGS)

bench-memory: $(READY) ## What memory a server takes, part by part: ready, under load, after it; 50 minutes (ARGS="--models demo")
	$(BIN)/python -m tests.bench.memory $(ARGS)

test-gpu: ## Run the GPU tests with the Python and torch that are installed
	$(PYTHON) -m pytest -m gpu -o pythonpath="proto common client server loadgen tools ." $(ARGS)

image: ## Build the image (ARGS="--target cuda", or --no-registry where no container registry can be reached)
	bash deploy/image/build.sh $(ARGS)

image-test: $(READY) ## Run the image: health, a request with its receipt, drain (ARGS=IMAGE for another)
	PYTHON=$(BIN)/python bash deploy/image/test.sh $(ARGS)

clean: ## Remove what the targets made
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis $(VENV)
