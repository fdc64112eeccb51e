//! The manual pages as `clap_mangen` writes them, but with the text below the options in sections of its own.

use clap::CommandFactory;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;

use crate::cli::Arguments;

/// The section in which `clap_mangen` puts the text below the options.
const EXTRA: &str = ".SH EXTRA\n";

/// Writes one manual page per command.
pub fn write(directory: &Path) -> io::Result<()> {
    clap_mangen::generate_to(Arguments::command(), directory)?;
    for page in fs::read_dir(directory)? {
        let path = page?.path();
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        if name.starts_with("anyring") && name.ends_with(".1") {
            let text = fs::read_to_string(&path)?;
            if let Some((before, after)) = text.split_once(EXTRA) {
                let (extra, rest) = after.split_at(after.find(".SH ").unwrap_or(after.len()));
                fs::write(&path, [before, &sections(extra), rest].concat())?;
            }
        }
    }
    Ok(())
}

/// Returns the text as sections: examples and tables keep their lines, paragraphs are filled.
fn sections(extra: &str) -> String {
    let (mut out, mut is_table) = (String::new(), false);
    for line in extra.lines() {
        if is_table != line.starts_with("  ") {
            is_table = !is_table;
            out += if is_table { ".nf\n" } else { ".fi\n" };
        }
        let title =
            ["Examples", "Environment", "Exit status"].into_iter().find(|title| line.starts_with(title));
        match title {
            Some(title) => {
                out += &format!(".SH {}\n", title.to_uppercase());
                // The word `Examples:` is left out, because it repeats the title.
                let text = line.strip_prefix(title).unwrap_or_default().trim_start_matches(':').trim_start();
                out += if text.starts_with('(') { line } else { text };
                if !text.is_empty() {
                    out.push('\n');
                }
            }
            None if out.is_empty() => out += &format!(".SH NOTES\n{line}\n"),
            None if line.is_empty() => out += ".PP\n",
            None => out += &format!("{line}\n"),
        }
    }
    if is_table {
        out += ".fi\n";
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn text_below_the_options_has_sections() {
        let extra = "Examples:\n  anyring  run\n\nEnvironment (of programs):\n  A  b\nMore.\n\nExit status: 0\nor 1.\n";
        let sections = ".SH EXAMPLES\n.nf\n  anyring  run\n.fi\n.PP\n.SH ENVIRONMENT\nEnvironment (of programs):\n\
            .nf\n  A  b\n.fi\nMore.\n.PP\n.SH EXIT STATUS\n0\nor 1.\n";
        assert_eq!(super::sections(extra), sections);
    }
}
