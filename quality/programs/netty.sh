#!/usr/bin/env bash
# Netty's io_uring transport on the JVM: multishot accept, poll and receive, buffer rings, zero-copy sends, datagrams.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
[ "$(uname -m)" = x86_64 ] || {
    skip all "the transport's native part is fetched for x86-64 only"
    exit 0
}
need javac:default-jdk-headless java:default-jdk-headless mvn:maven

version=$(sed -n 's:.*<version>\(.*Final\)</version>.*:\1:p' "$here/netty/pom.xml")
jars=${CARGO_TARGET_DIR:-$here/../../target}/netty-$version
if [ ! -e "$jars/complete" ]; then
    if ! output=$(mvn --batch-mode --quiet -f "$here/netty/pom.xml" dependency:copy-dependencies -DoutputDirectory="$jars" 2>&1); then
        skip all "Netty $version cannot be had from Maven's central repository: $(grep -m 1 ERROR <<<"$output")"
        exit 0
    fi
    touch "$jars/complete"
fi
mkdir -p "$PROGRAM_WORK/netty/classes"
javac -d "$PROGRAM_WORK/netty/classes" -cp "$jars/*" "$here/netty/Echo.java" || exit 1

echoes() {
    ring 90 java -cp "$PROGRAM_WORK/netty/classes:$jars/*" Echo "$1" "$2" "$3"
    # Each message is sent, received, sent back and received; the receives may all be one request.
    engine_active $(($2 * $3 * 2))
}

if quick; then
    connections=8 messages=30
else
    connections=50 messages=100
fi
for mode in plain buffers incremental zerocopy unix datagrams; do
    case_run "$mode" echoes "$mode" "$connections" "$messages"
done
