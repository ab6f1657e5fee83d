# Two commands on a fresh machine: `make demo` and `make test`. CONTRIBUTING.md has the same as plain commands.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
# The constraints pin the versions used for development. torch from PyPI brings 5 GB of CUDA packages on Linux; where there is
# no GPU, name an index of CPU wheels: make test TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
# Of 13,000 modules a tenth is imported: compiling all of them was a third of the CPU time of the installation.
PIP := PIP_CONSTRAINT=constraints.txt $(PY) -m pip install --no-compile --disable-pip-version-check

.PHONY: demo site test test-pure browser style lint check campaign dist clean

$(VENV)/made:
	@echo "making a virtual environment in $(VENV)"
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/base: $(VENV)/made pyproject.toml constraints.txt
	$(PIP) --quiet -e .
	touch $@

$(VENV)/dev: $(VENV)/made pyproject.toml constraints.txt
	@echo "installing torch, transformers and the test tools into $(VENV): a few minutes the first time"
	$(if $(TORCH_INDEX),$(PIP) torch --index-url $(TORCH_INDEX))
	$(PIP) -e '.[measure,kernels,plot,dev]'
	touch $(VENV)/base $@

demo: $(VENV)/base
	$(VENV)/bin/chip predict llama-3.1-8b --gpu h200 --engine vllm --batch 8 --prompt 1024 --output 128
	$(VENV)/bin/chip report results/h200 src/chip/data/profiles src/chip/data/points/h200 -o build/report --title "An H200, measured"

# SITE_ADDRESS: where it will stand, for previews of links.
# The report of the H200 and the explorer, which computes in its visitor's browser: a folder for any static host.
site: $(VENV)/base
	$(PIP) --quiet 'setuptools>=77'
	$(PY) benchmarks/website.py build/site $(SITE_ADDRESS)

# Types are checked while the tests run; what mypy says comes last
test: $(VENV)/dev style browser
	@$(VENV)/bin/mypy > $(VENV)/mypy.txt & types=$$!; \
	$(PY) -m pytest -n auto; tests=$$?; \
	wait $$types; typed=$$?; cat $(VENV)/mypy.txt; test $$tests = 0 && test $$typed = 0

# Without torch, numpy or a browser: what predicts, reads and writes
$(VENV)/pure: $(VENV)/base
	@echo "installing pytest and hypothesis"
	$(PIP) --quiet pytest hypothesis pytest-xdist
	touch $@

test-pure: $(VENV)/pure
	$(PY) -m pytest tests/pure -n auto

# Debian's Chromium where we may install it, else Playwright's own. Where neither comes the last lines of the tests say so.
browser: $(VENV)/dev
	@command -v chromium || command -v chromium-browser || command -v google-chrome || \
	{ test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium; } || \
	$(PY) -m playwright install chromium || echo "no Chromium could be installed: browser tests will be skipped"

style: $(VENV)/dev
	$(VENV)/bin/ruff check src tests benchmarks
	$(VENV)/bin/ruff format --check src tests benchmarks

lint: style
	$(VENV)/bin/mypy

# Fuzzers, a fault injector, a physics checker and an edge walker; run again to go on: docs/reliability.md
MINUTES ?= 10
RECORD ?= build/campaign.json
campaign: $(VENV)/dev
	$(PY) tests/campaign --minutes $(MINUTES) --record $(RECORD)

# The same commit gives the same bytes
dist: $(VENV)/dev
	$(PY) benchmarks/dist.py

clean:
	rm -rf $(VENV) build dist
