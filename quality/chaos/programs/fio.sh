#!/bin/sh
# fio writes and reads blocks at random, and verifies each.
set -eu
dir=$(mktemp -d "$PWD/chaos.XXXXXX")
trap 'rm -rf "$dir"' EXIT
fio --name=v --directory="$dir" --ioengine=io_uring --rw=randrw --bs=4k --size=4m --iodepth=16 --group_reporting \
    --verify=crc32c --verify_fatal=1 --verify_state_save=0 "$@"
