//! Numbers of bytes: their forms on the command line and in the output.

/// The letters for powers of 1000 and 1024, from the first.
const POWERS: [char; 8] = ['K', 'M', 'G', 'T', 'P', 'E', 'Z', 'Y'];

/// The unit in which sizes are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// The block size in bytes, by which sizes are rounded up; `None` chooses a unit for each size.
    block: Option<u64>,
    /// The base of the powers for which letters stand.
    base: u64,
    /// The suffix after a number of blocks.
    suffix: Suffix,
}

/// A unit after a number of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Suffix {
    None,
    /// `M`
    Letter,
    /// `MB` or `MiB`
    Bytes,
}

/// Why a text is not a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    /// The text is not a number.
    Number,
    /// The letters after the number are not a unit.
    Suffix,
    /// The number is too large.
    TooLarge,
}

impl Scale {
    /// Creates the scale of whole blocks of `bytes` bytes.
    pub const fn blocks(bytes: u64) -> Scale {
        Scale { block: Some(bytes), base: 1024, suffix: Suffix::None }
    }

    /// Creates the scale that chooses a unit for each size, among powers of `base`.
    pub const fn human(base: u64) -> Scale {
        Scale { block: None, base, suffix: Suffix::Letter }
    }

    /// Returns the scale for numbers that are not sizes.
    pub fn of_numbers(self) -> Scale {
        Scale { block: self.block.map(|_| 1), ..self }
    }

    /// Parses a block size: `4096`, `M`, `2MB`, `KiB`, `human-readable`, `si`.
    pub fn parse(text: &str) -> Result<Scale, Bad> {
        // A quote requests digit grouping, which the C locale does not have.
        let text = text.strip_prefix('\'').unwrap_or(text);
        if !text.is_empty() && "human-readable".starts_with(text) {
            return Ok(Scale::human(1024));
        }
        if !text.is_empty() && "si".starts_with(text) {
            return Ok(Scale::human(1000));
        }
        let bytes = number(text)?;
        if bytes == 0 {
            return Err(Bad::Number);
        }
        if text.starts_with(|first: char| first.is_ascii_digit()) {
            return Ok(Scale::blocks(bytes));
        }
        let decimal = text.ends_with('B') && !text.ends_with("iB");
        let suffix = if text.ends_with('B') { Suffix::Bytes } else { Suffix::Letter };
        Ok(Scale { block: Some(bytes), base: if decimal { 1000 } else { 1024 }, suffix })
    }

    /// Formats a number of bytes, rounded up. The largest number stands for all larger ones.
    pub fn show(&self, bytes: u64) -> String {
        if bytes == u64::MAX {
            return "Infinity".to_owned();
        }
        let Some(block) = self.block else { return self.fit(bytes) };
        let count = bytes.div_ceil(block);
        let power = (1..=POWERS.len() as u32).find(|&power| u128::from(self.base).pow(power) >= block.into());
        match (self.suffix, power.filter(|_| block > 1)) {
            (Suffix::None, _) => count.to_string(),
            (Suffix::Letter, None) => count.to_string(),
            (Suffix::Bytes, None) => format!("{count}B"),
            (Suffix::Letter, Some(power)) => format!("{count}{}", self.letter(power)),
            (Suffix::Bytes, Some(power)) => {
                format!("{count}{}{}B", self.letter(power), if self.base == 1024 { "i" } else { "" })
            }
        }
    }

    fn letter(&self, power: u32) -> char {
        match (self.base, power) {
            (1000, 1) => 'k',
            _ => POWERS[power as usize - 1],
        }
    }

    /// Formats with a unit, and with one decimal below ten units.
    fn fit(&self, bytes: u64) -> String {
        let (bytes, base) = (u128::from(bytes), u128::from(self.base));
        let mut power = 0;
        while bytes / base.pow(power) >= base {
            power += 1;
        }
        if power == 0 {
            return bytes.to_string();
        }
        let unit = base.pow(power);
        let tenths = (bytes * 10).div_ceil(unit);
        if bytes / unit < 10 && tenths < 100 {
            return format!("{}.{}{}", tenths / 10, tenths % 10, self.letter(power));
        }
        match bytes.div_ceil(unit) {
            count if count == base => format!("1.0{}", self.letter(power + 1)),
            count => format!("{count}{}", self.letter(power)),
        }
    }
}

