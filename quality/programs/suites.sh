#!/usr/bin/env bash
# The tests that CPython and Go have of files, sockets and signals, in processes that keep a ring and have made a request on it: they have the results that
# they have without anyring, where the ring is the kernel's if there may be one.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
quick && {
    skip all "they take minutes: run --all for them"
    exit 0
}

# run_as WHICH COMMAND...: runs tests without anyring or with it. Some may fail anyway, where the machine lacks something.
run_as() {
    local which=$1 status=0
    shift
    if [ "$which" = own ]; then
        timeout --kill-after=5 900 "$@" || status=$?
    else
        ring 900 "$@" || status=$?
    fi
    [ $status -lt 124 ]
}

# compare LEAST FUNCTION ARGUMENT...: `FUNCTION WHICH ARGUMENT...` runs tests, and writes a line for each to WHICH.results.
compare() {
    local least=$1 function=$2 which
    shift 2
    for which in own anyring; do
        "$function" $which "$@"
        sort -o $which.results $which.results
        echo "$which: $(cut -d ' ' -f 2 $which.results | sort | uniq -c | tr -s ' \n' ' ')"
    done
    [ "$(grep -c ' passed$' anyring.results)" -ge "$least" ] || {
        echo "fewer than $least tests passed"
        return 1
    }
    diff own.results anyring.results || {
        echo "these tests have another result (<: without anyring)"
        return 1
    }
    engine_active
}

# Without the tests of AF_VSOCK, of which one does not end where a machine has the sockets and no peer.
cpython() {
    local which=$1
    shift
    mkdir "$which"
    cd "$which"
    run_as "$which" $python "$here/suites/cpython.py" "$dir/$which.results" VSOCK "${@/#/test.test_}"
    cd ..
}

# Static, and with a file more in the package: overlaid, for the sources may be anybody's.
golang() {
    local which=$1 package=$2 tests=$dir/tests name=ring_of_anyring_test.go
    if [ ! -e "$tests" ]; then
        sed "s/PACKAGE/${package##*/}/" "$here/suites/ring.go" >$name
        echo "{\"Replace\": {\"$sources/$package/$name\": \"$dir/$name\"}}" >overlay
        CGO_ENABLED=0 go test -c -vet=off -overlay overlay -o "$tests" "$package"
    fi
    cd "$sources/$package"
    run_as "$which" "$tests" -test.short -test.v >"$dir/$which.output" 2>&1
    cd "$dir"
    grep -oE -- '--- (PASS|FAIL|SKIP): [^ ]+' "$which.output" |
        sed 's/--- PASS: \(.*\)/\1 passed/; s/--- FAIL: \(.*\)/\1 failed/; s/--- SKIP: \(.*\)/\1 skipped/' >"$which.results"
}

python=/usr/bin/python3
need $python:python3
library=/usr/lib/python$($python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
need "$library/test/test_socket.py:lib${library##*/}-testsuite"
case_run cpython-os compare 200 cpython os
case_run cpython-signal compare 40 cpython signal
case_run cpython-sockets compare 500 cpython socket select epoll selectors

need go:golang-go
export GOTOOLCHAIN=local GOFLAGS=
sources=$(go env GOROOT)/src
version=$(go env GOVERSION | grep -oE '[0-9]+\.[0-9]+')
need "$sources/os/os_test.go:golang-$version-src"
case_run go-os compare 1000 golang os
case_run go-signal compare 20 golang os/signal
case_run go-net compare 300 golang net
