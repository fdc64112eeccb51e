//! The kernel's answers to a program, in the order of the comparisons, as words of a line.

use std::fmt::Write;
use std::str::FromStr;

use crate::ring::Cqe;

/// A tape of answers that is written or read.
pub enum Tape {
    /// Two engines are compared, and their answers are not recorded.
    None,
    /// The answers so far.
    Written(String),
    /// The answers that have not been read.
    Read(std::vec::IntoIter<String>),
}

impl Tape {
    /// Creates a tape for reading.
    pub fn of(line: &str) -> Tape {
        Tape::Read(line.split(' ').map(str::to_owned).collect::<Vec<_>>().into_iter())
    }

    /// True if answers come from the tape.
    pub fn is_read(&self) -> bool {
        matches!(self, Tape::Read(_))
    }

    /// True if answers go to the tape.
    pub fn is_written(&self) -> bool {
        matches!(self, Tape::Written(_))
    }

    /// Returns the next answer; after the end of the tape, an answer that never occurs.
    pub fn read<T: Taped>(&mut self) -> T {
        let Tape::Read(words) = self else { panic!("a tape to be read") };
        T::from_word(&words.next().unwrap_or_default())
    }

    /// Records an answer.
    pub fn write<T: Taped>(&mut self, answer: &T) {
        if let Tape::Written(line) = self {
            let separator = if line.is_empty() { "" } else { " " };
            let _ = write!(line, "{separator}{}", answer.word());
        }
    }
}

/// An answer as a word without spaces.
pub trait Taped {
    /// Returns the word.
    fn word(&self) -> String;
    /// Parses a word.
    fn from_word(word: &str) -> Self;
}

fn number<T: FromStr + Default>(text: &str) -> T {
    text.parse().unwrap_or_default()
}

impl Taped for i32 {
    fn word(&self) -> String {
        self.to_string()
    }

    fn from_word(word: &str) -> i32 {
        word.parse().unwrap_or(i32::MIN)
    }
}

impl Taped for bool {
    fn word(&self) -> String {
        u8::from(*self).to_string()
    }

    fn from_word(word: &str) -> bool {
        word == "1"
    }
}

impl Taped for String {
    fn word(&self) -> String {
        format!("'{}", self.replace(' ', "~"))
    }

    fn from_word(word: &str) -> String {
        word.trim_start_matches('\'').replace('~', " ")
    }
}

impl Taped for Vec<String> {
    fn word(&self) -> String {
        format!("'{}", self.join(";").replace(' ', "~"))
    }

    fn from_word(word: &str) -> Vec<String> {
        let text = String::from_word(word);
        text.split(';').filter(|part| !part.is_empty()).map(str::to_owned).collect()
    }
}

impl<A: Taped, B: Taped> Taped for (A, B) {
    fn word(&self) -> String {
        format!("{}|{}", self.0.word(), self.1.word())
    }

    fn from_word(word: &str) -> (A, B) {
        let (first, second) = word.split_once('|').unwrap_or_default();
        (A::from_word(first), B::from_word(second))
    }
}

impl<const N: usize> Taped for [u32; N] {
    fn word(&self) -> String {
        self.map(|number| number.to_string()).join(",")
    }

    fn from_word(word: &str) -> [u32; N] {
        let mut numbers = word.split(',').map(number);
        [(); N].map(|()| numbers.next().unwrap_or(u32::MAX))
    }
}

/// The kind of ring that the setup created, or its errno.
impl Taped for Result<[u32; 4], i32> {
    fn word(&self) -> String {
        match self {
            Ok(numbers) => numbers.word(),
            Err(errno) => format!("{errno}!"),
        }
    }

    fn from_word(word: &str) -> Result<[u32; 4], i32> {
        match word.strip_suffix('!') {
            Some(errno) => Err(number(errno)),
            None => Ok(Taped::from_word(word)),
        }
    }
}

impl Taped for Vec<Cqe> {
    fn word(&self) -> String {
        let one = |cqe: &Cqe| {
            let Cqe { user_data, res, flags, big } = cqe;
            let big = if *big == [0; 2] { String::new() } else { format!(":{}:{}", big[0], big[1]) };
            let flags = if *flags == 0 && big.is_empty() { String::new() } else { format!(":{flags}") };
            format!("{user_data}:{res}{flags}{big}")
        };
        format!("[{}]", self.iter().map(one).collect::<Vec<_>>().join(","))
    }

    fn from_word(word: &str) -> Vec<Cqe> {
        let one = |text: &str| {
            let mut parts = text.split(':');
            let mut next = || parts.next().unwrap_or_default();
            Cqe {
                user_data: number(next()),
                res: number(next()),
                flags: number(next()),
                big: [number(next()), number(next())],
            }
        };
        word.trim_matches(['[', ']']).split(',').filter(|text| !text.is_empty()).map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let cqes = vec![
            Cqe { user_data: 1 << 40, res: -125, flags: 0, big: [0; 2] },
            Cqe { user_data: 2, res: i32::MAX, flags: 3, big: [5, u64::MAX] },
        ];
        let state = vec!["a 100644 1 6000 bytes".to_owned(), "b is at 5".to_owned()];
        let mut tape = Tape::Written(String::new());
        tape.write(&cqes);
        tape.write(&Ok::<_, i32>([1, 2, 3, 4]));
        tape.write(&Err::<[u32; 4], _>(-22));
        tape.write(&state);
        tape.write(&-11);
        let Tape::Written(line) = tape else { unreachable!() };
        let mut tape = Tape::of(&line);
        assert_eq!(tape.read::<Vec<Cqe>>(), cqes);
        assert_eq!(tape.read::<Result<[u32; 4], i32>>(), Ok([1, 2, 3, 4]));
        assert_eq!(tape.read::<Result<[u32; 4], i32>>(), Err(-22));
        assert_eq!(tape.read::<Vec<String>>(), state);
        assert_eq!(tape.read::<i32>(), -11);
    }
}
