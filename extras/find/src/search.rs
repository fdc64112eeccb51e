//! The visitor of a search, which evaluates the expression for each entry.

use crate::colour::Colours;
use crate::expression::{Action, Test, Tree};
use crate::format::Printer;
use crate::ignored::Ignored;
use crate::listing::{self, Widths};
use crate::look::Look;
use crate::names::Names;
use crate::output::Buffers;
use crate::parse::Command;
use crate::progress::Progress;
use crate::when::Stamp;
use crate::{files, message, test};
use anyring_walk::{Entry, Failure, Kind, Root, Step, Visitor, What};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A search in progress.
pub struct Search<'a> {
    command: &'a Command,
    roots: &'a [Root],
    names: Names,
    colours: Option<Colours>,
    ignored: Option<Ignored>,
    progress: Option<&'a Progress>,
    now: Stamp,
    /// The attributes that the expression may need.
    mask: u32,
    /// The common state of all threads, if actions must run one after the other.
    ordered: Option<Mutex<Local<'a>>>,
    quit: AtomicBool,
    failed: AtomicBool,
}

/// The state of one thread of the walk.
pub struct Local<'a> {
    buffers: Buffers<'a>,
    widths: Widths,
}

/// The effects of the expression on the walk, for one entry.
#[derive(Default)]
struct Outcome {
    prune: bool,
    quit: bool,
}

/// The error of an evaluation for which attributes are missing.
struct Unknown;

