#!/bin/sh
# Node with libuv's io_uring: SCRIPT NUMBER, in a directory of its own.
set -eu
dir=$(mktemp -d "$PWD/chaos.XXXXXX")
trap 'rm -rf "$dir"' EXIT
UV_USE_IO_URING=1 node "$1" "$dir" "$2"
