//! Pauses at locks and hand-overs, chosen by a seed, so that threads meet in rare orders. Only with the feature
//! `pauses`, which no product has; the conformance runner uses it in its concurrent programs.

#[cfg(feature = "pauses")]
mod decide {
    use core::sync::atomic::{AtomicU64, Ordering};

    /// The seed; 0 for no pauses.
    static SEED: AtomicU64 = AtomicU64::new(0);
    /// Number of possible pauses passed since the seed was set.
    static PASSED: AtomicU64 = AtomicU64::new(0);

    /// Sets the seed; 0 ends the pauses.
    pub fn decide_by(seed: u64) {
        SEED.store(seed, Ordering::Relaxed);
        PASSED.store(0, Ordering::Relaxed);
    }

    /// Pauses sometimes, as the seed decides, at a place where another thread may overtake.
    pub fn may_pause() {
        let seed = SEED.load(Ordering::Relaxed);
        if seed == 0 {
            return;
        }
        let mut z = seed ^ PASSED.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        // Some seeds pause often, others seldom.
        let (rare, kind) = (4 << (seed >> 1 & 3), z >> 32 & 7);
        if z % rare != 0 {
            return;
        }
        match kind {
            0..4 => crate::sched_yield(),
            4..7 => (0..z >> 40 & 0x3ff).for_each(|_| core::hint::spin_loop()),
            _ => sleep_ns(1000 + (z >> 40 & 0x3fff)),
        }
    }

    fn sleep_ns(ns: u64) {
        let time = [0, ns];
        // SAFETY: a time of ours.
        let _ = unsafe { crate::call(crate::nr::__NR_nanosleep, [time.as_ptr() as usize, 0, 0, 0, 0, 0]) };
    }
}

#[cfg(feature = "pauses")]
pub use decide::{decide_by, may_pause};

/// Does nothing: pauses exist with the feature `pauses` only.
#[cfg(not(feature = "pauses"))]
#[inline(always)]
pub fn may_pause() {}
