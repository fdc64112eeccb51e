# Sourced by run: the programs, and the root directories that have no more than they need.
# shellcheck shell=bash

"$top/scripts/need" fio gcc musl-gcc:musl-tools /usr/include/stdio.h:libc6-dev /usr/include/liburing.h:liburing-dev \
    busybox:busybox-static || exit 1

# What is skipped in every place, and why: FORM=REASON.
declare -A absent=()

programs=$work/programs
mkdir -p "$programs"
cp "$build/one-file/anyring" "$programs/anyring"
cp "$top/demo/verify.fio" "$top"/quality/programs/node/server.mjs "$programs/"
musl_headers=(-idirafter /usr/include -idirafter "/usr/include/$(uname -m)-linux-gnu")
cc -O2 -Wall -o "$programs/rw" "$here/rw.c"
cc -O2 -Wall -static -o "$programs/rw-static" "$here/rw.c"
musl-gcc -O2 "${musl_headers[@]}" -o "$programs/rw-musl" "$here/rw.c"
cc -O2 -Wall -o "$programs/uring" "$here/uring.c" -luring
mkdir -p "$programs/liburing"
cp -L "$build/liburing.so.2" "$programs/liburing/"

# The crate's example, static: with a target named, the flag is not that of build scripts too.
host=$(rustc -vV | sed -n 's/^host: //p')
RUSTFLAGS='-C target-feature=+crt-static' cargo build -q --release --locked --manifest-path "$top/Cargo.toml" \
    --target "$host" -p anyring --example copy || exit 1
cp "${CARGO_TARGET_DIR:-$top/target}/$host/release/examples/copy" "$programs/copy"

if command -v go >/dev/null; then
    # From Go 1.23 on the linker wants to be told so; older ones do not know the option.
    go_build() { (cd "$top/quality/programs/go" && CGO_ENABLED=0 go build -buildvcs=false "$@" -o "$programs/rings" .); }
    go_build -ldflags=-checklinkname=0 2>/dev/null || go_build || absent[static]='the Go program cannot be built here'
else
    absent[static]='there is no Go here'
fi
node=$(command -v node || true)
[ -n "$node" ] && "$node" -e 'const [a, b] = process.versions.node.split("."); process.exit(a > 20 || a == 20 && b >= 3 ? 0 : 1)' ||
    absent[node]='there is no Node from 20.3 on here'

# base ROOT: what each root has: anyring, the programs, mount points.
base() {
    mkdir -p "$1"/{proc,sys,dev,tmp,etc,bin,run,places}
    chmod 1777 "$1/tmp"
    echo 'root:x:0:0:root:/:/bin/sh' >"$1/etc/passwd"
    echo '127.0.0.1 localhost' >"$1/etc/hosts"
    cp "$programs/anyring" "$1/anyring"
    cp -r "$programs"/{verify.fio,server.mjs,rw-static,copy,liburing} "$1/places/"
    [ ! -e "$programs/rings" ] || cp "$programs/rings" "$1/places/"
}

# One C library of glibc, and no more than the programs need: a distroless image.
make_glibc() {
    base "$1"
    local tools=(/bin/sh /bin/cat /bin/ls /bin/true /usr/bin/tr /usr/bin/env /usr/bin/sort /usr/bin/id)
    "$top/scripts/copy-linked" "$1" "${tools[@]}" "$(command -v fio)" $node
    cp "$programs/rw" "$programs/uring" "$1/places/"
    "$top/scripts/copy-linked" --without-programs "$1" "$programs/uring"
}

# musl and busybox: what Alpine is.
make_musl() {
    base "$1"
    cp "$(command -v busybox)" "$1/bin/busybox"
    local tool
    for tool in sh cat ls true tr env sort id; do ln -s busybox "$1/bin/$tool"; done
    cp "$programs/rw-musl" "$1/places/rw"
    "$top/scripts/copy-linked" --without-programs "$1" "$programs/rw-musl"
}

# Nothing but anyring and static programs: FROM scratch.
make_scratch() { base "$1"; }

# A whole Debian.
make_debian() {
    "$top/scripts/need" debootstrap || return 1
    local mirror
    mirror=$(sed -n 's/^URIs: //p; s/^deb \(http[^ ]*\).*/\1/p' /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -1)
    debootstrap --variant=minbase --include=fio,liburing2,git,gcc,libc6-dev,make,python3-minimal bookworm "$1" "${mirror:-http://deb.debian.org/debian}" \
        >"$work/debootstrap.log" 2>&1 || {
        tail -3 "$work/debootstrap.log" >&2
        return 1
    }
    base "$1"
    [ -z "$node" ] || "$top/scripts/copy-linked" "$1" "$node"
    cp "$programs/rw" "$programs/uring" "$1/places/"
}

# make_owned NAME USER: the root directory with glibc once more, which belongs to USER.
make_owned() {
    [ -d "$work/root/$1" ] && return
    cp -a "$(root glibc)" "$work/root/$1" && chown -R "$2" "$work/root/$1"
}

# root KIND: the root directory of that kind, made once.
root() {
    local path=$work/root/$1
    # Its own name it gets when it is whole.
    [ -d "$path" ] || { "make_$1" "$path.new" >&2 && mv "$path.new" "$path"; } || return 1
    echo "$path"
}
