//! The op table, as a ring has it: which row an opcode has.

use crate::request::op::{FIRST_PRIVATE, Op};

/// The rows, found by their opcodes.
pub struct Table {
    rows: &'static [Op],
    by_code: [&'static Op; 256],
}

/// The row of numbers that no operation has.
static UNKNOWN: Op = Op::unknown();

impl Table {
    /// The table of these rows.
    ///
    /// # Panics
    /// Where two have the same opcode: at compile time, for a static.
    pub const fn new(rows: &'static [Op]) -> Table {
        Table::up_to(rows, FIRST_PRIVATE as usize)
    }

    /// The table of the kernel's operations whose numbers are less than `operations`, and of all private ones.
    ///
    /// # Panics
    /// As above.
    pub const fn up_to(rows: &'static [Op], operations: usize) -> Table {
        let mut by_code = [&UNKNOWN; 256];
        let mut place = 0;
        while place < rows.len() {
            let code = rows[place].code as usize;
            if code >= operations && code < FIRST_PRIVATE as usize {
                place += 1;
                continue;
            }
            assert!(by_code[code].is_unknown(), "an opcode has one row");
            by_code[code] = &rows[place];
            place += 1;
        }
        Table { rows, by_code }
    }

    /// The row of an opcode; one that is unknown for numbers without a row.
    #[inline(always)]
    pub const fn lookup(&self, code: u8) -> &'static Op {
        self.by_code[code as usize]
    }

    /// All rows.
    pub const fn rows(&self) -> &'static [Op] {
        self.rows
    }
}
