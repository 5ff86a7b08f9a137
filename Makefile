# Every target sets itself up: it needs Python 3.11+ and make, nothing else.
# `make test ARGS="-k cancel"` passes arguments on; so do demo, torture, bench and docs.

PYTHON ?= python3
ARGS ?=
PYTHONS ?= python3.11 python3.12 python3.13 python3.14

# Four more than there are cores: many tests wait for a process, a timer or a socket.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(os.cpu_count() or 1, 8) + 4)')

# Forking after collection spares every worker but one the imports (tests/parallel.py); not every system takes it well.
ifeq ($(shell uname),Linux)
PARALLEL ?= --forks $(WORKERS)
else
PARALLEL ?= -n $(WORKERS) --dist worksteal
endif

VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.weftline-ready

# Compiled modules are kept, whatever the environment says: processes by the hundred would compile the same files again.
export PYTHONDONTWRITEBYTECODE :=

# Where C's library is glibc: memory that a test frees is kept for the next one. A tenth of the time went into pages.
test: export MALLOC_MMAP_THRESHOLD_ := 268435456
test: export MALLOC_TRIM_THRESHOLD_ := 268435456
test: export MALLOC_TOP_PAD_ := 16777216

.DEFAULT_GOAL := help
.PHONY: help demo test test-deep torture sandbox-campaign clients pythons a2a-kit mcp-kit lint bench bench-peers docs faces options prompts requirements clean

help:
	@echo "make demo       run an agent end to end, offline"
	@echo "make test       the whole test suite"
	@echo "make test-deep  the same with many more examples, for an hour or so"
	@echo "make torture    kill, freeze and fill the disk of real servers, for some minutes"
	@echo "make sandbox-campaign  floods, memory bombs and kills against code in a sandbox"
	@echo "make clients    generate clients from the OpenAPI document and try them; needs npm"
	@echo "make pythons    install, import and serve with every Python on the path"
	@echo "make a2a-kit    the public A2A compatibility kit, from a checkout: KIT=../a2a-tck"
	@echo "make mcp-kit    the public MCP conformance suite and the official TypeScript clients"
	@echo "make lint       ruff and pyright"
	@echo "make bench      benchmarks on this machine"
	@echo "make bench-peers  agents in a script compared with other libraries, installed in build/peers"
	@echo "make docs       check the documentation and run its examples"
	@echo "make faces      write the blocking faces of the client and the library"
	@echo "make options    write the options of the client and the library from the fields of a run"
	@echo "make prompts    write the texts that models read to tests/prompts.txt"
	@echo "make requirements   note what no test shows yet"
	@echo "make clean      remove everything that these targets created"

demo: $(READY)
	@if [ "$(ARGS)" = desk ]; then $(PY) examples/desk.py; else $(PY) examples/demo.py $(ARGS); fi

test: $(READY)
	@$(PY) -m pytest $(PARALLEL) $(ARGS)

test-deep: $(READY)
	@$(PY) -m pytest -n $(WORKERS) --dist worksteal --hypothesis-profile deep --timeout 3600 $(ARGS)

clients: $(READY)
	@$(PY) -m pytest -n 0 tests/generated/check_clients.py $(ARGS)

torture: $(READY)
	@$(PY) -m campaigns.torture $(ARGS)

sandbox-campaign: $(READY)
	@$(PY) -m campaigns.sandbox $(ARGS)

mcp-kit: $(READY)
	@PYTHONPATH=tests $(PY) -m kits.mcp $(ARGS)

# Installs the package as a user would, without the tools of development, and has it serve a run.
pythons:
	@for python in $(PYTHONS); do \
	  $$python --version >/dev/null 2>&1 || { echo "$$python: not here"; continue; }; \
	  echo "$$python: $$($$python --version)"; \
	  test -x build/$$python/bin/python || $$python -m venv build/$$python || exit 1; \
	  build/$$python/bin/pip install -qq --disable-pip-version-check . -c constraints.txt || exit 1; \
	  build/$$python/bin/python -W error docs_src/server_tools.py || exit 1; \
	done

a2a-kit: $(READY)
	@test -n "$(KIT)" || { echo "Say where a checkout of a2a-tck is: make a2a-kit KIT=../a2a-tck"; exit 2; }
	@PYTHONPATH=tests $(PY) -m kits.a2a $(KIT) $(ARGS)

lint: $(READY)
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(PY) -m pyright

bench-peers:
	@test -x build/peers/bin/python || $(PYTHON) -m venv build/peers
	@build/peers/bin/pip install -qq --disable-pip-version-check -e . uvloop pydantic-ai-slim[openai] openai-agents langgraph langchain-openai
	@build/peers/bin/python -m bench library $(ARGS)

bench: $(READY)
	@$(PY) -m bench $(ARGS)

docs: $(READY)
	@$(PY) -m pytest tests/test_docs.py $(ARGS)

faces: $(READY)
	@$(PY) scripts/faces.py

options: $(READY)
	@$(PY) scripts/options.py

prompts: $(READY)
	@PYTHONPATH=tests $(PY) -m prompt_texts

requirements: $(READY)
	@$(PY) tests/test_requirements.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .schemathesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# uv does not read pip's configuration, so a machine whose index is set there only still needs pip as the second try.
$(READY): pyproject.toml constraints.txt
	@echo "Setting up $(VENV): about a minute the first time"
	@test -x $(PY) || { command -v uv >/dev/null && uv venv --quiet --seed $(VENV); } || $(PYTHON) -m venv $(VENV)
	@$(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Weftline needs Python 3.11 or newer: make PYTHON=python3.11 …")' \
	  || { rm -rf $(VENV); exit 1; }
	@{ command -v uv >/dev/null && uv pip install --quiet --python $(PY) -e '.[dev]' -c constraints.txt; } \
	  || $(PY) -m pip install -qq --disable-pip-version-check -e '.[dev]' -c constraints.txt
	@touch $@