impl<'a> Search<'a> {
    pub fn new(
        command: &'a Command,
        roots: &'a [Root],
        progress: Option<&'a Progress>,
        now: Stamp,
    ) -> Search<'a> {
        let settings = &command.settings;
        let prints = command.tree.any(&|action| matches!(action, Action::Print { to: 0, end: b'\n' }));
        let colours = Colours::wanted(settings.colour, prints && command.outputs.is_terminal(0), prints);
        let mask = command.tree.mask() | colours.as_ref().map_or(0, |_| Colours::MASK);
        let local = || Local { buffers: Buffers::new(&command.outputs), widths: Widths::default() };
        Search {
            command,
            roots,
            names: Names::default(),
            colours,
            ignored: settings.gitignore.then(|| Ignored::new(roots)),
            progress,
            now,
            mask,
            ordered: command.tree.is_ordered().then(|| Mutex::new(local())),
            quit: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        }
    }

    /// Finishes the search after the walk; returns true on success.
    pub fn end(self) -> bool {
        if let Some(local) = &self.ordered {
            local.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).buffers.flush();
        }
        self.finish_commands(&self.command.tree);
        !self.failed.load(Relaxed) && self.command.outputs.is_whole()
    }

    fn finish_commands(&self, tree: &Tree) {
        match tree {
            Tree::And(all) | Tree::Or(all) | Tree::List(all) => {
                all.iter().for_each(|tree| self.finish_commands(tree))
            }
            Tree::Not(tree) => self.finish_commands(tree),
            Tree::Action(Action::Run(execution)) => execution.finish(&mut |problem| self.fail(&problem)),
            _ => {}
        }
    }

    /// Notes a failure, and reports it unless it has been reported.
    fn fail(&self, problem: &str) {
        self.failed.store(true, Relaxed);
        if !problem.is_empty() {
            message::say(problem);
        }
    }

    /// True if an entry is excluded, with everything below it.
    fn hides(&self, look: &Look<'_>) -> bool {
        if look.depth() == 0 {
            return false;
        }
        if self.command.settings.no_hidden && look.name().starts_with(b".") {
            return true;
        }
        self.ignored.as_ref().is_some_and(|ignored| ignored.hides(look))
    }

    /// Evaluates the expression for an entry. If attributes are missing, returns an error before any action runs.
    fn judge(&self, local: &mut Local<'a>, look: &Look<'_>) -> Result<Outcome, Unknown> {
        if self.lacks_attributes(look) {
            let mut seen = Foreseen::default();
            self.foresee(&self.command.tree, look, &mut seen)?;
            if !seen.acts {
                return Ok(Outcome { prune: seen.prunes, quit: false });
            }
        }
        Ok(match &self.ordered {
            None => self.perform(local, look),
            Some(shared) => {
                let mut local = shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                if self.quit.load(Relaxed) {
                    return Ok(Outcome { prune: false, quit: true });
                }
                self.perform(&mut local, look)
            }
        })
    }

    fn lacks_attributes(&self, look: &Look<'_>) -> bool {
        self.mask != 0 && look.attributes(self.mask).is_none()
    }

    /// Returns the value that the expression will have, without effects.
    fn foresee(&self, tree: &Tree, look: &Look<'_>, seen: &mut Foreseen) -> Result<bool, Unknown> {
        Ok(match tree {
            Tree::And(all) => !self.foresee_one(all, false, look, seen)?,
            Tree::Or(all) => self.foresee_one(all, true, look, seen)?,
            Tree::List(all) => {
                let mut value = true;
                for tree in all {
                    value = self.foresee(tree, look, seen)?;
                }
                value
            }
            Tree::Not(tree) => !self.foresee(tree, look, seen)?,
            Tree::Test(test) => test::foresee(test, look).ok_or(Unknown)?,
            Tree::Action(Action::Prune) => {
                seen.prunes = true;
                true
            }
            Tree::Action(Action::Print { .. }) if self.colours.is_none() => {
                seen.acts = true;
                true
            }
            Tree::Action(Action::Printf { format, .. }) if format.mask() == 0 => {
                seen.acts = true;
                true
            }
            Tree::Action(_) => return Err(Unknown),
        })
    }

    /// Evaluates expressions up to one with the value `wanted`; returns true if there is one. An expression for which attributes are
    /// missing is passed over, because a later one may have the value, as GNU find moves tests of names to the front; but no expression
    /// with an action is evaluated after that, and an action itself is never passed over.
    fn foresee_one(
        &self,
        all: &[Tree],
        wanted: bool,
        look: &Look<'_>,
        seen: &mut Foreseen,
    ) -> Result<bool, Unknown> {
        let mut passed_over = false;
        for tree in all {
            if passed_over && tree.any(&|_| true) {
                break;
            }
            match self.foresee(tree, look, seen) {
                Ok(value) if value == wanted => return Ok(true),
                Ok(_) => {}
                Err(Unknown) if tree.any(&|_| true) => return Err(Unknown),
                Err(Unknown) => passed_over = true,
            }
        }
        if passed_over { Err(Unknown) } else { Ok(false) }
    }

    fn perform(&self, local: &mut Local<'a>, look: &Look<'_>) -> Outcome {
        let mut outcome = Outcome::default();
        self.value(&self.command.tree, local, look, &mut outcome);
        if outcome.quit {
            // Other threads write nothing any more.
            self.quit.store(true, Relaxed);
            local.buffers.flush();
        }
        local.buffers.entry_ends();
        outcome
    }

    /// Evaluates an expression with its effects. The value is meaningless after `-quit`.
    fn value(&self, tree: &Tree, local: &mut Local<'a>, look: &Look<'_>, outcome: &mut Outcome) -> bool {
        match tree {
            Tree::And(all) => all.iter().all(|tree| self.value(tree, local, look, outcome) && !outcome.quit),
            Tree::Or(all) => all.iter().any(|tree| self.value(tree, local, look, outcome) || outcome.quit),
            Tree::List(all) => {
                let mut value = true;
                for tree in all {
                    value = self.value(tree, local, look, outcome);
                    if outcome.quit {
                        break;
                    }
                }
                value
            }
            Tree::Not(tree) => !self.value(tree, local, look, outcome),
            Tree::Test(test) => self.test(test, look),
            Tree::Action(action) => self.act(action, local, look, outcome),
        }
    }

    fn test(&self, test: &Test, look: &Look<'_>) -> bool {
        test::holds(test, look, &self.names).unwrap_or_else(|error| {
            self.fail(&format!("{}: {}", message::quoted(look.path()), message::of(&error)));
            false
        })
    }

    fn act(&self, action: &Action, local: &mut Local<'a>, look: &Look<'_>, outcome: &mut Outcome) -> bool {
        match action {
            Action::Print { to: 0, end: b'\n' } if self.colours.is_some() => {
                if let Some(colours) = &self.colours {
                    colours.print(&mut local.buffers, look);
                }
                local.buffers.to(0).push(b'\n');
            }
            Action::Print { to, end } => {
                if *end == 0 {
                    local.buffers.to(*to).extend_from_slice(look.path());
                } else {
                    local.buffers.name(*to, look.path());
                }
                local.buffers.to(*to).push(*end);
            }
            Action::Printf { to, format } => {
                let mut printer = To { buffers: &mut local.buffers, number: *to };
                format.print(look, &self.names, &mut printer, &mut |problem| self.fail(&problem));
                if format.flushes() {
                    local.buffers.flush();
                }
            }
            Action::List { to } => self.list(*to, local, look),
            Action::Run(execution) => {
                let mut flush = || local.buffers.flush();
                return execution.run(look, &mut flush, &mut |problem| self.fail(&problem));
            }
            Action::Delete => return self.delete(look),
            Action::Prune => outcome.prune = true,
            Action::Quit => outcome.quit = true,
        }
        true
    }

    fn list(&self, to: usize, local: &mut Local<'a>, look: &Look<'_>) {
        let Some(file) = look.attributes(libc::STATX_BASIC_STATS) else { return };
        let out = local.buffers.to(to);
        if let Err(error) = listing::write(out, look, file, &mut local.widths, &self.names, self.now) {
            self.fail(&format!("{}: {}", message::quoted(look.path()), message::of(&error)));
        }
    }

    fn delete(&self, look: &Look<'_>) -> bool {
        if look.name() == b"." {
            return true;
        }
        match files::remove(look.parent(), look.kind() == Kind::Directory) {
            Ok(()) => true,
            Err(error) if self.is_race(&error) => true,
            Err(error) => {
                self.fail(&format!(
                    "cannot delete {}: {}",
                    message::quoted(look.path()),
                    message::of(&error)
                ));
                false
            }
        }
    }

    fn is_race(&self, error: &std::io::Error) -> bool {
        self.command.settings.ignore_races && error.raw_os_error() == Some(libc::ENOENT)
    }

    fn step(&self, outcome: &Outcome, look: &Look<'_>) -> Step {
        let settings = &self.command.settings;
        if outcome.quit {
            return Step::Quit;
        }
        if look.kind() != Kind::Directory || outcome.prune && !settings.depth {
            return Step::Skip;
        }
        if let Some(ignored) = &self.ignored {
            ignored.enter(look);
        }
        Step::Descend
    }
}

