# MariaDB, whose InnoDB does its asynchronous I/O through io_uring: tables filled and changed, the server stopped, killed
# and started again, and the tables' checksums held against each other.
source "$(dirname "$0")/lib.sh"
quick && exit 0
# The -core packages start no service of their own.
need mariadbd:mariadb-server-core mariadb-install-db:mariadb-server-core mariadb:mariadb-client-core
command -v mariadbd >/dev/null || PATH=$PATH:/usr/sbin
if ! ldd "$(command -v mariadbd)" | grep liburing >/dev/null; then
    skip all "$(mariadbd --version 2>/dev/null) is built without io_uring"
    exit 0
fi

root=()
[ "$(id -u)" != 0 ] || root=(--user=root)

server_start() {
    : >"$dir/error.log"
    # Small pools and logs, so that pages really go to disk and come back. O_DIRECT is InnoDB's own default.
    ring_start 300 mariadbd --no-defaults ${root[@]+"${root[@]}"} --datadir="$dir/data" --socket="$dir/s" --pid-file="$dir/pid" \
        --skip-networking --log-error="$dir/error.log" --innodb-use-native-aio=1 --innodb-buffer-pool-size=8M \
        --innodb-log-file-size=8M --innodb-read-io-threads=2 --innodb-write-io-threads=2 "$@"
    server=$ring_pid
    wait_for 60 answers || { tail -n 30 "$dir/error.log"; return 1; }
    grep 'Using io_uring' "$dir/error.log" || {
        tail -n 30 "$dir/error.log"
        echo "the server's log does not say 'Using io_uring'"
        return 1
    }
}

sql() { mariadb --no-defaults ${root[@]+"${root[@]}"} --socket="$dir/s" --batch --skip-column-names "$@"; }
answers() {
    # A server that has ended will never answer: give up at once.
    kill -0 "$server" 2>/dev/null || { echo "the server has ended"; exit 1; }
    sql -e 'SELECT 1' >/dev/null 2>&1
}
sums() { sql test -e 'CHECKSUM TABLE a, b EXTENDED; SELECT COUNT(*), SUM(n), SUM(CRC32(t)) FROM a; SELECT COUNT(*), SUM(n), SUM(CRC32(t)) FROM b'; }
healthy() {
    lacks '\[ERROR\]|corrupt|assertion|falling back' "$dir/error.log"
    sql test -e 'CHECK TABLE a EXTENDED; CHECK TABLE b EXTENDED' >check.txt
    [ "$(grep -c 'status.*OK' check.txt)" = 2 ] || { cat check.txt; return 1; }
}

server_stop() {
    mariadb-admin --no-defaults ${root[@]+"${root[@]}"} --socket="$dir/s" shutdown 2>/dev/null || sql -e SHUTDOWN
    wait "$server"
}

tables() {
    mkdir data
    # A shell script that starts servers: children of a child of anyring run.
    ring 120 mariadb-install-db --no-defaults ${root[@]+"${root[@]}"} --datadir="$dir/data" --auth-root-authentication-method=normal \
        --skip-test-db >install.txt 2>&1 || { tail -n 20 install.txt; return 1; }
    server_start "$@"
    sql -e 'CREATE DATABASE IF NOT EXISTS test'
    sql test <<-'END'
	CREATE TABLE a (id INT AUTO_INCREMENT PRIMARY KEY, n BIGINT, t TEXT, KEY (n)) ENGINE=InnoDB;
	CREATE TABLE b LIKE a;
	INSERT INTO a (n, t) SELECT seq * 2654435761 % 1000003, REPEAT(SHA2(seq, 256), 1 + seq % 12) FROM seq_1_to_40000;
	END
    # Several connections at once: pages are read while others are written.
    sql test -e 'INSERT INTO b (n, t) SELECT n, REVERSE(t) FROM a WHERE id % 2' &
    local one=$!
    sql test -e 'UPDATE a SET n = n + 1, t = CONCAT(t, id) WHERE id % 3 = 0' &
    local two=$!
    sql test -e 'SELECT COUNT(*), SUM(CRC32(t)) FROM a' >/dev/null &
    wait $! "$one"
    wait "$two"
    sql test -e 'DELETE FROM a WHERE id % 7 = 0; UPDATE b SET t = MD5(t) WHERE id % 5 = 0; FLUSH TABLES'
    sums >sums.1
    cat sums.1
    healthy

    # A clean restart: everything comes back from disk.
    server_stop
    server_start "$@"
    sums >sums.2
    same sums.1 sums.2
    healthy

    # What was committed survives a server that is killed, and its recovery reads and writes through the ring too.
    sql test -e 'UPDATE a SET n = n * 3 WHERE id % 11 = 0; INSERT INTO b (n, t) SELECT n, t FROM a WHERE id % 4 = 1'
    sums >sums.3
    kill -KILL "$(cat "$dir/pid")"
    wait "$server" || true
    server_start "$@"
    sums >sums.4
    same sums.3 sums.4
    healthy
    server_stop
    engine_active 2000
}

case_run direct tables
case_run buffered tables --innodb-flush-method=fsync
