#!/bin/sh
# MariaDB, whose InnoDB reads and writes through io_uring: a table filled and changed, then read back by another process.
set -eu
PATH=$PATH:/usr/sbin
dir=$(mktemp -d "$PWD/chaos.XXXXXX")
trap 'rm -rf "$dir"' EXIT
sql() {
    mariadbd --no-defaults --user="$(id -un)" --bootstrap --datadir="$dir" --skip-networking --log-error="$dir/error.log" \
        --innodb-use-native-aio=1 --innodb-buffer-pool-size=8M --innodb-log-file-size=8M || {
        tail -n 20 "$dir/error.log" >&2
        exit 1
    }
}
mkdir "$dir/test"
sql <<'END'
USE test;
CREATE TABLE test.a (id INT AUTO_INCREMENT PRIMARY KEY, n BIGINT, t TEXT, KEY (n)) ENGINE=InnoDB;
INSERT INTO test.a (n, t) SELECT seq * 2654435761 % 1000003, REPEAT(SHA2(seq, 256), 1 + seq % 12) FROM seq_1_to_20000;
UPDATE test.a SET n = n + 1, t = CONCAT(t, id) WHERE id % 3 = 0;
END
grep -q 'Using io_uring' "$dir/error.log"
# What must be in the table, the other process counts out.
sql <<'END'
USE test;
CREATE TABLE test.b (n BIGINT, t TEXT) ENGINE=InnoDB;
INSERT INTO test.b SELECT seq * 2654435761 % 1000003 + (seq % 3 = 0), CONCAT(REPEAT(SHA2(seq, 256), 1 + seq % 12), IF(seq % 3 = 0, seq, '')) FROM seq_1_to_20000;
CREATE TABLE test.same (same INT NOT NULL CHECK (same = 1));
INSERT INTO test.same SELECT COUNT(*) = (SELECT COUNT(*) FROM test.b) AND SUM(CRC32(CONCAT(n, t))) = (SELECT SUM(CRC32(CONCAT(n, t))) FROM test.b) FROM test.a;
END
if grep -E 'ERROR|orrupt' "$dir/error.log" >&2; then
    exit 1
fi