/// The effects that an expression would have.
#[derive(Default)]
struct Foreseen {
    acts: bool,
    prunes: bool,
}

struct To<'b, 'a> {
    buffers: &'b mut Buffers<'a>,
    number: usize,
}

impl Printer for To<'_, '_> {
    fn text(&mut self, text: &[u8]) {
        self.buffers.to(self.number).extend_from_slice(text);
    }

    fn name(&mut self, name: &[u8]) {
        self.buffers.name(self.number, name);
    }
}

impl<'a> Visitor for Search<'a> {
    type Local = Local<'a>;

    fn local(&self) -> Local<'a> {
        Local { buffers: Buffers::new(&self.command.outputs), widths: Widths::default() }
    }

    fn visit(&self, local: &mut Local<'a>, entry: &Entry<'_>) -> Step {
        if self.quit.load(Relaxed) {
            return Step::Quit;
        }
        let look = Look::new(entry, self.roots, self.command.settings.follow);
        if self.hides(&look) {
            return Step::Skip;
        }
        if let Some(progress) = self.progress {
            progress.saw_one();
        }
        let settings = &self.command.settings;
        if look.depth() < settings.min_depth {
            return self.step(&Outcome::default(), &look);
        }
        if settings.depth && look.kind() == Kind::Directory {
            // A directory is evaluated when it is left; the attributes that it needs then are queried now.
            let needs = self.lacks_attributes(&look)
                && self.foresee(&self.command.tree, &look, &mut Foreseen::default()).is_err();
            return if needs { Step::Attributes(self.mask) } else { self.step(&Outcome::default(), &look) };
        }
        match self.judge(local, &look) {
            Ok(outcome) => self.step(&outcome, &look),
            Err(Unknown) => Step::Attributes(self.mask),
        }
    }

    fn leave(&self, local: &mut Local<'a>, entry: &Entry<'_>) -> Step {
        let look = Look::new(entry, self.roots, self.command.settings.follow);
        if self.quit.load(Relaxed) {
            return Step::Quit;
        }
        if look.depth() < self.command.settings.min_depth {
            return Step::Skip;
        }
        match self.judge(local, &look) {
            Ok(outcome) if outcome.quit => Step::Quit,
            _ => Step::Skip,
        }
    }

    fn failed(&self, _: &mut Local<'a>, failure: &Failure) {
        // A root must exist.
        if failure.depth() > 0 && self.is_race(failure.error()) {
            return;
        }
        let (path, error) = (message::quoted(failure.path()), message::of(failure.error()));
        self.fail(&match failure.what() {
            What::Attributes => format!("{path}: {error}"),
            What::Open => format!("cannot open the directory {path}: {error}"),
            What::Read => format!("cannot read the directory {path}: {error}"),
            What::Loop(ancestor) => {
                format!(
                    "{path} leads back to {}, in which it lies: it is left out",
                    message::quoted(ancestor)
                )
            }
        });
    }

    fn finish(&self, mut local: Local<'a>) {
        local.buffers.flush();
    }
}
