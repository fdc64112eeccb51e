#!/bin/sh
# QEMU's tools: patterns written and verified, an image converted there and back and compared, by aio=io_uring.
set -eu
dir=$(mktemp -d "$PWD/chaos.XXXXXX")
trap 'rm -rf "$dir"' EXIT
cd "$dir"
uring() { echo "driver=$2,file.driver=file,file.filename=$1,file.aio=io_uring"; }

qemu-img create -q -f raw in.raw 8M
qemu-io --image-opts "$(uring in.raw raw)" -c 'aio_write -P 1 0 1M' -c 'aio_write -P 2 2M 1M' -c 'aio_write -P 3 4M 64k' \
    -c 'aio_write -z 5M 1M' -c aio_flush -c 'read -P 1 0 1M' -c 'read -P 2 2M 1M' -c 'read -P 3 4M 64k' -c 'read -P 0 5M 1M' \
    -c 'writev -P 9 7M 512 1024 4096' -c 'readv -P 9 7M 512 1024 4096' -c flush >io.txt
qemu-img create -q -f qcow2 mid.qcow2 8M
qemu-img create -q -f raw out.raw 8M
qemu-img convert -n -W -m 4 --image-opts "$(uring in.raw raw)" --target-image-opts "$(uring mid.qcow2 qcow2)"
qemu-img convert -n -W -m 4 --image-opts "$(uring mid.qcow2 qcow2)" --target-image-opts "$(uring out.raw raw)"
cmp in.raw out.raw
