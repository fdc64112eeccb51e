# Sourced by run: gVisor, whose kernel is a program that implements Linux's system calls.
# shellcheck shell=bash

[ "$quick" = 0 ] || return 0

# A version of its branch for the go command.
gvisor_version=v0.0.0-20260518063529-209a0ce076a1
gvisor_cache=${CARGO_TARGET_DIR:-$top/target}/places/gvisor
runsc=$gvisor_cache/runsc

# Static: it executes itself in a root that has nothing.
make_runsc() {
    [ -x "$runsc" ] && return
    command -v go >/dev/null || return
    mkdir -p "$gvisor_cache" && cd "$gvisor_cache" || return
    printf 'module runsc\n' >go.mod
    go get "gvisor.dev/gvisor/runsc@$gvisor_version" && CGO_ENABLED=0 go build -o runsc gvisor.dev/gvisor/runsc
}

gvisor_count=0
# in_gvisor_with PLATFORM COMMAND...: through a pipe, for a file that is both outputs would have two positions there.
in_gvisor_with() {
    local bundle=$work/gvisor.$BASHPID.$((gvisor_count += 1)) platform=$1
    shift
    mkdir -p "$bundle"
    PLACES_ROOT=$(root glibc) python3 - "${variables[@]}" -- "$@" >"$bundle/config.json" <<'END'
import json, os, sys
at = sys.argv.index("--")
path = "PATH=/usr/local/bin:/usr/bin:/bin"
print(json.dumps({
    "ociVersion": "1.0.0",
    "process": {
        "user": {"uid": 0, "gid": 0}, "args": sys.argv[at + 1:], "env": [path] + sys.argv[1:at], "cwd": "/",
        "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}],
    },
    "root": {"path": os.environ["PLACES_ROOT"]},
    "hostname": "gvisor",
    "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
               {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
               {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"}],
    "linux": {"namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")]},
}))
END
    "${limited[@]}" "$runsc" --root "$work/gvisor.state" --platform="$platform" --network=none --ignore-cgroups \
        --overlay2=root:memory run --bundle "$bundle" "places-$$-$(basename "$bundle")" 2>&1 | cat
    return "${PIPESTATUS[0]}"
}
in_gvisor() { in_gvisor_with systrap "$@"; }

wanted_place gvisor || return 0
if (make_runsc) >"$work/gvisor.log" 2>&1; then
    place gvisor "gVisor's runsc ($gvisor_version, platform systrap), which reports itself as Linux 4.19" glibc in_gvisor
else
    skip_place gvisor "runsc cannot be built here: $(tail -n 1 "$work/gvisor.log")"
fi
