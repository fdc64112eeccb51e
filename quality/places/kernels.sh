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

. "$top/scripts/guest.sh"
kernel() { "$top/scripts/debian-kernel" "$1"; }

# The root with glibc as an initial RAM file system, which tells by the serial line what the command did.
make_guest() {
    cp -a "$(root glibc)" "$1"
    "$top/scripts/copy-linked" "$1" "$deny"
    cp "$deny" "$1/places/deny"
    guest_begin "$1" "$(command -v busybox)"
    guest_pack "$1" >"$work/guest.cpio"
}

# in_kernel SUITE DENIES COMMAND...: DENIES is the beginning of a shell's command that ends with COMMAND: it denies io_uring.
in_kernel() {
    local image denies=$2 command=$work/command.$BASHPID
    image=$(kernel "$1") && root guest >/dev/null || return
    shift 2
    mkdir -p "$command"
    {
        [ ${#variables[@]} = 0 ] || printf 'export %s\n' "${variables[@]}"
        printf '%s ' "$denies" && echo "${*@Q}"
    } >"$command/command"
    (cd "$command" && echo command | cpio -o -H newc --quiet) | cat "$work/guest.cpio" - >"$command.cpio"
    local status=0
    guest_boot amd64 "$image" "$command.cpio" 300 || status=$?
    rm -r "$command" "$command".cpio*
    return $status
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
