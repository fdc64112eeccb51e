# fio, as Debian ships it: random reads and writes whose every written block is verified by crc32c.
source "$(dirname "$0")/lib.sh"
need fio

# verified MIB JOBS OPTION...: each of JOBS processes or threads works on a file of MIB MiB.
verified() {
    local mib=$1 jobs=$2 blocks reads writes
    shift 2
    ring 90 fio --name=v --directory="$dir" --ioengine=io_uring --rw=randrw --bs=4k --size="${mib}m" \
        --numjobs="$jobs" --group_reporting --verify=crc32c --verify_fatal=1 --verify_state_save=0 "$@" >fio.txt 2>&1 || {
        grep -vE 'clat|slat|\|' fio.txt
        return 1
    }
    reads=$(sed -n 's/.*issued rwts: total=\([0-9]*\),.*/\1/p' fio.txt)
    writes=$(sed -n 's/.*issued rwts: total=[0-9]*,\([0-9]*\),.*/\1/p' fio.txt)
    # Each block is either read or written by the mix, and each written one is read once more to verify it:
    # as many reads as blocks means that no block was left out.
    blocks=$((jobs * mib * 256))
    [ "$reads" = "$blocks" ] && [ "$writes" -gt 0 ] || {
        echo "fio counted $reads reads and $writes writes, but $blocks blocks: not every block was verified"
        return 1
    }
    engine_active $((reads + writes))
}

# Written through the ring, verified by plain system calls, and the other way round.
cross() {
    local common=(--name=v --filename=x.dat --rw=randwrite --bs=4k --size=8m --verify=crc32c --verify_fatal=1
        --verify_state_save=0)
    ring 60 fio "${common[@]}" --ioengine=io_uring --iodepth=32 --do_verify=0 "$@"
    fio "${common[@]}" --ioengine=psync --verify_only=1 >psync.txt 2>&1 || { cat psync.txt; return 1; }
    grep -q 'issued rwts: total=2048,' psync.txt

    rm x.dat
    fio "${common[@]}" --ioengine=psync --do_verify=0
    ring 60 fio "${common[@]}" --ioengine=io_uring --iodepth=32 --verify_only=1 "$@" >ring.txt 2>&1 || { cat ring.txt; return 1; }
    grep -q 'issued rwts: total=2048,' ring.txt
    engine_active 4096
}

# Sizes from one sector to 64 KiB; fio verifies what is left of each block at the end.
sizes() {
    ring 60 fio --name=v --directory="$dir" --ioengine=io_uring --rw=randwrite --bsrange=512-64k --size=16m --iodepth=16 \
        --verify=crc32c --verify_interval=512 --verify_fatal=1 --verify_state_save=0 "$@"
}

# Without anyring the denied program fails: so where the cases below pass, it was anyring's doing.
denied_alone() {
    if "$ANYRING_BIN/anyring-deny" fio --name=v --directory="$dir" --ioengine=io_uring --rw=read --size=1m >fio.txt 2>&1; then
        cat fio.txt
        echo "fio ran although io_uring is denied"
        return 1
    fi
    grep 'Operation not permitted' fio.txt
    engine_active() { :; }
}

native || case_run denied_alone denied_alone

# The matrix. Quick: each kind of ring once or twice, different in depth, jobs and O_DIRECT.
if quick; then
    case_run plain-depth1 verified 4 1 --iodepth=1
    case_run plain-depth32-jobs4 verified 4 4 --iodepth=32
    case_run plain-depth128-direct verified 4 1 --iodepth=128 --direct=1
    case_run sqthread_poll-depth8 verified 4 1 --iodepth=8 --sqthread_poll=1
    case_run registerfiles-depth32 verified 4 1 --iodepth=32 --registerfiles=1
    case_run fixedbufs-depth32-direct verified 4 1 --iodepth=32 --fixedbufs=1 --direct=1
    case_run sqthread_poll-registerfiles-fixedbufs verified 4 1 --iodepth=32 --sqthread_poll=1 --registerfiles=1 --fixedbufs=1
else
    for kind in plain sqthread_poll registerfiles fixedbufs sqthread_poll+registerfiles+fixedbufs; do
        options=()
        [ $kind = plain ] || options=(--${kind//+/=1 --}=1)
        for direct in 0 1; do
            for depth in 1 8 32 128; do
                for jobs in 1 4; do
                    # shellcheck disable=SC2086
                    case_run $kind-depth$depth-jobs$jobs-direct$direct \
                        verified 4 $jobs --iodepth=$depth --direct=$direct ${options[*]-}
                done
            done
        done
    done
    case_run vectored verified 4 1 --iodepth=32 --nonvectored=0
    case_run forced-async verified 4 1 --iodepth=32 --force_async=4
    case_run fsync verified 4 1 --iodepth=32 --fsync=64
    case_run fdatasync verified 4 1 --iodepth=32 --fdatasync=64
    case_run batches verified 4 1 --iodepth=64 --iodepth_batch_submit=16 --iodepth_batch_complete_min=8 --iodepth_batch_complete_max=64
    case_run sizes sizes
    case_run sizes-fixedbufs sizes --fixedbufs=1
    case_run cross-direct cross --direct=1
fi
case_run threads verified 4 4 --iodepth=16 --thread
case_run cross cross
