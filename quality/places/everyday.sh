# Sourced by run: programs of every day, that ask for no ring, with and without `anyring run`: what they print and how they
# end is the same, and the table says what they take. Time decides nothing.
# shellcheck shell=bash

everyday_rows=()
everyday_times=${PLACES_TIMES:-7}
[ "$quick" = 0 ] || everyday_times=1

# everyday NAME WHAT NEEDED... -- SCRIPT: NEEDED are what scripts/need wants. SCRIPT runs in a directory that is empty at first.
everyday() {
    local name=$1 what=$2 needed=() dir=$work/everyday/$1
    shift 2
    while [ "$1" != -- ]; do
        needed+=("$1")
        shift
    done
    wanted_place "everyday-$name" || return 0
    local pair
    for pair in "${needed[@]}"; do
        # The quick run installs nothing for this.
        [ "$quick" = 1 ] && command -v "${pair%%:*}" >/dev/null && continue
        if [ "$quick" = 1 ] || ! "$top/scripts/need" "$pair" >"$work/need" 2>&1; then
            skip_place "everyday-$name" "no ${pair%%:*}"
            return
        fi
    done
    mkdir -p "$dir"
    local round side status without=() with=() before
    for ((round = 0; round < everyday_times; round++)); do
        for side in without with; do
            rm -rf "$dir/here" && mkdir "$dir/here" && cd "$dir/here" || return
            local prefix=("$deny")
            [ $side = without ] || prefix+=("$programs/anyring" run --log off --)
            before=${EPOCHREALTIME/./}
            status=0
            "${limited[@]}" "${prefix[@]}" bash -c "$2" >"$dir/$side.out" 2>"$dir/$side.err" </dev/null || status=$?
            local -n times=$side
            times+=($((${EPOCHREALTIME/./} - before)))
            echo "status $status" >>"$dir/$side.out"
            cd "$top" || return
        done
    done
    if diff "$dir/without.out" "$dir/with.out" >"$dir/diff" && ! grep -q 'status 1[23][0-9]' "$dir/with.out"; then
        passed=$((passed + 1))
        local a b
        a=$(median "${without[@]}") b=$(median "${with[@]}")
        everyday_rows+=("| $name | $what | the same | $((a / 1000)) ms | $((b / 1000)) ms | $(awk "BEGIN { printf \"%.2f\", $b / $a }") |")
        echo "ok everyday $name ($((a / 1000)) ms without, $((b / 1000)) ms with)"
    else
        failed=$((failed + 1))
        everyday_rows+=("| $name | $what | **differs** | | | |")
        echo "fail everyday $name: $(head -c 400 "$dir/diff")"
        tail -n 5 "$dir/with.err" | cut -c1-240 | sed 's/^/    | /'
    fi
}

median() { printf '%s\n' "$@" | sort -n | sed -n "$((($# + 1) / 2))p"; }

everyday shell 'bash: 300 pipes and subshells' -- \
    'for i in {1..300}; do (echo $i | tr 0-9 a-j); done | sort | md5sum'
everyday python 'Python: children, threads, asyncio' python3 -- 'python3 - <<END
import asyncio, subprocess, threading, hashlib
print(subprocess.run(["sh", "-c", "echo child; exit 3"], capture_output=True))
said = []
threads = [threading.Thread(target=lambda i=i: said.append(i)) for i in range(50)]
[t.start() for t in threads]; [t.join() for t in threads]
async def main():
    server = await asyncio.start_server(lambda r, w: (w.write(b"x" * 100000), w.close()), "127.0.0.1", 0)
    async def one():
        r, w = await asyncio.open_connection(*server.sockets[0].getsockname())
        data = await r.read(); w.close(); return len(data)
    print(sum(await asyncio.gather(*[one() for _ in range(50)])))
asyncio.run(main())
print(sorted(said) == list(range(50)))
END'
everyday git 'git: 300 files added, committed, cloned, checked' git -- '
export GIT_AUTHOR_DATE="2026-01-01 00:00:00 +0000" GIT_COMMITTER_DATE="2026-01-01 00:00:00 +0000" HOME=$PWD
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@a GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@a
git init -q r && cd r && for i in {1..300}; do echo $i >f$i; done && git add . && git commit -qm one && git gc -q
git clone -q . ../c && cd ../c && git fsck && git log --format=%H && git status --short'
everyday compiler 'make and gcc: 12 files, 4 jobs' make gcc -- '
for i in {1..12}; do echo "#include <stdio.h>
int f$i(void) { return $i; }" >f$i.c; done
{ for i in {1..12}; do echo "int f$i(void);"; done; echo "#include <stdio.h>
int main(void) { printf(\"%d\\n\", f1() + f12()); }"; } >main.c
echo "prog: \$(patsubst %.c,%.o,\$(wildcard *.c)); @cc -o prog \$^" >Makefile
make -s -j4 && ./prog'
everyday cargo 'cargo: a new crate built and tested' cargo -- '
export CARGO_TARGET_DIR=$PWD/target; cargo new -q --vcs none --lib thing 2>/dev/null && cd thing && cargo test -q --offline 2>/dev/null | grep result: | sed "s/finished.*//"'
everyday java 'Java: compiled and run, files and threads' javac:default-jdk-headless -- '
cat >T.java <<END
import java.nio.file.*; import java.util.*; import java.util.stream.*;
public class T { public static void main(String[] a) throws Exception {
  var dir = Files.createTempDirectory("t");
  for (int i = 0; i < 200; i++) Files.writeString(dir.resolve("f" + i), "text " + i);
  System.out.println(IntStream.range(0, 200).parallel().mapToObj(i -> { try { return Files.readString(dir.resolve("f" + i)); } catch (Exception e) { return e.toString(); } }).collect(Collectors.joining()).hashCode());
  System.out.println(new ProcessBuilder("sh", "-c", "exit 5").start().waitFor()); } }
END
javac T.java && java T'
everyday node 'Node: files, children, its own pool' node:nodejs -- 'node -e "
const fs = require(\"fs\"), cp = require(\"child_process\"), crypto = require(\"crypto\");
for (let i = 0; i < 200; i++) fs.writeFileSync(\"f\" + i, \"text\" + i);
console.log(crypto.createHash(\"md5\").update(fs.readdirSync(\".\").sort().map((f) => fs.readFileSync(f, \"utf8\")).join()).digest(\"hex\"));
console.log(cp.spawnSync(\"sh\", [\"-c\", \"exit 6\"]).status);
crypto.pbkdf2(\"a\", \"b\", 1000, 32, \"sha256\", (e, k) => console.log(k.toString(\"hex\")));"'
everyday gdb 'gdb: a program that faults, and where' gdb gcc -- '
printf "void f(int *p) { *p = 1; }\nint main(void) { f(0); }\n" >c.c && cc -g -o c c.c
gdb -q -batch -nx -ex "set disable-randomization on" -ex run -ex bt ./c 2>&1 | grep -E "^#|SIGSEGV"'
everyday strace 'strace: a child, and what it opens' strace -- '
echo text >file; strace -f -o trace -e trace=openat sh -c "cat file; true"; grep -c "\"file\"" trace'
everyday valgrind 'valgrind: a program with a leak, found' valgrind gcc -- '
printf "#include <stdlib.h>\nint main(void) { malloc(10); return 0; }\n" >c.c && cc -g -o c c.c
valgrind -q --leak-check=full --error-exitcode=9 ./c 2>&1 | grep -o "10 bytes in 1 blocks are definitely lost"; echo ${PIPESTATUS[0]}'
everyday tar 'tar, gzip, find, sort over 2,000 files' -- '
for i in {1..2000}; do echo $i >f$i; done; tar cf - . | gzip | tar tzf - | sort | md5sum; find . -newer f1 | wc -l >/dev/null'
everyday sqlite 'SQLite: 2,000 rows, a journal' sqlite3 -- '
sqlite3 db "create table t(a); begin; $(for i in {1..2000}; do echo "insert into t values($i);"; done) commit; select sum(a) from t; pragma integrity_check"'
if [ "$quick" = 0 ]; then
    # Its processes install filters of their own. Without privileges, as it wants.
    everyday browser 'Chromium, headless, in its own sandbox: a page with a script' chromium -- '
    echo "<p id=a></p><script>document.getElementById(\"a\").textContent = [1,2,3].map((x) => x * x).join()</script>" >page.html
    chmod 755 . .. && mkdir profile && chmod 777 profile
    setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=$PWD/profile timeout 60 chromium --headless --disable-gpu --disable-quic \
        --no-first-run --disable-background-networking --disable-component-update --disable-sync --user-data-dir=$PWD/profile \
        --dump-dom file://$PWD/page.html 2>/dev/null | grep "<p id"'
fi
