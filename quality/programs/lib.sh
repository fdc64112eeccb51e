# Sourced by the scripts beside it: how a case is run, judged and reported.
# shellcheck shell=bash
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
: "${PROGRAM_WORK:?run these scripts through quality/programs/run}"
program=$(basename "$0" .sh)

quick() { [ "$PROGRAM_QUICK" = 1 ]; }
native() { [ "$PROGRAM_NATIVE" = 1 ]; }

# need NAME:PACKAGE...: what the whole script uses; the script is skipped where it cannot be had.
need() {
    local message
    message=$("$here/../../scripts/need" "$@" 2>&1) || {
        echo "skip $program: $(tail -n 1 <<<"$message")"
        exit 0
    }
}

# skip NAME REASON: a case that cannot run here.
skip() { echo "skip $program $1: $2"; }

# The engine that must have worked in a case: user, kernel or none.
expected=user

# Whether the kernel's own io_uring can be had here.
kernel_allows() { "$ANYRING_BIN/anyring" doctor --json | grep '"io_uring": true' >/dev/null; }

if [ "$PROGRAM_ENGINE" = kernel ]; then
    expected=kernel
    kernel_allows || {
        skip all "this machine denies io_uring, and the kernel's is to be used"
        exit 0
    }
fi

# case_run NAME FUNCTION [ARGUMENT...]: runs one case in a directory and a log of its own. It holds if FUNCTION,
# run under `set -e`, ends well and the expected engine took requests in it.
case_run() {
    local name=$1 status before=$SECONDS
    shift
    # shellcheck disable=SC2254
    case "$name" in $PROGRAM_ONLY) ;; *) return 0 ;; esac
    dir=$PROGRAM_WORK/$program/${name//[^A-Za-z0-9._=-]/_}
    mkdir -p "$dir"
    log=$dir/anyring.log
    # No `if` and no `||` around it: either would switch `set -e` off inside.
    (
        set -e
        trap 'stop_all' EXIT
        cd "$dir"
        "$@"
        stop_all
        engine_active
    ) >"$dir/output" 2>&1
    status=$?
    if [ $status = 0 ]; then
        echo "ok $program $name ($((SECONDS - before)) s$(native || [ $expected != user ] || echo ", $(submitted) submitted"))"
    else
        echo "fail $program $name: status $status; the end of its output:"
        tail -n 16 "$dir/output" | cut -c1-240 | sed 's/^/    | /'
        [ ! -s "$log" ] || tail -n 5 "$log" | sed 's/^/    log: /'
    fi
    if [ "${PROGRAM_KEEP:-0}" != 1 ]; then
        rm -rf "$dir"
    fi
}

# The command line that gives a program its io_uring: the kernel's, itself or by our library, or ours with the kernel's
# denied.
ring_prefix() {
    native && return
    if [ "$PROGRAM_ENGINE" = kernel ]; then
        echo env "LD_LIBRARY_PATH=$ANYRING_BIN"
    elif [ "$PROGRAM_FRONTEND" = library ]; then
        echo "$ANYRING_BIN/anyring-deny" env "LD_LIBRARY_PATH=$ANYRING_BIN"
    else
        echo "$ANYRING_BIN/anyring-deny" "$ANYRING_BIN/anyring" run --engine user --
    fi
}

# ring SECONDS COMMAND...: runs COMMAND over the engine under test, killed after SECONDS.
ring() {
    local limit=$1 status
    shift
    # shellcheck disable=SC2046
    ANYRING_LOG=$log timeout --kill-after=5 "$limit" $(ring_prefix) "$@" && return 0
    status=$?
    [ $status != 124 ] || echo "killed: '$1' did not end within $limit s"
    return $status
}

# ring_start SECONDS COMMAND...: the same in the background; its process is $ring_pid.
started=()
ring_start() {
    local limit=$1
    shift
    # shellcheck disable=SC2046
    ANYRING_LOG=$log timeout --kill-after=5 "$limit" $(ring_prefix) "$@" &
    ring_pid=$!
    started+=("$ring_pid")
}

# ring_stop PID: asks a background program to end, and waits until it has. Its own status does not count, but that
# it had to be killed does.
ring_stop() {
    local status=0
    kill "$1" 2>/dev/null || true
    wait "$1" || status=$?
    [ $status != 137 ] || {
        echo "the background program did not end on SIGTERM and was killed"
        return 1
    }
}

stop_all() {
    local pid
    for pid in "${started[@]}"; do
        { kill "$pid" 2>/dev/null && wait "$pid"; } || true
    done
    started=()
    return 0
}

# wait_for SECONDS COMMAND...: until COMMAND succeeds, or the deadline has passed.
wait_for() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $deadline ] || {
            echo "deadline passed waiting for: $*"
            return 1
        }
        sleep 0.05
    done
}

# How many requests the user engine took in this case, over all its processes.
submitted() {
    awk '/engine=user/ { for (i = 1; i <= NF; i++) if (sub(/^submitted=/, "", $i)) n += $i }
         END { print n + 0 }' "$log" 2>/dev/null || echo 0
}

# engine_active [LEAST]: the expected engine was there, and the user engine took at least LEAST requests.
engine_active() {
    local least=${1:-1} n
    ! native && [ $expected != none ] || return 0
    if [ $expected = kernel ]; then
        grep -q 'engine=kernel' "$log" && ! grep 'engine=user' "$log"
        return
    fi
    n=$(submitted)
    [ "$n" -ge "$least" ] || {
        echo "the user engine took $n requests, at least $least were expected: the program did not use it (did it fall back?)"
        return 1
    }
}

# same FILE FILE: byte for byte.
same() {
    cmp "$1" "$2" || {
        echo "$1 and $2 differ"
        return 1
    }
}

# lacks PATTERN FILE: no line of FILE matches the extended pattern, whatever the case of letters.
lacks() {
    if grep -iE "$1" "$2"; then
        echo "$2 should have no such line"
        return 1
    fi
}