/// Parses a number with a unit: `10`, `0x10`, `4K`, `4kB` (of 1000), `4KiB`, `M`.
pub fn number(text: &str) -> Result<u64, Bad> {
    let (value, unit) = integer(text);
    let mut letters = unit.chars();
    let value = match value {
        Some(value) => value?,
        // A unit without a number means one unit.
        None if unit.len() == text.len() && !unit.is_empty() => 1,
        None => return Err(Bad::Number),
    };
    let Some(letter) = letters.next() else { return Ok(value) };
    let found = POWERS.iter().position(|power| letter == *power || letter == power.to_ascii_lowercase());
    let Some(power) = found else {
        return Err(if unit.len() == text.len() { Bad::Number } else { Bad::Suffix });
    };
    let base: u64 = match letters.as_str() {
        "" | "iB" => 1024,
        "B" | "D" => 1000,
        _ => return Err(Bad::Suffix),
    };
    let factor = base.checked_pow(power as u32 + 1).ok_or(Bad::TooLarge)?;
    value.checked_mul(factor).ok_or(Bad::TooLarge)
}

/// Splits off the digits at the beginning: decimal, octal or hexadecimal as in C.
fn integer(text: &str) -> (Option<Result<u64, Bad>>, &str) {
    let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let (digits, radix) = match hexadecimal {
        Some(rest) if rest.starts_with(|digit: char| digit.is_ascii_hexdigit()) => (rest, 16),
        _ if text.starts_with('0') => (text, 8),
        _ => (text, 10),
    };
    let end = digits.find(|digit: char| !digit.is_digit(radix)).unwrap_or(digits.len());
    let (digits, rest) = digits.split_at(end);
    match digits {
        "" => (None, rest),
        _ => (Some(u64::from_str_radix(digits, radix).map_err(|_| Bad::TooLarge)), rest),
    }
}

/// Returns the block size if the command line has none.
pub fn by_environment(variable: impl Fn(&str) -> Option<String>) -> Scale {
    let said = ["DU_BLOCK_SIZE", "BLOCK_SIZE", "BLOCKSIZE"].into_iter().find_map(&variable);
    let usual = Scale::blocks(if variable("POSIXLY_CORRECT").is_some() { 512 } else { 1024 });
    said.map_or(usual, |text| Scale::parse(&text).unwrap_or(usual))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, size) in [
            ("0", 0),
            ("17", 17),
            ("010", 8),
            ("0x10", 16),
            ("K", 1024),
            ("k", 1024),
            ("2M", 2 << 20),
            ("3kB", 3000),
            ("3KiB", 3072),
            ("1EB", 1_000_000_000_000_000_000),
        ] {
            assert_eq!(number(text), Ok(size), "{text}");
        }
        assert_eq!(number(""), Err(Bad::Number));
        assert_eq!(number("x"), Err(Bad::Number));
        assert_eq!(number("4x"), Err(Bad::Suffix));
        assert_eq!(number("4Kx"), Err(Bad::Suffix));
        assert_eq!(number("1Y"), Err(Bad::TooLarge));
        assert_eq!(number("99999999999999999999"), Err(Bad::TooLarge));
    }

    #[test]
    fn sizes_are_shown() {
        let human = Scale::human(1024);
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10 << 10, "10K"),
            ((10 << 10) - 1, "10K"),
            (10_189, "10K"),
            ((1 << 20) - 1, "1.0M"),
            (u64::MAX - 1, "16E"),
            (u64::MAX, "Infinity"),
        ] {
            assert_eq!(human.show(bytes), text, "{bytes}");
        }
        assert_eq!(Scale::human(1000).show(1001), "1.1k");
        let shown = |size: &str, bytes| Scale::parse(size).unwrap().show(bytes);
        assert_eq!(shown("K", 1025), "2K");
        assert_eq!(shown("MB", 1_000_001), "2MB");
        assert_eq!(shown("kB", 1), "1kB");
        assert_eq!(shown("KiB", 1), "1KiB");
        assert_eq!(shown("1M", 1), "1");
        assert_eq!(shown("si", 12_000), "12k");
        assert_eq!(shown("M", u64::MAX), "Infinity");
    }
}
