# Sourced by run: containers, made by podman and runc with their own default profiles.
# shellcheck shell=bash

"$top/scripts/need" podman runc newuidmap:uidmap || exit 1

# Podman wants more open files than this machine may give, if it is not told otherwise.
container_options=(--rm --network=none --runtime=runc --log-driver=none --pull=never
    --ulimit nofile=1024:1024 --ulimit nproc=1024:1024)

# container KIND OPTION... -- COMMAND...: runs a command in a container over that root, whose changes are thrown away.
container() {
    local kind=$1 variable options=()
    shift
    while [ "$1" != -- ]; do
        options+=("$1")
        shift
    done
    shift
    for variable in "${variables[@]}"; do options+=(-e "$variable"); done
    "${limited[@]}" podman run "${container_options[@]}" "${options[@]}" --rootfs "$(root "$kind"):O" "$@"
}

in_glibc() { container glibc -- "$@"; }
place podman 'podman and runc with the default seccomp profile, as root; the root directory has glibc and the programs only, like distroless images' \
    glibc in_glibc

in_musl() { container musl -- "$@"; }
place podman-musl 'the same with a root directory of musl and busybox, like Alpine' musl in_musl

in_scratch() { container scratch -- "$@"; }
place podman-scratch 'the same with a root directory that has static programs only: `FROM scratch`, `COPY anyring /anyring`' scratch in_scratch

in_read_only() { container glibc --read-only --tmpfs /tmp -- "$@"; }
place podman-read-only '`--read-only`, with a `/tmp` in memory' glibc in_read_only

in_bare() { container glibc --cap-drop=all --security-opt=no-new-privileges -- "$@"; }
place podman-no-rights '`--cap-drop=all --security-opt=no-new-privileges`' glibc in_bare

in_few() { container glibc --pids-limit=24 -- "$@"; }
place podman-few-processes '`--pids-limit=24`' glibc in_few

# The root belongs to the namespace's own root.
in_namespace() {
    make_owned mapped 200000
    container mapped --uidmap=0:200000:65536 --gidmap=0:200000:65536 -- "$@"
}
place podman-user-namespace 'in a user namespace: `--uidmap`' glibc in_namespace

in_restricted() {
    container glibc --user=1000:1000 --cap-drop=all --security-opt=no-new-privileges --read-only --tmpfs /tmp:mode=1777 \
        --pids-limit=64 --memory=512m -- "$@"
}
place kubernetes-restricted 'the settings that the "restricted" standard of Kubernetes requires: a user other than root, no capabilities, no new privileges, a read-only root directory, the runtime'"'"'s seccomp profile; 512 MiB, 64 processes' \
    glibc in_restricted

# An init container copies the libraries to a volume; the program's container has LD_PRELOAD and no anyring.
in_preloaded() {
    local preloaded=()
    # `/anyring run OPTIONS -- PROGRAM` becomes PROGRAM: nobody calls anyring there.
    if [ "$1/$2" = /anyring/run ]; then
        preloaded=(-e LD_PRELOAD=/shared/libanyring_preload.so)
        while [ "$1" != -- ]; do
            [ "$1" != --log ] || preloaded+=(-e "ANYRING_LOG=$2")
            shift
        done
        shift
    fi
    mkdir -p "$work/shared"
    [ -e "$work/shared/libanyring_preload.so" ] ||
        container scratch --volume "$work/shared:/shared" -- /anyring unpack /shared || return
    container glibc --volume "$work/shared:/shared:ro" "${preloaded[@]}" -- "$@"
}
place init-container 'an init container unpacks the libraries into a shared volume, and the program'"'"'s container has only the variable `LD_PRELOAD`, and no `anyring run`' \
    glibc in_preloaded static='`LD_PRELOAD` has no effect on static programs: they need `anyring run`'

# Rootless: another user's podman.
rootless_user=anyring-places
in_rootless() {
    local variable options=()
    id "$rootless_user" >/dev/null 2>&1 || useradd --create-home "$rootless_user"
    make_owned rootless "$rootless_user"
    [ -d "$work/rootless.run" ] || install -d -m 700 -o "$rootless_user" "$work/rootless.run"
    for variable in "${variables[@]}"; do options+=(-e "$variable"); done
    (cd / && "${limited[@]}" runuser -u "$rootless_user" -- env "XDG_RUNTIME_DIR=$work/rootless.run" \
        podman --log-level=error run "${container_options[@]}" "${options[@]}" --rootfs "$(root rootless)" "$@")
}
# What holds that user's namespaces lives on, and its mounts.
ends+=("pkill -KILL -u $rootless_user")
place podman-rootless 'rootless podman' glibc in_rootless

if [ "$quick" = 0 ]; then
    in_debian() { container debian -- "$@"; }
    place podman-debian 'podman with a complete Debian 12 as root directory, made by debootstrap' debian in_debian
fi
