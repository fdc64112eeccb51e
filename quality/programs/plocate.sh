# plocate, which reads its index and looks at the files that it found through io_uring.
source "$(dirname "$0")/lib.sh"
need plocate updatedb.plocate:plocate

# What it finds in an index of a tree of our own, with -e after some of the files are gone.
finds() {
    local i
    # The installed one gains a group, and takes nothing in from who starts it.
    cp "$(command -v plocate)" ./plocate
    mkdir tree
    for i in $(seq 1 2000); do : >"tree/needle-$i"; done
    # The index belongs to the one who asks: without looking at permissions, all of it is read through the ring.
    updatedb.plocate -l 0 -U "$dir/tree" -o "$dir/index"
    ring 30 ./plocate -d index needle- >found
    [ "$(wc -l <found)" = 2000 ]
    [ "$(sort found)" = "$(printf '%s\n' "$dir"/tree/needle-* | sort)" ]
    rm tree/needle-1??
    ring 30 ./plocate -e -d index needle- >left
    [ "$(sort left)" = "$(printf '%s\n' "$dir"/tree/needle-* | sort)" ]
    engine_active 10
}

case_run finds finds
