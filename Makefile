# The commands of this repository. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

TARGET := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
export CARGO_TARGET_DIR := $(TARGET)
# Where what is run finds the binaries: tests take those of the profile in which they are compiled themselves.
export ANYRING_BIN := $(TARGET)/release
TESTED := $(TARGET)/debug
# cargo-nextest, which runs the tests, where it is not installed (scripts/get-nextest).
export PATH := $(TARGET)/tools:$(PATH)
# Where tests note what they compared and what they left out.
export ANYRING_TALLY := $(TARGET)/tally
# Where what is packed and installed lies. ARCH=arm64 does both for that machine, with Debian's cross packages.
ifeq ($(filter-out $(shell uname -m; dpkg --print-architecture 2>/dev/null),$(ARCH)),)
BUILD := $(ANYRING_BIN)
else ifeq ($(ARCH),arm64)
BUILD := $(TARGET)/aarch64/aarch64-unknown-linux-gnu/release
FOR := scripts/for-aarch64
# The other targets would take what is built for this machine.
OTHERS := $(filter-out help toolchain build install uninstall deb one-file check-one-file check-aarch64 test-aarch64,$(MAKECMDGOALS))
ifneq ($(OTHERS),)
$(error make $(OTHERS) knows no ARCH=arm64: for Arm there are make deb ARCH=arm64, make one-file ARCH=arm64, and make build ARCH=arm64 with make install ARCH=arm64)
endif
else
$(error no ARCH=$(ARCH) is known: leave it out for this machine; for Arm there are make deb ARCH=arm64 and make one-file ARCH=arm64)
endif
# What is installed.
BUILT := -p anyring-cli -p anyring-preload -p anyring-inject -p anyring-liburing
# The command finds its libraries beside it (tools/cli/build.rs).
export ANYRING_IMAGES := none

.PHONY: help toolchain nextest build tools demo lint check test test-all live record test-programs test-chaos-programs conformance conformance-static differential bench count
.PHONY: packages release check-packages test-places test-cold-reads test-old-kernels install uninstall deb one-file check-one-file check-install check-aarch64 test-aarch64 coverage sanitize sanitize-suite simulate concurrent mutants chaos

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 16

toolchain:
	@command -v cargo >/dev/null || { echo "make: no cargo in PATH: install a Rust toolchain, 1.88 or newer (see README.md)" >&2; exit 1; }
	scripts/need curl gcc g++ /usr/include/stdio.h:libc6-dev

nextest: toolchain
	scripts/get-nextest $(TARGET)/tools

build: toolchain ## what is installed, in target/release (ARCH=arm64: in target/aarch64)
	$(FOR) cargo build --release $(BUILT) --locked
	$(FOR) scripts/link-liburing $(BUILD)

tools: toolchain ## what is installed, and what tests and measures it, in target/release
	cargo build --release --workspace --locked
	scripts/link-liburing $(ANYRING_BIN)

install: ## installs what `make build` made to PREFIX (/usr/local), under DESTDIR: the command, manual pages, and liburing.so.2 in lib/anyring or LIBDIR (ARCH=arm64)
	@test -e $(BUILD)/liburing.so.2 || { echo "make: nothing is built in $(BUILD): run make build$(if $(FOR), ARCH=arm64) first" >&2; exit 1; }
	PREFIX="$(PREFIX)" LIBDIR="$(LIBDIR)" DESTDIR="$(DESTDIR)" $(FOR) scripts/install $(BUILD)

uninstall: ## removes what `make install` installed to the same PREFIX and DESTDIR
	PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" scripts/install --remove

deb: build ## the same as Debian packages, in target (ARCH=arm64)
	$(FOR) scripts/make-deb $(BUILD) $(TARGET)

packages: one-file ## wheel, npm package, Debian packages, image, tar file, with checksums, in target/packages
	scripts/release --without-crates $(ANYRING_BIN) $(TARGET)/packages

release: one-file ## the same of a commit, with packages of the crates and the sources
	scripts/release $(ANYRING_BIN) $(TARGET)/packages

check-packages: packages tools ## installs in each way into an empty directory, and runs fio there with io_uring denied (ten minutes; WAYS='pip deb' for some)
	scripts/check-packages $(TARGET)/packages $(ANYRING_BIN) $(WAYS)

one-file: build ## one static executable that contains the libraries: target/release/one-file/anyring (ARCH=arm64)
	$(FOR) scripts/make-one-file $(BUILD)

check-one-file: one-file $(if $(FOR),,tools)
	scripts/check-one-file$(if $(FOR),-aarch64) $(BUILD)

check-install: tools
	scripts/check-install $(ANYRING_BIN)

# Without optimization but of the engine: what is shown is that it works.
demo: toolchain ## runs an unmodified fio where io_uring is forbidden, without anyring and with it (two minutes from a bare clone)
	cargo build -p anyring-cli -p anyring-preload -p anyring-inject -p anyring-deny --locked
	ANYRING_BIN=$(TESTED) demo/run

