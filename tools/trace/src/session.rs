//! A session: events in, all outputs out.

use std::io::{self, Write};
use std::rc::Rc;

use anyring_trace::event::Event;

use crate::Callers;
use crate::counts::Counts;
use crate::filter::Filter;
use crate::json::Json;
use crate::lints::Lints;
use crate::model::{Listener, Model, Place, Told};
use crate::output::Output;
use crate::perfetto::Perfetto;
use crate::text::{self, Text};

/// How everything is shown.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The most bytes of data that are shown, and the most elements of an array.
    pub sample: usize,
    /// Text goes to a terminal that shows colours.
    pub colours: bool,
    /// Text has lines for calls of `io_uring_enter`, too.
    pub enters: bool,
    /// The filter of what is shown and counted. The summary looks at everything.
    pub filter: Filter,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { sample: 32, colours: false, enters: false, filter: Filter::default() }
    }
}

/// The trace of a stream of events.
pub struct Session {
    settings: Settings,
    filter: Rc<Filter>,
    model: Model,
    outputs: Outputs,
    newest_ns: u64,
}

#[derive(Default)]
struct Outputs {
    all: Vec<Box<dyn Output>>,
}

impl Session {
    /// One without any output yet.
    pub fn new(settings: Settings) -> Session {
        let filter = Rc::new(settings.filter.clone());
        Session { settings, filter, model: Model::default(), outputs: Outputs::default(), newest_ns: 0 }
    }

    /// With the frames of the calls that submitted requests.
    pub fn callers(self, callers: impl Callers + 'static) -> Session {
        Session { model: Model::with_callers(Box::new(callers)), ..self }
    }

    /// With lines of text.
    pub fn text(self, to: impl Write + 'static) -> Session {
        let Settings { sample, colours, enters, .. } = self.settings;
        let options = text::Options { sample, colours, enters };
        self.with(|filter| Text::new(to, filter, options))
    }

    /// With a table of operations at the end.
    pub fn counts(self, to: impl Write + 'static) -> Session {
        self.with(|filter| Counts::new(to, filter))
    }

    /// With a line of JSON for each finished thing.
    pub fn json(self, to: impl Write + 'static) -> Session {
        let sample = self.settings.sample;
        self.with(|filter| Json::new(to, filter, sample))
    }

    /// With a trace for the Perfetto UI.
    pub fn perfetto(self, to: impl Write + 'static) -> Session {
        let sample = self.settings.sample;
        self.with(|filter| Perfetto::new(to, filter, sample))
    }

    /// With a summary of what looks unhealthy at the end.
    pub fn summary(self, to: impl Write + 'static) -> Session {
        let sample = self.settings.sample;
        self.with(|_| Lints::new(to, sample))
    }

    fn with<T: Output + 'static>(mut self, output: impl FnOnce(Rc<Filter>) -> T) -> Session {
        self.outputs.all.push(Box::new(output(self.filter.clone())));
        self
    }

    /// Takes the next event in.
    pub fn event(&mut self, event: &Event<'_>) {
        self.newest_ns = self.newest_ns.max(event.head.time_ns);
        self.model.event(event, &mut self.outputs);
    }

    /// So many events never came, for want of room in the buffer.
    pub fn miss(&mut self, dropped: u64) {
        self.model.miss(dropped);
    }

    /// Gives on what was printed so far.
    ///
    /// # Errors
    /// The first of those that writing came to.
    pub fn flush(&mut self) -> io::Result<()> {
        self.outputs.all.iter_mut().try_for_each(|output| output.flush())
    }

    /// No further event comes: prints what was never completed, tables and summaries.
    ///
    /// # Errors
    /// The first of those that writing came to.
    pub fn end(&mut self) -> io::Result<()> {
        self.model.end(self.newest_ns, &mut self.outputs);
        for output in &mut self.outputs.all {
            output.end(&self.model);
        }
        self.flush()
    }
}

impl Listener for Outputs {
    fn tell(&mut self, place: Place, told: &Told<'_>, model: &Model) {
        for output in &mut self.all {
            output.tell(place, told, model);
        }
    }
}
