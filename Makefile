# Weir. `make` says what there is.
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
RUN := .venv/bin/python manage.py
export PYTHONPATH := platform:.
# Python keeps what it compiled, in environments that are ours, or every start compiles thousands of files again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help made setup engine up ps logs down doctor clean test check format lock

help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

setup: ## install what the platform needs into .venv (`make up` does it too)
	@$(PYTHON) infra/setup/bootstrap.py control

up: setup ## start everything, show one real request, stay until Ctrl-C (DETACH=1, ENGINE=simulated, PORT=8080)
	@exec .venv/bin/python -m controlplane.local up $(if $(DETACH),--detach)

made:
	@[ -x .venv/bin/python ] || { echo 'nothing is installed in this clone yet: run `make up`, or `make setup`' >&2; exit 1; }

ps: made ## what runs
	@$(RUN) ps

logs: made ## the ends of the logs (NAME=gateway, FOLLOW=1)
	@exec $(RUN) logs $(NAME) $(if $(FOLLOW),--follow)

down: made ## stop what `make up` started
	@$(RUN) down

doctor: made ## test every store and the engine, say what is wrong and how to fix it
	@$(RUN) doctor

clean: ## stop it and remove its data (.weir); .venv, environments and the model stay
	@if [ -x .venv/bin/python ]; then $(RUN) down --remove-data; else rm -rf .weir; fi

engine: setup ## make the engine's environment and the model, start nothing
	@.venv/bin/python -m controlplane.local engine

test: setup ## all tests, on real stores and real vLLM, by two processes (ARGS="tests/unit -k budget": only those)
	@$(if $(ARGS),,.venv/bin/python -m controlplane.local engine || echo "without vLLM: its contract tests are skipped, its end-to-end tests fail, with this reason")
	@exec .venv/bin/python -m pytest $(if $(ARGS),$(ARGS),-n 2)

check: setup ## format, lint, types, imports
	@.venv/bin/ruff format --check .
	@.venv/bin/ruff check .
	@.venv/bin/mypy platform tenants safety billing workers infra manage.py
	@.venv/bin/lint-imports
	@.venv/bin/python -m pytest -q tests/architecture

format: setup ## put the code in the house's format
	@.venv/bin/ruff format .
	@.venv/bin/ruff check --fix .

lock: setup ## bring the lock files up to pyproject.toml (hashes, no registry named); needs torch's CPU build in reach
	@$(PYTHON) infra/setup/bootstrap.py lock
