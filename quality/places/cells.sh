# Sourced by run: what runs in a place, how it is judged, and the matrix.
# shellcheck shell=bash

passed=0 reasoned=0 failed=0 skipped=0
forms=(preload static node liburing crate plain doctor)
declare -A cell=() about=()
place_names=()

# place NAME ABOUT KIND RUNNER [FORM='REASON' | FORM=-]...: runs every form in a place. RUNNER COMMAND... runs a command
# there, with the environment of the array `variables`. FORM='REASON' expects that form not to work, for that reason;
# FORM=- that the place has no such program.
place() {
    local name=$1 kind=$3 runner=$4 form wanted
    about[$name]=$2
    shift 4
    wanted_place "$name" || return 0
    place_names+=("$name")
    local -A expected=()
    for wanted in "$@"; do expected[${wanted%%=*}]=${wanted#*=}; done
    for form in "${forms[@]}"; do
        has_form "$kind" "$form" || expected[$form]=-
        run_cell "$name" "$form" "$runner" "$kind" "${expected[$form]:-}"
    done
}

# skip_place NAME REASON
skip_place() {
    skipped=$((skipped + 1))
    echo "skip $1: $2"
}

wanted_place() {
    local pattern
    [ ${#patterns[@]} = 0 ] && return 0
    # shellcheck disable=SC2053
    for pattern in "${patterns[@]}"; do [[ $1 == $pattern ]] && return 0; done
    return 1
}

# What a root has no program for.
has_form() {
    case $1/$2 in
    scratch/preload | scratch/node | scratch/liburing | scratch/plain | musl/node | musl/liburing) return 1 ;;
    esac
}

# run_cell PLACE FORM RUNNER KIND EXPECTED
run_cell() {
    local name=$1 form=$2 runner=$3 kind=$4 expected=$5 status=0 before=$SECONDS
    if [ "$expected" = - ]; then
        cell[$name/$form]='–'
        return
    fi
    if [ -n "${absent[$form]:-}" ]; then
        cell[$name/$form]="skipped: ${absent[$form]}"
        skipped=$((skipped + 1))
        echo "skip $name $form: ${absent[$form]}"
        return
    fi
    said=$work/said
    # No `if` and no `||` around it: either would switch `set -e` off inside.
    (
        set -e
        "form_$form" "$runner" "$kind"
    ) >"$work/verdict" 2>&1
    status=$?
    if [ $status = 0 ] && [ -z "$expected" ]; then
        cell[$name/$form]=pass
        passed=$((passed + 1))
        echo "ok $name $form ($((SECONDS - before)) s)"
    elif [ $status != 0 ] && [ -n "$expected" ] && is_harmless; then
        cell[$name/$form]=$expected
        reasoned=$((reasoned + 1))
        echo "ok $name $form: $expected"
    else
        cell[$name/$form]='**fails**'
        failed=$((failed + 1))
        if [ $status = 0 ]; then
            echo "fail $name $form: it works, but its definition says: $expected"
        else
            echo "fail $name $form: $(head -c 300 "$work/verdict")"
            tail -n 8 "$said" | cut -c1-240 | sed 's/^/    | /'
        fi
    fi
}

# What cannot work must fail by an error that somebody can read, not by a signal.
is_harmless() { ! grep -qE 'ended with status (159|139|134|132)' "$work/verdict"; }

# there RUNNER COMMAND...: its output is in $said; fails with its status. Runners put `limited` before what they start.
variables=()
limited=(timeout --kill-after=5 90)
there() {
    local status=0
    "$@" >"$said" 2>&1 </dev/null || status=$?
    [ $status = 0 ] || {
        echo "ended with status $status"
        return $status
    }
}

# says PATTERN: the program's output, which is in $said, has a line that matches.
says() {
    grep -qE "$1" "$said" || {
        echo "it does not say: $1"
        return 1
    }
}

ours='engine=user rings=[1-9]'

form_preload() {
    if [ "$2" = musl ]; then
        there "$1" /anyring run --engine user --log info -- /places/rw /tmp/rw.data
        says '65 blocks hold'
    else
        there "$1" /anyring run --engine user --log info -- fio --directory=/tmp /places/verify.fio
        says 'err= 0'
    fi
    says "$ours"
}

form_static() {
    there "$1" /anyring run --engine user --log info -- /places/rings files /tmp 2 64
    says "$ours"
}

form_node() {
    variables=(UV_USE_IO_URING=1)
    there "$1" /anyring run --engine user --log info -- node /places/server.mjs /tmp 35
    says '^35 requests hold'
    says "$ours"
}

form_liburing() {
    variables=(LD_LIBRARY_PATH=/places/liburing ANYRING_ENGINE=user ANYRING_LOG=info)
    there "$1" /places/uring /tmp/uring.data
    says '65 blocks hold'
    says "$ours"
}

form_crate() {
    there "$1" /places/copy /places/rw-static /tmp/copied
    says 'bytes with the user engine'
}

# What anyring itself says on standard error does not count: that the engine cannot be had, for one.
form_plain() {
    local script='echo b a | tr " " "\n" | sort; ls /places >/dev/null; (exit 3); echo $?; cat /nowhere; true & wait $!; exit 7'
    "$1" sh -c "$script" >"$work/without" 2>&1 </dev/null || [ $? = 7 ] || {
        echo "without anyring: $(cat "$work/without")"
        return 1
    }
    there "$1" /anyring run -- sh -c "$script" || [ $? = 7 ]
    diff <(sort "$work/without") <(grep -vE '^anyring\[' "$said" | sort)
}

form_doctor() {
    there "$1" /anyring doctor
    says 'will use'
}

write_page() {
    local name form
    cat <<-END
	# Places

	A *place* is a sandbox, a container or a kernel in which programs were run under anyring; every place denies io_uring in its own way. "pass" means
	that the program verified its data, and that anyring's user engine served its requests. The columns: fio (*preload*), a *static* Go program and *node*
	under \`anyring run\`; a program over anyring's *liburing*; a Rust program with the *crate*; a *plain* shell script without rings; \`anyring doctor\`.
	\`make test-places\` runs each cell of the table ([quality/places/run](../quality/places/run)) and writes this page.

	$(printf '| place | %s\n' "$(printf '%s | ' "${forms[@]}")")
	$(printf '| --- |%s\n' "$(printf ' --- |%.0s' "${forms[@]}")")
	END
    for name in "${place_names[@]}"; do
        printf '| %s |' "$name"
        for form in "${forms[@]}"; do printf ' %s |' "${cell[$name/$form]}"; done
        echo
    done
    echo
    echo 'The places:'
    echo
    for name in "${place_names[@]}"; do echo "- **$name**: ${about[$name]}"; done
    cat <<-END

	## Everyday programs

	Programs that make no ring: with io_uring denied, they print the same and end with the same status with \`anyring run\` and without it. The times
	are medians of $everyday_times runs, side by side, on $(nproc) processors ($(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1), Linux $(uname -r)).

	| program | what | behaves | without | with | ratio |
	| --- | --- | --- | --- | --- | --- |
	$(printf '%s\n' "${everyday_rows[@]}")

	END
    cat "$here/places.md"
}
