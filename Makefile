# Skein's targets; each says what it does in `make help`. Root or sudo is needed to install what is missing, and for
# everything that makes network namespaces.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help build controller lab install install-controller uninstall uninstall-controller demo test check mutants \
  packages packages-test soak soak-real bench book fmt lint clean

# The commands of skein-lab for `make demo` and `make bench`; for instance: make bench BENCH='bench run two-nics
# --quick'
DEMO ?= demo --html target/demo.html
BENCH ?= bench run --quick --json target/bench.json --html target/bench.html

# Whether skein and skein-lab have HiGHS in them, which takes minutes to build.
EXACT ?=
export EXACT
# Whether skein-controller has etcd's client in it, which takes protoc to build.
ETCD ?=
export ETCD

SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
ENV := . scripts/env.sh;

help: ## List the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 28

build: ## Build skein (target/release/skein); installs what it needs; EXACT=1: with HiGHS, which proves placements
	@scripts/bootstrap.sh build
	@scripts/build.sh

controller: ## Build skein-controller (target/release/skein-controller), for clusters; ETCD=1: with etcd's client
	@scripts/bootstrap.sh build
	@scripts/build.sh controller

lab: ## Build skein-lab beside it (target/release/skein-lab), and the guest's program: what the demo and the bench need
	@scripts/bootstrap.sh demo
	@scripts/build.sh lab

install: ## Install what was built, its systemd unit, man pages, completions; PREFIX=/usr, DESTDIR
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' BINARY='$(BINARY)' scripts/install.sh install

uninstall: ## Remove them again; /etc/skein and /var/lib/skein stay
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' BINARY='$(BINARY)' scripts/install.sh uninstall

install-controller: ## Install skein-controller with its systemd unit, man pages, completions: on a controller only
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' BINARY='$(BINARY)' scripts/install.sh install controller

uninstall-controller: ## Remove them again
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' BINARY='$(BINARY)' scripts/install.sh uninstall controller

packages: ## Make Debian packages of all three programs (target/packages), with checksums, SBOMs and release notes
	@scripts/bootstrap.sh packages
	@scripts/build.sh lab
	@scripts/build.sh controller
	@scripts/packages.sh

packages-test: ## Have lintian judge them, and install, upgrade, roll back and purge them on bare Debian 12 and 13
	@for suite in bookworm trixie; do for script in lintian packages-test; do \
	  $(SUDO) scripts/$$script.sh $$suite || [ $$? = 3 ]; done; done

demo: ## Agents move a working guest between two hosts made on this machine; one is killed; a minute, once built
	@scripts/bootstrap.sh demo
	@scripts/build.sh lab
	@$(SUDO) target/release/skein-lab $(DEMO)

test: ## All tests, in tiers; TIERS='unit lab_x' for some
	@scripts/bootstrap.sh test
	@scripts/build.sh guest
	@scripts/qemu.sh 10 || [ $$? = 3 ]
	@scripts/qemu.sh 7.2 || [ $$? = 3 ]
	@scripts/etcd.sh || [ $$? = 3 ]
	@scripts/sushy.sh || [ $$? = 3 ]
	@scripts/promtool.sh || [ $$? = 3 ]
	@scripts/test.sh $(TIERS)

check: ## Before each commit, in minutes: tidy, format, clippy, unit tests with the model and the simulation
	@scripts/bootstrap.sh check
	@scripts/test.sh tidy fmt clippy unit

mutants: ## Plant mistakes, one at a time, and see that quick tests find each; MUTANTS='NAME…' for some
	@scripts/bootstrap.sh build
	@scripts/mutants.sh $(MUTANTS)

soak: ## Clusters in virtual time, on all cores, for SOAK_SECONDS=60: seeds, virtual hours, faults
	@scripts/bootstrap.sh build
	@$(ENV) cargo run --locked --quiet --release -p skein-sim --example soak

# SOAK_MIGRATIONS=100, SOAK_SEED, SOAK_SECONDS, SOAK_JSON=FILE; ROOM_MOVES=200; SKEIN_CHANGES=250, SKEIN_SEED
soak-real: ## Real guests under random real faults, towards full targets, and changing; its settings are in the Makefile
	@scripts/bootstrap.sh test
	@scripts/build.sh guest
	@scripts/qemu.sh 10 || [ $$? = 3 ]
	@$(ENV) qemu=$$PWD/target/qemu-10/qemu-system-x86_64; [ -x "$$qemu" ] || qemu=; \
	  SKEIN_QEMU=$${SKEIN_QEMU:-$$qemu} SOAK_MIGRATIONS=$${SOAK_MIGRATIONS:-100} \
	  $(if $(SUDO),CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER='sudo -n -E') \
	  cargo test --locked --quiet --release -p skein --test lab_soak -- \
	    $(if $(SOAK_JSON),--json '$(abspath $(SOAK_JSON))') && \
	  SKEIN_QEMU=$${SKEIN_QEMU:-$$qemu} ROOM_MOVES=$${ROOM_MOVES:-200} \
	  $(if $(SUDO),CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER='sudo -n -E') \
	  cargo test --locked --quiet --release -p skein --test lab_room -- --nocapture moves_towards && \
	  SKEIN_QEMU=$${SKEIN_QEMU:-$$qemu} SKEIN_CHANGES=$${SKEIN_CHANGES:-250} \
	  $(if $(SUDO),CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER='sudo -n -E') \
	  cargo test --locked --quiet --release -p skein --test lab_changes -- --nocapture a_guest_that_changes what_changes

bench: ## Measure Skein and its peers side by side; BENCH='bench run NAME…' for some cases
	@scripts/bootstrap.sh bench
	@scripts/build.sh lab
	@scripts/software.sh || [ $$? = 3 ]
	@scripts/qemu.sh 10 || [ $$? = 3 ]
	@$(SUDO) target/release/skein-lab $(BENCH)

book: ## Build docs/ into one static site (target/book/index.html), with mdBook, which takes minutes once
	@scripts/bootstrap.sh build
	@scripts/book.sh || [ $$? = 3 ]

fmt: ## Format the sources
	@$(ENV) cargo fmt --all

lint: ## What the tests check of the sources: tidy, format, clippy, documentation
	@scripts/test.sh tidy fmt clippy doc

clean: ## Remove all that was built
	rm -rf target
