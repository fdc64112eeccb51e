# QEMU's tools: images converted, compared, patterned and served with aio=io_uring.
source "$(dirname "$0")/lib.sh"
quick && exit 0
need qemu-img:qemu-utils qemu-io:qemu-utils qemu-nbd:qemu-utils

mib=48

# image FILE: a raw image with data, holes and odd ends.
image() {
    local i
    truncate -s "${mib}M" "$1"
    for i in 0 3 4 5 9 12 13 20 21 22 23 30 33 34 40 45 47; do
        head -c 1000000 /dev/urandom | dd of="$1" bs=1M seek=$i conv=notrunc status=none
    done
}

# uring FILE [FORMAT] [CACHE]: the image options that open FILE with aio=io_uring.
uring() {
    local cache=
    [ "${3:-}" != direct ] || cache=,file.cache.direct=on,cache.direct=on
    echo "driver=${2:-raw},file.driver=file,file.filename=$1,file.aio=io_uring$cache"
}

# convert raw -> FORMAT -> raw, both through the ring; the result is byte for byte the source, QEMU's own compare agrees.
convert() {
    local format=$1 cache=$2
    image in.raw
    sync in.raw
    qemu-img create -q -f "$format" mid.img ${mib}M
    truncate -s ${mib}M out.raw
    ring 90 qemu-img convert -n -W -m 8 --image-opts "$(uring in.raw raw "$cache")" --target-image-opts "$(uring mid.img "$format" "$cache")"
    ring 90 qemu-img convert -n -W -m 8 --image-opts "$(uring mid.img "$format" "$cache")" --target-image-opts "$(uring out.raw raw "$cache")"
    same in.raw out.raw
    ring 90 qemu-img compare --image-opts "$(uring in.raw raw "$cache")" "$(uring mid.img "$format" "$cache")"
    qemu-img compare -f raw -F "$format" in.raw mid.img
    engine_active 20
}

# compare must also see a difference of one byte.
compare_differs() {
    image a.raw
    cp a.raw b.raw
    printf 'X' | dd of=b.raw bs=1 seek=$((mib * 1048576 - 7)) conv=notrunc status=none
    local status=0
    ring 60 qemu-img compare --image-opts "$(uring a.raw)" "$(uring b.raw)" >compare.txt 2>&1 || status=$?
    cat compare.txt
    [ $status = 1 ] && grep -q 'Content mismatch' compare.txt
}

# qemu-io: patterns written, read back and verified, in flight together, zeroes and flushes between.
patterns() {
    local format=$1 cache=$2 i commands=()
    qemu-img create -q -f "$format" p.img ${mib}M
    for i in $(seq 0 15); do
        commands+=(-c "aio_write -P $((i + 1)) $((i * 3))M 1M")
    done
    commands+=(-c aio_flush -c "aio_write -z 1M 1M" -c aio_flush -c flush)
    for i in $(seq 0 15); do
        commands+=(-c "read -P $((i + 1)) $((i * 3))M 1M")
    done
    commands+=(-c "read -P 0 1M 1M" -c "writev -P 99 512 512 1024 4096" -c "readv -P 99 512 512 1024 4096" -c flush)
    ring 60 qemu-io --image-opts "$(uring p.img "$format" "$cache")" "${commands[@]}" >io.txt 2>&1
    lacks 'fail|error|verification' io.txt
    [ "$(grep -c '^read ' io.txt)" = 18 ]
    # What the ring wrote is there for a qemu-io that knows no ring.
    qemu-io -f "$format" -r -c 'read -P 7 18M 1M' -c 'read -P 0 1M 1M' -c 'read -P 99 512 5632' p.img >plain.txt 2>&1
    lacks 'fail|error' plain.txt
    engine_active 40
}

# qemu-nbd --aio=io_uring serves an image over a unix socket; clients read it and write to it.
nbd() {
    local cache=$1 uri pid
    image in.raw
    cp in.raw served.raw
    truncate -s ${mib}M out.raw
    uri="nbd+unix:///?socket=$dir/s"
    ring_start 120 qemu-nbd --aio=io_uring --cache="$cache" -f raw -k "$dir/s" -e 4 -t served.raw
    pid=$ring_pid
    wait_for 20 test -S s
    qemu-img convert -n -W -m 8 -f raw -O raw "$uri" out.raw
    same in.raw out.raw
    if command -v nbdcopy >/dev/null; then
        nbdcopy --connections=4 "$uri" copy.raw
        same in.raw copy.raw
    fi
    # A new image through the server, then what it left on disk.
    rm -f in.raw
    image in.raw
    qemu-img convert -n -f raw -O raw in.raw "$uri"
    qemu-img compare -f raw -F raw in.raw "$uri"
    ring_stop "$pid"
    same in.raw served.raw
    engine_active 40
}

case_run convert-raw convert raw buffered
case_run convert-raw-direct convert raw direct
case_run convert-qcow2 convert qcow2 buffered
case_run convert-qcow2-direct convert qcow2 direct
case_run compare-differs compare_differs
case_run io-raw patterns raw buffered
case_run io-qcow2 patterns qcow2 buffered
case_run io-qcow2-direct patterns qcow2 direct
"$here/../../scripts/need" nbdcopy:libnbd-bin 2>/dev/null || skip nbdcopy "no nbdcopy (package libnbd-bin): qemu-nbd is read with qemu-img only"
case_run nbd-writeback nbd writeback
case_run nbd-none nbd none
