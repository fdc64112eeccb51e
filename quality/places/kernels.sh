# Sourced by run: what older kernels answer, played by a filter; and real kernels, as Debian builds them, in qemu, where a
# machine is started for each command.
# shellcheck shell=bash

in_like() { "${limited[@]}" env "${variables[@]}" "$deny" --like "$like" chroot "$chroot_root" "$@"; }
for like in 4.18 5.4 5.10 5.15 6.1; do
    [ "$quick" = 0 ] || [ "$like" = 4.18 ] || continue
    place "like-$like" "\`anyring-deny --like $like\`: refuses system calls and flags that are newer than Linux $like, with the errors of that kernel" \
        glibc in_like
done

[ "$quick" = 0 ] || return 0
"$top/scripts/need" qemu-system-x86_64:qemu-system-x86 cpio xz:xz-utils curl || exit 1

kernel() { "$top/scripts/debian-kernel" "$1"; }

# The root with glibc as an initial RAM file system, which tells by the serial line what the command did.
make_guest() {
    cp -a "$(root glibc)" "$1"
    "$top/scripts/copy-linked" "$1" "$deny"
    cp "$deny" "$1/places/deny"
    cp "$(command -v busybox)" "$1/bin/busybox"
    cat >"$1/init" <<'END'
#!/bin/busybox sh
export PATH=/usr/local/bin:/usr/bin:/bin
busybox mount -t proc proc /proc
busybox mount -t devtmpfs dev /dev
busybox mount -t tmpfs tmpfs /tmp
busybox ip link set lo up
exec <dev/null >/dev/ttyS0 2>&1
/bin/sh /command
echo "exit status: $?"
busybox poweroff -f
END
    chmod +x "$1/init"
    (cd "$1" && find . | cpio -o -H newc --quiet) >"$work/guest.cpio"
}

# in_kernel SUITE DENIES COMMAND...: DENIES is the beginning of a shell's command that ends with COMMAND: it denies io_uring.
in_kernel() {
    local image denies=$2 command=$work/command.$BASHPID console=$work/console.$BASHPID
    image=$(kernel "$1") && root guest >/dev/null || return
    shift 2
    mkdir -p "$command"
    {
        [ ${#variables[@]} = 0 ] || printf 'export %s\n' "${variables[@]}"
        printf '%s ' "$denies" && echo "${*@Q}"
    } >"$command/command"
    (cd "$command" && echo command | cpio -o -H newc --quiet) | cat "$work/guest.cpio" - >"$command.cpio"
    # The emulator breaks newer kernels now and then (in their patching of their own code): such a machine says nothing
    # of the program.
    local try
    for try in 1 2 3 4 5 6; do
        timeout --kill-after=5 300 qemu-system-x86_64 -accel tcg -cpu max -m 2048 -display none -nodefaults \
            -no-reboot -serial stdio -kernel "$image" -initrd "$command.cpio" \
            -append 'console=ttyS0 quiet loglevel=3 panic=-1' </dev/null | tr -d '\r' >"$console"
        grep -qE 'Kernel panic|Oops|BUG: |WARNING: ' "$console" || break
    done
    rm -r "$command" "$command.cpio"
    sed '/^exit status: /,$d' "$console"
    return "$(sed -n 's/^exit status: //p' "$console" | grep . || echo 124)"
}

in_bullseye() { in_kernel bullseye 'exec /places/deny' "$@"; }
in_bookworm() { in_kernel bookworm 'exec /places/deny' "$@"; }
in_trixie() { in_kernel trixie 'echo 2 >/proc/sys/kernel/io_uring_disabled; exec' "$@"; }
kernel_place() {
    wanted_place "$2" || return 0
    if kernel "$1" >"$work/kernel.log" 2>&1; then
        place "$2" "$3" glibc "in_$1"
    else
        skip_place "$2" "that kernel cannot be had here: $(tail -n 1 "$work/kernel.log")"
    fi
}
kernel_place bullseye linux-5.10 "the kernel of Debian 11, in qemu, io_uring denied by an errno"
kernel_place bookworm linux-6.1 "the kernel of Debian 12, in qemu, io_uring denied by an errno"
kernel_place trixie linux-6.12 'the kernel of Debian 13, in qemu, with the sysctl `io_uring_disabled` at 2'
