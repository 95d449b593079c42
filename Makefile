# Two commands for a machine that has only Python (3.11 to 3.13), pip and make:
#   make app     creates .venv, installs, starts the dashboard
#   make test    the same with the tools of the developers, then lint, types and tests
# TF=gpu installs tensorflow[and-cuda] (6 GB) in place of tensorflow-cpu (1.3 GB).
SHELL := /bin/sh
PYTHON ?= python3
TF ?= cpu
VENV := .venv
BIN := $(VENV)/bin
INPUTS := pyproject.toml constraints.txt Makefile
APP_STAMP := $(VENV)/.installed-app-$(TF)
DEV_STAMP := $(VENV)/.installed-dev-$(TF)
MLFLOW := $(VENV)/mlflow-server
MLFLOW_STAMP := $(MLFLOW)/.installed
OTHER := $(if $(filter gpu,$(TF)),cpu,gpu)

.PHONY: app test lint device clean

app: $(APP_STAMP)
	$(BIN)/python -m streamlit run app/dashboard.py

test: $(DEV_STAMP) $(MLFLOW_STAMP) lint
	$(BIN)/python -m pytest

lint: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

device: $(APP_STAMP)
	$(BIN)/python -m app.main device

clean:
	rm -rf $(VENV)

# A Debian python3 without python3-venv cannot bring pip into the environment by itself; the machine's own pip can.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] <= (3, 13) else f"Python 3.11, 3.12 or 3.13 is needed, for which there is a TensorFlow; {sys.executable} is {sys.version.split()[0]}. Choose another with PYTHON=…")'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); $(PYTHON) -m venv --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install pip; } || { rm -rf $(VENV); exit 1; }

# The two builds share the module `tensorflow`: the other one goes before this one comes.
define install
	@case "$(TF)" in cpu|gpu) ;; *) echo "TF: expected cpu or gpu, got $(TF)" >&2; exit 2;; esac
	@if ls $(VENV)/.installed-*-$(OTHER) >/dev/null 2>&1; then $(BIN)/python -m pip uninstall -q -y tensorflow tensorflow-cpu; rm -f $(VENV)/.installed-*-$(OTHER); fi
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[$(1)]'
	@touch $@
endef

$(APP_STAMP): $(INPUTS) | $(BIN)/python
	$(call install,$(TF)$(comma)samples)

$(DEV_STAMP): $(INPUTS) | $(BIN)/python
	$(call install,$(TF)$(comma)samples$(comma)mlflow$(comma)tensorboard$(comma)auth$(comma)slurm$(comma)dev)
	@touch $(APP_STAMP)

# The server that the tests of the MLflow tracker talk to, in an environment of its own: see the list's first lines.
$(MLFLOW_STAMP): tests/data/mlflow-server.txt | $(DEV_STAMP)
	$(BIN)/python -m venv --without-pip $(MLFLOW)
	$(BIN)/python -m pip --python $(MLFLOW)/bin/python install -q --disable-pip-version-check --no-deps -r tests/data/mlflow-server.txt
	@touch $@

comma := ,
