#!/usr/bin/env bash
# A Go program without cgo, which is static and makes its system calls by itself, through giouring: files, sockets,
# children. The runtime collects and preempts meanwhile.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

if [ -n "${PROGRAM_BUILT:-}" ]; then
    rings=$PROGRAM_BUILT/rings
else
    need go:golang-go
    rings=$PROGRAM_WORK/go/rings
    if ! output=$("$here/go/build" "$rings" 2>&1); then
        skip all "the program cannot be built ($(go version), giouring by $(go env GOPROXY)): $(tail -n 1 <<<"$output")"
        exit 0
    fi
fi

files() {
    mkdir files
    ring 90 "$rings" files files "$1" "$2"
    engine_active $(($1 * $2 * 2))
}

sockets() {
    ring 90 "$rings" sockets "$1" "$2"
    engine_active $(($1 * $2 * 2))
}

# The runtime turns a fault into a panic that the program may recover from.
recovers() {
    mkdir files
    ring 30 "$rings" files files 1 8 | grep -x 'recovered: true'
}

# A static program below a shell, and one below a static program, with and without an environment.
children() {
    mkdir files
    ring 60 sh -c '"$0" children files "$0" files files 2 64' "$rings"
    engine_active $((2 * 32 + 2 * 128))
}

if quick; then
    case_run files files 3 128
    case_run sockets sockets 3 100
    case_run children children
else
    case_run files files 8 1024
    case_run sockets sockets 16 500
    case_run recovers recovers
    case_run children children
    # Position-independent: a dynamic linker runs in it, but no C library.
    if [ -x "$rings-pie" ] || "$here/go/build" "$rings-pie" -buildmode=pie >/dev/null 2>&1; then
        rings=$rings-pie
        case_run pie files 4 256
        case_run pie-children children
    else
        skip pie "this Go cannot build position-independent programs without cgo here"
    fi
fi
