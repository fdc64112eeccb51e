#!/usr/bin/env bash
# Programs of other people's Rust crates, each with one line of ours: anyring::everywhere!(). No launcher: denied they
# have our engine, allowed the kernel's, and either if asked for. Without the line they fail where they are denied.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
need cargo

programs=(io-uring tokio-uring monoio compio glommio)
quick && programs=(io-uring)
bin=${CARGO_TARGET_DIR:-$here/../../target}/everywhere
build() { cargo build --manifest-path "$here/everywhere/Cargo.toml" --target-dir "$bin" "$@"; }
# The last has features that the others must not have.
if ! output=$({ build "${programs[@]/#/--package=everywhere-}" && build --package=everywhere-direct; } 2>&1); then
    if grep -q 'failed to download\|failed to get\|Could not resolve' <<<"$output"; then
        skip all "the crates cannot be had from crates.io: $(grep -m 1 'error\|Could not' <<<"$output")"
        exit 0
    fi
    echo "$output" | tail -n 30
    exit 1
fi
bin+=/debug

# direct SECONDS ENGINE COMMAND...: without a launcher.
direct() {
    local limit=$1 engine=$2
    shift 2
    ANYRING_ENGINE=$engine ANYRING_LOG=$log RUST_BACKTRACE=0 timeout --kill-after=5 "$limit" "$@"
}

# Blocks written and read, and what the connections received, are some hundred requests.
denied() { direct 60 auto "$ANYRING_BIN/anyring-deny" "$bin/everywhere-$1" && engine_active 500; }
allowed() { direct 60 auto "$bin/everywhere-$1"; }
forced() { direct 60 "$2" "$bin/everywhere-$1" && { [ "$2" = kernel ] || engine_active 500; }; }
launched() { ring 60 "$bin/everywhere-$1" && engine_active 500; }
# Calls by instructions are caught only if the line says so.
direct_calls() {
    direct 60 auto "$ANYRING_BIN/anyring-deny" "$bin/everywhere-direct" && engine_active 500
    lacks ' traps=0 ' "$log"
}
without() {
    ! direct 60 auto "$ANYRING_BIN/anyring-deny" "$bin/$1-without" 2>errors
    # glommio's words for it are its own.
    grep -E 'Operation not permitted|PermissionDenied|Failed to register a probe' errors
}

for name in "${programs[@]}"; do
    if native; then
        case_run "$name" "$bin/$name-without"
        continue
    fi
    expected=user
    case_run "$name-denied" denied "$name"
    case_run "$name-user" forced "$name" user
    case_run "$name-launched" launched "$name"
    # What the kernel allows on this machine is not up to the test.
    if kernel_allows; then
        expected=kernel
        case_run "$name-allowed" allowed "$name"
        case_run "$name-kernel" forced "$name" kernel
    else
        skip "$name-allowed" "this machine denies io_uring"
    fi
    expected=none
    case_run "$name-without" without "$name"
done

if ! native; then
    expected=user
    case_run direct-denied direct_calls
fi
