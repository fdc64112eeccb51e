# Sourced: builds for aarch64 with Debian's cross packages.
#
# Debian's compiler (rustc-web) is used with Debian's standard library for arm64, since the two must be of one
# version; cargo is the machine's own. The result lives in a target directory of its own.
# shellcheck shell=bash

triple=aarch64-unknown-linux-gnu
# What scripts/test-aarch64 tests there, and scripts/check-aarch64 checks.
# shellcheck disable=SC2034
tested=(-p anyring-abi -p anyring-os -p anyring-wait -p anyring-engine -p anyring-engine-tests -p anyring-kernel-ring -p anyring-uepoll -p anyring-runtime -p anyring-trap -p anyring-interpose
    -p anyring-preload -p anyring-inject -p anyring-linked -p anyring-liburing -p anyring -p anyring-cli -p anyring-conformance
    -p anyring-callers -p anyring-kernel-trace -p anyring-trace -p anyring-tracer -p anyring-top -p anyring-chaos-plan -p anyring-chaos
    -p anyring-walk -p anyring-find -p anyring-du)

# know_arm64: makes Debian's packages for arm64 known to apt, as root.
know_arm64() {
    ! dpkg --print-foreign-architectures | grep -qx arm64 || return 0
    if [ "$(id -u)" != 0 ]; then
        echo "aarch64: no arm64 packages known here. As root, run: dpkg --add-architecture arm64 && apt-get update, then again" >&2
        return 1
    fi
    dpkg --add-architecture arm64
    apt-get -q -o DPkg::Lock::Timeout=300 update
}

library=/usr/lib/rustlib/$triple
[ -e "$library" ] || know_arm64
scripts/need /usr/share/doc/rustc-web:rustc-web $library:libstd-rust-web-dev:arm64 \
    aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu /usr/aarch64-linux-gnu/lib/Scrt1.o:libc6-dev-arm64-cross

export RUSTC=/usr/bin/rustc
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/aarch64
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
# Nobody debugs there, and what is copied into a machine's memory is to be small.
export CARGO_PROFILE_DEV_DEBUG=0