lint: toolchain ## formatting, clippy and documentation, as CI wants them
	cargo fmt --all --check
	cargo fmt --all --check --manifest-path quality/programs/everywhere/Cargo.toml
	rustfmt --edition 2024 --check quality/chaos/bugs/*/*.rs quality/chaos/crates/src/bin/*.rs
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo clippy -p anyring-engine --features coverage,pauses --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked

# Tests of the engine run as in a container: that is where most users of anyring are.
NEXTEST := cargo nextest run --locked
CONTAINER := --config 'target."cfg(all())".runner = ["$(TESTED)/anyring-deny", "--container", "--"]'

check: lint nextest ## in five minutes: lint, unit tests, models, the engine's tests in a container's sandbox, 20,000 simulated schedules
	rm -f $(ANYRING_TALLY)
	cargo build -p anyring-deny --locked
	$(NEXTEST) --workspace --exclude anyring-engine-simulated --exclude anyring-os-simulated --lib --bins
	$(NEXTEST) $(CONTAINER) --workspace --test suite
	$(NEXTEST) --workspace --test models --test schedules
	scripts/tally $(ANYRING_TALLY)

test: lint nextest ## what CI runs: `check` with 200,000 schedules, all crates, conformance that must pass, a real program per front end
	scripts/need musl-gcc:musl-tools /usr/include/liburing.h:liburing-dev valgrind strace gdb bwrap:bubblewrap jq python3 fio plocate
	scripts/need mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs mkfs.btrfs:btrfs-progs mount find:findutils
	rm -f $(ANYRING_TALLY)
	cargo build --workspace --locked
	$(NEXTEST) $(CONTAINER) --workspace --test suite
	ANYRING_SIMULATION_SCHEDULES=200000 $(NEXTEST) --workspace -E 'not binary(suite)'
	cargo test --workspace --doc --locked
	scripts/link-liburing $(TESTED)
	$(TESTED)/anyring-conformance must-pass --container
	ANYRING_BIN=$(TESTED) quality/programs/run --quick fio go
	ANYRING_BIN=$(TESTED) PROGRAM_FRONTEND=library quality/programs/run --quick plocate
	scripts/tally $(ANYRING_TALLY)

# Each line: a target of this Makefile. `scripts/test-all` says what came of each.
test-all: ## everything: sanitizers, Arm, old kernels, places, packages, all programs, chaos, counts, mutants; a table at the end (hours)
	scripts/test-all $(ONLY)

# The packages whose tests compare with a record.
RECORDED := -p anyring-engine-tests -p anyring-cli -p anyring-liburing --tests

live: nextest ## asks the kernel of this machine what the records say that it answered; fails where it answers otherwise
	ANYRING_ORACLE=live $(NEXTEST) $(RECORDED)
	cargo run -q -p anyring-conformance --locked -- differential --replay quality/conformance/recorded/6.18.txt --kernel

# From nothing, so that no answer is left that no test asks for.
record: nextest ## asks the kernel of this machine, and writes the records anew: core/engine/tests/record and its like
	rm -rf core/engine/tests/record/$$(uname -r | cut -d. -f1,2)
	ANYRING_ORACLE=record $(NEXTEST) $(RECORDED)

test-places: one-file tools test-old-kernels ## programs in containers, sandboxes, gVisor and on other kernels; writes docs/places.md (some minutes)
	quality/places/run --write docs/places.md

test-cold-reads: one-file tools ## reads that miss the page cache on Linux 6.1 and 6.12, in qemu: all are at the device at once, and take at most 3 calls
	quality/bench/cold-in-qemu bookworm trixie

# Below 5.1 no kernel has io_uring: multishot accept and receive, GETDENTS, ring descriptors, sends without copies and uepoll
# have to do without whatever came with it.
OLD := calls|edges|getdents|kbuf|lacking_calls|multishots|net|registered|rw|shown_readiness|submission|system_calls|zero_copy|zero_copy_paths
test-old-kernels: nextest ## the tests of the engine and of uepoll on Linux 4.18, emulated by refusing newer system calls and flags
	cargo build -p anyring-deny --locked
	$(NEXTEST) --config 'target."cfg(all())".runner = ["$(TESTED)/anyring-deny", "--like", "4.18", "--"]' -p anyring-engine-tests -p anyring-uepoll \
		--tests -E '(package(anyring-engine-tests) & test(/^($(OLD))::/)) | (package(anyring-uepoll) & kind(test) - binary(/_model$$/))'

test-programs: tools ## every real program, including the slow ones (some minutes)
	quality/programs/run --all
	PROGRAM_FRONTEND=library quality/programs/run --all qemu mariadb plocate
	PROGRAM_FRONTEND=library PROGRAM_ENGINE=kernel quality/programs/run --all qemu mariadb plocate

test-chaos-programs: tools ## known bugs must be found again by anyring chaos; current versions of programs under its faults (half an hour)
	quality/chaos/run

conformance: tools ## liburing's own suite on the user engine, compared with the native run; and traced, where nothing may be missing
	$(ANYRING_BIN)/anyring-conformance suite
	$(ANYRING_BIN)/anyring-conformance must-pass --library
	$(ANYRING_BIN)/anyring-conformance must-pass --library --engine kernel
	$(ANYRING_BIN)/anyring-conformance traced
	$(ANYRING_BIN)/anyring-conformance traced --engine kernel

conformance-static: tools ## liburing's tests that must pass, linked statically with glibc and with musl, where io_uring is denied
	scripts/need musl-gcc:musl-tools
	$(ANYRING_BIN)/anyring-conformance must-pass --statically glibc
	$(ANYRING_BIN)/anyring-conformance must-pass --statically musl

differential: tools ## random programs on both engines: make differential N=1000000 [SEED=2] [FIRST=5000]
	$(ANYRING_BIN)/anyring-conformance differential --progress --programs $(or $(N),20000) \
		--seed $(or $(SEED),1) --first $(or $(FIRST),0)

simulate: toolchain ## random programs on the engine over a simulated operating system: make simulate N=1000000 [SEED=1] [PROGRAM=messages]
	cargo build --release -p anyring-simulation --locked
	$(ANYRING_BIN)/anyring-simulation --schedules $(or $(N),100000) --seed $(or $(SEED),1) --program $(or $(PROGRAM),any)

# A build of its own: the engine pauses by seeds, and its assertions hold.
concurrent: toolchain ## random programs of several threads and rings: make concurrent N=200000 [SEED=2] [FIRST=5000]
	CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true cargo build --release --locked --target-dir $(TARGET)/concurrent \
		-p anyring-conformance --features pauses
	$(TARGET)/concurrent/release/anyring-conformance concurrent --progress --programs $(or $(N),20000) \
		--seed $(or $(SEED),1) --first $(or $(FIRST),0)

# What tests stand: they take an interrupted wait for a failure.
TEST_FAULTS := pause-before,pause-issue,pause-wake,pause-after,cqe-rubbish,overflow

chaos: tools ## tests of liburing's suite and of the crate, and planted bugs under the faults of anyring chaos: make chaos SEEDS=1000
	$(ANYRING_BIN)/anyring-conformance chaos --seeds 20
	CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="$(ANYRING_BIN)/anyring chaos --seed 1 --runs 20 --timeout 60 --faults $(TEST_FAULTS) --" \
		cargo test --locked -p anyring --test low --test safe --test sound
	ANYRING_CHAOS_SEEDS=$(or $(SEEDS),50) cargo test -p anyring-cli --test chaos --test faults --test power --locked

coverage: nextest ## fails unless the engine's tests see every operation, and every error that an operation declares
	rm -f $(TARGET)/coverage
	ANYRING_COVERAGE=$(TARGET)/coverage $(NEXTEST) -p anyring-engine-tests --features coverage --tests
	cargo run -q -p anyring-conformance --locked -- coverage $(TARGET)/coverage

mutants: toolchain ## the share of small changes to the engine that tests catch: make mutants [SAMPLE=0/10] [FILE='**/rw.rs'] [ARGS=--again, ARGS='--in-diff FILE']
	@cargo mutants --version >/dev/null 2>&1 || { echo "make: no cargo-mutants: cargo install cargo-mutants --locked" >&2; exit 1; }
	cargo build -p anyring-mutants --locked
	$(TARGET)/debug/anyring-mutants --sample $(or $(SAMPLE),0/1) $(if $(FILE),--file '$(FILE)') $(ARGS)

