#!/usr/bin/env bash
# uring-api, a Python module with a liburing of its own: multishot accept and receive, provided buffers, SEND_ZC.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
need python3 /usr/share/doc/python3-venv:python3-venv

version=0.1.0rc5
environment=${CARGO_TARGET_DIR:-$here/../../target}/uring-api-$version
if [ ! -e "$environment/complete" ]; then
    if ! output=$({ python3 -m venv "$environment" &&
        "$environment/bin/pip" install --quiet --no-deps --only-binary :all: "uring-api==$version"; } 2>&1); then
        skip all "uring-api $version cannot be had from PyPI: $(tail -n 1 <<<"$output")"
        exit 0
    fi
    touch "$environment/complete"
fi

echoes() {
    ring 90 "$environment/bin/python" "$here/uring-api/echo.py" "$1" "$2" "$3"
    # Each connection is received from, sent to and closed.
    engine_active $(($2 * 3))
}

if quick; then
    connections=12 bytes=300000
else
    connections=100 bytes=2000000
fi
for flags in plain SINGLE_ISSUER+DEFER_TASKRUN SQPOLL; do
    case_run "$flags" echoes "$flags" "$connections" "$bytes"
done
