//! Random numbers from a seed (SplitMix64).

/// A random number generator.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates the generator of a seed, for one of several purposes.
    pub fn new(seed: u64, purpose: u64) -> Random {
        let mut random = Random(seed ^ purpose.wrapping_mul(0xd6e8_feb8_6659_fd93));
        random.next();
        random
    }

    /// Returns the next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }

    /// True once in `times` times on average, never for 0.
    pub fn once_in(&mut self, times: usize) -> bool {
        times > 0 && self.below(times) == 0
    }

    /// Returns one of these choices.
    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Returns a step after this one, `distance` further on average.
    pub fn next_of(&mut self, step: u64, distance: usize) -> u64 {
        step + 1 + self.below(2 * distance) as u64
    }
}
