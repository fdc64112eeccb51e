#!/bin/sh
# MariaDB's InnoDB under `anyring chaos --power-cut`: the commands before, during and after the power cut, in the working directory.
#
#   mariadb.sh setup    makes data, with a table
#   mariadb.sh write    starts the server, commits changes to the table, prints the number of each that is committed
#   mariadb.sh check    starts the server again, which recovers: the changes on standard input must be there, and the table be sound
#
# Pages go to the table's file through a ring, and the server's pool is so small that they go while the changes are made.
set -eu
PATH=$PATH:/usr/sbin
rows=3000 changes=150

server() {
    mariadbd --no-defaults --user="$(id -un)" --datadir="$PWD/data" --skip-networking --skip-grant-tables --socket="$PWD/socket" --pid-file="$PWD/pid" \
        --log-error="$PWD/error.log" --innodb-buffer-pool-size=8M --innodb-log-file-size=8M --innodb-flush-log-at-trx-commit=1 \
        --innodb-max-dirty-pages-pct=0 --innodb-max-dirty-pages-pct-lwm=0 --innodb-io-capacity=10000 --innodb-io-capacity-max=20000 "$@"
}
sql() { mariadb --no-defaults --socket="$PWD/socket" --batch --skip-column-names --unbuffered "$@"; }

start() {
    rm -f socket error.log
    server "$@" &
    trap 'kill $! 2>/dev/null || true; wait' EXIT
    until sql -e 'SELECT 1' >answer 2>&1; do
        kill -0 $! 2>/dev/null || { tail -n 20 error.log >&2; exit 1; }
    done
}
stop() {
    sql -e SHUTDOWN
    wait
    trap - EXIT
}

case $1 in
setup)
    if [ ! -e prepared ]; then
        rm -rf data
        mkdir -p data/test
        server --bootstrap <<END
USE test;
CREATE TABLE test.a (id INT PRIMARY KEY, n INT NOT NULL, t BLOB NOT NULL, KEY (n)) ENGINE=InnoDB;
INSERT INTO test.a SELECT seq, 0, REPEAT(SHA2(seq, 256), 8) FROM seq_1_to_$rows;
END
        mv data prepared
    fi
    rm -rf data
    cp -r prepared data
    sync -f data
    ;;
write)
    start --innodb-use-native-aio=1
    grep -q 'Using io_uring' error.log
    # Each change is of rows in many pages.
    seq $changes | sed "s/.*/UPDATE a SET n = &, t = CONCAT(REPEAT(SHA2(id, 256), 8), &) WHERE id % 97 = & % 97; SELECT &;/" | sql test
    stop
    ;;
check)
    last=$(sed '$!d' | tr -dc 0-9)
    start --innodb-use-native-aio=0
    # The last change may have been committed, and nobody told.
    wrong=$(
        sql test <<END
CHECK TABLE a EXTENDED;
SELECT CONCAT('rows: ', COUNT(*)) FROM a HAVING COUNT(*) != $rows;
SELECT CONCAT('other text in row ', id) FROM a WHERE t != CONCAT(REPEAT(SHA2(id, 256), 8), IF(n = 0, '', n)) LIMIT 5;
SELECT CONCAT('row ', id, ' has ', n) FROM a WHERE n != 0 AND (id % 97 != n % 97 OR n > ${last:-0} + 1) LIMIT 5;
SELECT CONCAT('change ', said.seq, ' is gone') FROM seq_1_to_$changes AS said
    WHERE said.seq <= ${last:-0} AND EXISTS (SELECT 1 FROM a WHERE id % 97 = said.seq % 97 AND n < said.seq) LIMIT 5;
SELECT 'a change is there in part' FROM a GROUP BY id % 97 HAVING MIN(n) != MAX(n) LIMIT 1;
END
    )
    stop
    if [ "$wrong" != "$(printf 'test.a\tcheck\tstatus\tOK')" ] || grep -E '\[ERROR\] InnoDB|orrupt' error.log; then
        echo "$wrong" >&2
        exit 1
    fi
    ;;
esac