bench: tools ## the benchmarks; they refuse to start on a busy machine, unless: make bench ARGS=--busy
	quality/bench/run $(ARGS)
	scripts/count-liburing $(ANYRING_BIN)
	scripts/count-crate

count: tools ## system calls and instructions per operation, compared with docs/benchmarks/counts.md: make count [ARGS='--row meta'] [ARGS=--write]
	scripts/need valgrind fio
	[ -d /sys/kernel/tracing/events ] || mount -t tracefs none /sys/kernel/tracing
	$(ANYRING_BIN)/anyring-bench count $(ARGS)

sanitize: toolchain ## the engine's tests and the fuzzer under the address and the thread sanitizer
	scripts/check-sanitizers address
	scripts/check-sanitizers thread
	scripts/check-sanitizers thread concurrent

sanitize-suite: toolchain ## liburing's suite over the preload library, under both sanitizers (half an hour)
	scripts/check-sanitizers address suite
	scripts/check-sanitizers thread suite

check-aarch64: ## check what is tested on aarch64 with the compiler for it, and run the engine's tests in qemu-user (installs cross packages)
	scripts/check-aarch64

test-aarch64: ## every front end's tests on aarch64, in a machine that qemu emulates (an hour or two): make test-aarch64 [TESTS='cli/*'] [FLAVOUR=arm64-16k]
	scripts/test-aarch64 $(if $(FLAVOUR),--kernel $(FLAVOUR)) $(patsubst %,'%',$(TESTS))
