//! Colours of names, by `LS_COLORS`.

use crate::files;
use crate::look::Look;
use crate::output::Buffers;
use crate::settings::Colour;
use anyring_walk::Kind;
use lscolors::{Indicator, LsColors, Style};

/// The colours of names.
pub struct Colours(LsColors);

impl Colours {
    /// The attributes that a colour depends on.
    pub const MASK: u32 = libc::STATX_TYPE | libc::STATX_MODE;

    /// Returns the colours of the environment, if the settings ask for colours.
    pub fn wanted(colour: Colour, terminal: bool, prints: bool) -> Option<Colours> {
        let variable = |name| std::env::var_os(name).unwrap_or_default();
        let plain = !variable("NO_COLOR").is_empty() || variable("TERM") == "dumb";
        let wanted = match colour {
            Colour::Always => prints,
            Colour::Auto => terminal && !plain,
            Colour::Never => false,
        };
        wanted.then(|| Colours(LsColors::from_env().unwrap_or_default()))
    }

    /// Prints a path: the directories in their colour, the name in its own.
    pub fn print(&self, buffers: &mut Buffers<'_>, look: &Look<'_>) {
        let (directories, name) = look.path().split_at(look.path().len() - look.base().len());
        let directory = self.0.style_for_indicator(Indicator::Directory);
        painted(buffers, directory.filter(|_| !directories.is_empty()), directories);
        painted(buffers, self.style(look), name);
    }

    fn style(&self, look: &Look<'_>) -> Option<&Style> {
        let file = look.attributes(Colours::MASK);
        let mode = file.map_or(0, |file| u32::from(file.stx_mode));
        let has = |bits: u32| mode & bits != 0;
        let indicator = match look.kind() {
            Kind::Directory if has(0o1000) && has(0o2) => Indicator::StickyAndOtherWritable,
            Kind::Directory if has(0o2) => Indicator::OtherWritable,
            Kind::Directory if has(0o1000) => Indicator::Sticky,
            Kind::Directory => Indicator::Directory,
            Kind::Link if files::kind(look.parent(), true).is_err() => Indicator::OrphanedSymbolicLink,
            Kind::Link => Indicator::SymbolicLink,
            Kind::Block => Indicator::BlockDevice,
            Kind::Character => Indicator::CharacterDevice,
            Kind::Fifo => Indicator::FIFO,
            Kind::Socket => Indicator::Socket,
            Kind::File if has(0o4000) => Indicator::Setuid,
            Kind::File if has(0o2000) => Indicator::Setgid,
            Kind::File if has(0o111) => Indicator::ExecutableFile,
            Kind::File | Kind::Unknown => {
                return self.0.style_for_str(&String::from_utf8_lossy(look.name()));
            }
        };
        self.0.style_for_indicator(indicator)
    }
}

fn painted(buffers: &mut Buffers<'_>, style: Option<&Style>, text: &[u8]) {
    let style = style.map(Style::to_nu_ansi_term_style).unwrap_or_default();
    buffers.to(0).extend_from_slice(style.prefix().to_string().as_bytes());
    buffers.name(0, text);
    buffers.to(0).extend_from_slice(style.suffix().to_string().as_bytes());
}
