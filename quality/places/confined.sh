# Sourced by run: sandboxes without containers.
# shellcheck shell=bash

"$top/scripts/need" bwrap:bubblewrap || exit 1

deny="$build/anyring-deny"
cc -O2 -o "$work/deny" "$top/tools/cli/tests/programs/deny.c"

# A copy, for what is mounted in it stays until the end.
make_owned chroot root
chroot_root=$(root chroot)
in_chroot() { "${limited[@]}" env "${variables[@]}" "$deny" chroot "$chroot_root" "$@"; }
mount -t proc proc "$chroot_root/proc" && ends+=("umount $chroot_root/proc")
place chroot 'a `chroot` with `/proc`, io_uring denied by an errno' glibc in_chroot

in_bare_chroot() { "${limited[@]}" env "${variables[@]}" "$deny" chroot "$(root scratch)" "$@"; }
place chroot-scratch 'a `chroot` with static programs only, without `/proc`' scratch in_bare_chroot

in_bubblewrap() {
    "${limited[@]}" env "${variables[@]}" "$deny" bwrap --unshare-all --bind "$(root glibc)" / --proc /proc --dev /dev --tmpfs /tmp "$@"
}
place bubblewrap 'bubblewrap with all its namespaces, as Flatpak starts programs' glibc in_bubblewrap

in_killing() { "${limited[@]}" env "${variables[@]}" "$work/deny" kill chroot "$chroot_root" "$@"; }
place systemd-kills 'a seccomp filter that kills a process that calls io_uring, as systemd'"'"'s `SystemCallFilter=` does if no errno is given' \
    glibc in_killing static='the sandbox kills the program at its first io_uring call, so `anyring run` refuses to start it (exit status 125)'

in_mdwe() { "${limited[@]}" env "${variables[@]}" "$work/deny" 1,mdwe chroot "$chroot_root" "$@"; }
place systemd-no-exec 'systemd'"'"'s `MemoryDenyWriteExecute=`: no memory can become executable' glibc in_mdwe \
    node='V8 needs memory that becomes executable'
