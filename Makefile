# Each target does all of its own set-up. What follows ARGS= goes to the command behind it:
#   make demo ARGS="--json demo.json --seed 3"
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help install demo demo-desktop test test-desktop desktops dev bench lint docs unsound

PYTHON ?= python3
ARGS ?=
SUDO ?= $(shell [ "$$(id -u)" = 0 ] || echo sudo)
BIN := .venv/bin
STAMP := .venv/.installed

# The stamp says for which folder the environment was made. An environment that does not run (half made, its Python upgraded
# away) or was moved here from elsewhere is made anew; one whose installation was interrupted is only installed into again.
RUNS := $(shell $(BIN)/python -c 'import pip, sys; print(sys.version_info >= (3, 11))' 2>/dev/null)
MADE_FOR := $(shell cat $(STAMP) 2>/dev/null)
ifneq ($(RUNS) $(MADE_FOR),True $(CURDIR))
$(STAMP): unsound
endif

# Debian ships venv without its pip; any pip can put one in.
MAKE_VENV = $(PYTHON) -m venv --clear .venv >/dev/null 2>&1 || { $(PYTHON) -m venv --clear --without-pip .venv \
  && $(PYTHON) -m pip --disable-pip-version-check --quiet --python .venv/bin/python install pip; }

help:
	@echo 'make install   the environment in .venv, pinned by constraints.txt'
	@echo 'make demo      the whole flywheel on this machine: a few minutes, no GPU'
	@echo 'make demo-desktop  the whole flywheel on real applications: installs Debian packages, then a quarter of an hour'
	@echo 'make dev       the Dagster UI on a free port'
	@echo 'make test      all tests but those of real desktops that take minutes'
	@echo 'make desktops  what real desktops need: Debian packages (asks apt), and environments of their own'
	@echo 'make test-desktop  the tests of real desktops'
	@echo 'make lint      ruff, mypy, import contracts'
	@echo 'make bench     benchmarks, each against a named baseline'
	@echo 'make docs      the generated pages under docs/'
	@echo 'Arguments: make demo ARGS="--json demo.json --seed 3"'

install: $(STAMP)
	@echo '.venv is ready.'

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo >&2 \
	  '$(PYTHON) is older than 3.11 or not there; install Python 3.11 or newer, or name one: make PYTHON=python3.12'; exit 1; }
	@[ '$(RUNS)' = True ] && [ '$(or $(MADE_FOR),$(CURDIR))' = '$(CURDIR)' ] \
	  || { echo 'Making .venv'; $(MAKE_VENV); }
	@echo 'Installing what flywheel needs into .venv (minutes the first time)'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@printf '%s\n' '$(CURDIR)' > $@

demo: $(STAMP)
	@$(BIN)/flywheel demo $(ARGS)

dev: $(STAMP)
	@$(BIN)/flywheel dev $(ARGS)

test: $(STAMP)
	@$(BIN)/python -m pytest $(ARGS)

# Debian's packages for sandboxed desktops; DESKTOP_APPS may be cut down to what the tasks at hand need.
DESKTOP_BASE := bubblewrap xvfb openbox dbus dbus-x11 at-spi2-core python3-venv python3-pyatspi python3-gi gir1.2-atspi-2.0 \
  xdotool wmctrl xclip scrot x11-utils x11-xserver-utils xauth xdg-utils socat fonts-dejavu-core fonts-liberation ffmpeg
DESKTOP_APPS ?= mousepad xterm lxterminal pcmanfm libreoffice-calc libreoffice-writer libreoffice-impress libreoffice-gtk3 \
  gimp chromium x11vnc novnc websockify qemu-system-x86 qemu-utils

desktops: $(STAMP)
	@echo 'Installing Debian packages: $(DESKTOP_BASE) $(DESKTOP_APPS)'
	@$(SUDO) apt-get update -qq
	@DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -y -qq --no-install-recommends $(DESKTOP_BASE) $(DESKTOP_APPS) >/dev/null
	@$(BIN)/flywheel desktops setup

# The demo on real applications: a server of sandboxed desktops beside it, for as long as it runs.
demo-desktop: desktops
	@$(BIN)/flywheel desktops serve --backend xvfb --desktops 4 --screen 640x384 & server=$$!; \
	  trap 'kill $$server; wait $$server' EXIT; $(BIN)/flywheel demo --profile desktop $(ARGS)

test-desktop: $(STAMP)
	@$(BIN)/python -m pytest -m desktop $(ARGS)

bench: $(STAMP)
	@for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python "$$file" $(ARGS) || exit 1; done

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(STAMP)
	@$(BIN)/python -m flywheel.cli.reference docs
