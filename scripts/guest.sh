# Sourced: machines in qemu that run one command on a kernel of Debian's. Each boots from memory alone and is gone afterwards.
# shellcheck shell=bash

# guest_begin ROOT [BUSYBOX]: lets ROOT, a root directory, begin with its /command and tell by the console what became of it.
# BUSYBOX is a static one, where ROOT has none.
guest_begin() {
    mkdir -p "$1"/{bin,proc,dev,tmp,sys}
    [ $# = 1 ] || cp "$2" "$1/bin/busybox"
    [ -e "$1/bin/sh" ] || ln -s busybox "$1/bin/sh"
    cat >"$1/init" <<'END'
#!/bin/busybox sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
busybox mount -t proc proc /proc
# As elsewhere: the kernel mounts its first root so that each look into a directory is noted in it.
busybox mount -o remount,relatime /
busybox mount -t devtmpfs dev /dev
# A directory that ROOT has in /tmp, such as a checkout that lies there, is seen there.
busybox mv /tmp /carried
busybox mkdir /tmp
busybox mount -t tmpfs tmpfs /tmp
for carried in /carried/*; do
    [ -d "$carried" ] || continue
    busybox mkdir "/tmp/${carried##*/}"
    busybox mount --bind "$carried" "/tmp/${carried##*/}"
done
busybox mkdir /dev/shm
busybox mount -t tmpfs tmpfs /dev/shm
busybox mkdir /dev/pts
busybox mount -t devpts devpts /dev/pts
busybox ip link set lo up
exec </dev/null >/dev/console 2>&1
/bin/sh /command
echo "exit status: $?"
busybox poweroff -f
END
    chmod +x "$1/init"
}

# guest_pack ROOT: writes the directory as an initial RAM file system. Several that follow one another are one.
guest_pack() { (cd "$1" && find . | cpio -o -H newc --quiet); }

# guest_boot ARCHITECTURE IMAGE INITRD SECONDS OPTION...: boots a machine of that architecture (as Debian names it), with these
# options for qemu, and the kernel with those in guest_parameters; prints what its command printed, and returns its status.
guest_boot() {
    local image=$2 initrd=$3 seconds=$4 qemu console
    case $1 in
    amd64) qemu=(qemu-system-x86_64 -cpu max) console=ttyS0 ;;
    # Emulated, the usual algorithm of pointer authentication takes as much time as all else together.
    arm64) qemu=(qemu-system-aarch64 -M virt -cpu max,pauth-impdef=on) console=ttyAMA0 ;;
    esac
    shift 4
    # The emulator translates code anew at each new address. With norandmaps, a program has the same addresses each time.
    # The emulator breaks newer kernels now and then (in their patching of their own code): such a machine says nothing
    # of the program.
    local try told=$initrd.console
    for try in 1 2 3 4 5 6; do
        timeout --kill-after=5 "$seconds" "${qemu[@]}" -accel tcg -m 2048 -display none -nodefaults -no-reboot \
            -serial stdio -kernel "$image" -initrd "$initrd" \
            -append "console=$console quiet loglevel=3 panic=-1 norandmaps ${guest_parameters-}" "$@" </dev/null >"$told" || true
        sed -i 's/\r$//' "$told"
        grep -qE 'Kernel panic|Oops|BUG: |WARNING: ' "$told" || break
        echo "guest: try $try: the kernel broke in the emulator" >&2
    done
    sed '/^exit status: /,$d' "$told"
    return "$(sed -n 's/^exit status: //p' "$told" | grep . || echo 124)"
}
