# Servers and jobs that run already are watched by `anyring top` and `anyring trace -p`, on the kernel's io_uring and on the user engine,
# by their own user and by root. PostgreSQL (18 or later, with liburing) and TigerBeetle are watched if they are in PATH, or if the
# variables POSTGRES (a directory with initdb, postgres and psql) and TIGERBEETLE name them.
source "$(dirname "$0")/lib.sh"
quick && exit 0
native && exit 0
[ "$PROGRAM_FRONTEND-$PROGRAM_ENGINE" = run-user ] || exit 0
# Rings are not counted by a log here: what watches them sees them.
expected=none
anyring=$ANYRING_BIN/anyring

# An ordinary user, whose programs are watched; the user that runs this, unless that is root.
own=()
[ "$(id -u)" != 0 ] || own=(setpriv --reuid=65534 --regid=65534 --clear-groups --)

# as_user COMMAND...: as the ordinary user.
as_user() { ${own[@]+"${own[@]}"} "$@"; }

# begin ENGINE COMMAND...: starts a program in the background, as the ordinary user; its process is $watched.
begin() {
    local engine=$1 words=()
    shift
    [ "$engine" = kernel ] || words=("$anyring" run --engine user --)
    ${own[@]+"${own[@]}"} ${words[@]+"${words[@]}"} "$@" >program.txt 2>&1 &
    watched=$!
    started+=("$watched")
}

# family PROCESS: the process and those that it has started, as a list in JSON.
family() {
    local process
    printf '%s' "$1"
    for process in $(pgrep -P "$1"); do
        printf ','
        family "$process"
    done
}

# submissions ENGINE PROCESS ACCESS: what `top` has seen of those rings of a family that it can see so.
submissions() {
    jq --arg engine "$1" --argjson family "[$(family "$2")]" --arg access "$3" '[.rings[] | select(.engine == $engine and .access == $access
        and ([.process] | inside($family))) | .submissions] | add // 0' top.json
}

# sees ENGINE PROCESS OPERATION: top and trace -p show requests of a program to its user and to root.
sees() {
    local engine=$1 process=$2 operation=$3 user latency="<up to "
    # The user engine records each request.
    [ "$engine" = kernel ] || latency="<[0-9]"
    for user in as_user env; do
        $user "$anyring" top --once --json -d 1 >top.json
        [ "$(submissions "$engine" "$process" memory)" -gt 0 ] || {
            echo "top shows no submissions to $user"
            return 1
        }
        $user timeout 30 "$anyring" trace -f -p "$process" --max-events 500 2>trace.txt || true
        grep -q "$engine engine" trace.txt && grep -q " $operation(.* = .*$latency" trace.txt || {
            tail -n 5 trace.txt
            echo "trace -p shows no $operation to $user"
            return 1
        }
    done
    kill -0 "$process" || { echo "the program has ended"; return 1; }
}

engines=(user)
! kernel_allows || engines+=(kernel)
need jq:jq setpriv:util-linux pgrep:procps fio:fio node:nodejs

as_user "$anyring" --version >/dev/null 2>&1 || {
    skip all "an ordinary user cannot execute $anyring"
    exit 0
}

watch_fio() {
    begin "$1" fio --name=watched --ioengine=io_uring --rw=randread --bs=4k --size=8m --iodepth=8 --time_based --runtime=100 \
        --rate_iops=10000 --thread --directory="$dir"
    wait_for 30 has_ring "$watched"
    sees "$1" "$watched" READ
}

watch_node() {
    cat >read.mjs <<-'END'
	import fs from 'node:fs';
	for (const end = Date.now() + 100000; Date.now() < end;) await fs.promises.readFile(process.argv[1]);
	END
    begin "$1" env UV_USE_IO_URING=1 node "$dir/read.mjs"
    wait_for 30 has_ring "$watched"
    sees "$1" "$watched" READV
}

# has_ring PROCESS: it has a ring.
has_ring() {
    "$anyring" top --once --json -d 0.1 -p "$1" | jq -e '.rings | length > 0' >/dev/null
}

# Its rings are in memory of its own (IORING_SETUP_NO_MMAP): of the kernel's only the counters can be seen, of the user engine's nothing.
watch_postgres() {
    local bin=${POSTGRES:+$POSTGRES/}
    as_user "${bin}initdb" -D "$dir/data" -A trust -U postgres >initdb.txt 2>&1 || { tail -n 5 initdb.txt; return 1; }
    begin "$1" "${bin}postgres" -D "$dir/data" -k "$dir" -c listen_addresses= -c io_method=io_uring -c shared_buffers=1MB
    sql() { as_user "${bin}psql" -h "$dir" -U postgres -qAt -c "$1" postgres; }
    wait_for 60 sql 'SELECT 1' >/dev/null 2>&1 || { tail -n 5 program.txt; return 1; }
    sql 'CREATE TABLE t AS SELECT n, repeat(md5(n::text), 20) FROM generate_series(1, 40000) n'
    sql 'DO $$ BEGIN FOR i IN 1..100000 LOOP PERFORM count(*) FROM t; COMMIT; END LOOP; END $$' >query.txt 2>&1 &
    started+=($!)
    local user
    for user in as_user env; do
        $user "$anyring" top --once --json -d 1 >top.json
        if [ "$1" = kernel ]; then
            [ "$(submissions kernel "$watched" counters)" -gt 0 ]
        else
            [ "$(jq --argjson family "[$(family "$watched")]" '[.rings[] | select([.process] | inside($family)) | select(.access == "nothing"
                and .refusal != null)] | length' top.json)" -gt 0 ]
        fi || {
            echo "top does not show the rings to $user"
            return 1
        }
    done
}

watch_tigerbeetle() {
    as_user "$TIGERBEETLE" format --cluster=0 --replica=0 --replica-count=1 --development "$dir/0.tigerbeetle" >format.txt 2>&1
    begin "$1" "$TIGERBEETLE" start --addresses=0 --development "$dir/0.tigerbeetle"
    wait_for 30 has_ring "$watched"
    # Its timers tick without a client.
    sees "$1" "$watched" TIMEOUT
}

# The ordinary user writes there.
open_case() {
    [ "$(id -u)" != 0 ] || chown 65534:65534 .
    "$@"
}

for engine in "${engines[@]}"; do
    case_run "fio-$engine" open_case watch_fio "$engine"
    if [ "$(node -p 'process.versions.node.split(".")[0]')" -ge 20 ]; then
        case_run "node-$engine" open_case watch_node "$engine"
    else
        skip "node-$engine" "node $(node --version) is too old"
    fi
    if "${POSTGRES:+$POSTGRES/}postgres" --version 2>/dev/null | grep -qE ' (1[89]|[2-9][0-9])' &&
        ldd "$(command -v "${POSTGRES:+$POSTGRES/}postgres")" | grep -q liburing; then
        case_run "postgres-$engine" open_case watch_postgres "$engine"
    else
        skip "postgres-$engine" "no PostgreSQL 18 with io_uring in PATH, and the variable POSTGRES names none"
    fi
    if TIGERBEETLE=$(command -v "${TIGERBEETLE:-tigerbeetle}"); then
        case_run "tigerbeetle-$engine" open_case watch_tigerbeetle "$engine"
    else
        skip "tigerbeetle-$engine" "no tigerbeetle in PATH, and the variable TIGERBEETLE names none"
    fi
done
