#!/usr/bin/env bash
# A Zig program, static and without a C library, through the ring of Zig's own standard library.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
quick && {
    skip all "its compiler is large: run --all for it"
    exit 0
}
need python3 /usr/share/doc/python3-venv:python3-venv

# Zig comes as a Python package. Its standard library changes with every version: this is the one it was written for.
version=0.13.0
cache=${CARGO_TARGET_DIR:-$here/../../target}/zig-$version
if [ ! -e "$cache/complete" ]; then
    if ! output=$({ python3 -m venv "$cache" && "$cache/bin/pip" install --quiet --no-deps "ziglang==$version"; } 2>&1); then
        skip all "Zig $version cannot be had from PyPI: $(tail -n 1 <<<"$output")"
        exit 0
    fi
    touch "$cache/complete"
fi

mkdir -p "$PROGRAM_WORK/zig"
rings=$PROGRAM_WORK/zig/rings
export ZIG_GLOBAL_CACHE_DIR=$cache/cache ZIG_LOCAL_CACHE_DIR=$cache/cache
"$cache/bin/python" -m ziglang build-exe -O ReleaseSafe -femit-bin="$rings" "$here/zig/rings.zig" || exit 1

files() {
    mkdir files
    ring 90 "$rings" files "$1" "$2"
    engine_active $((($1 + 1) * $2 * 2))
}

case_run one files 0 1024
case_run threads files 7 512
