//! A session: events come in, and go to all outputs.

use std::io::{self, Write};
use std::rc::Rc;

use anyring_trace::event::Event;

use crate::Callers;
use crate::Workers;
use crate::counts::Counts;
use crate::filter::Filter;
use crate::json::Json;
use crate::lints::Lints;
use crate::model::{Listener, Model, Place, Told};
use crate::output::{Destination, Output};
use crate::perfetto::Perfetto;
use crate::text::{self, Text, Time};

/// The options of all outputs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The maximum number of bytes of data, and of elements of an array, that are shown.
    pub sample: usize,
    /// Text goes to a terminal that shows colours.
    pub colours: bool,
    /// Text has lines for calls of `io_uring_enter`, too.
    pub enters: bool,
    /// The time that a line of text begins with.
    pub time: Time,
    /// The number of results after which nothing more is printed.
    pub most_results: Option<u64>,
    /// The filter of what is shown and counted. The summary looks at everything.
    pub filter: Filter,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            sample: 32,
            colours: false,
            enters: false,
            time: Time::SinceStart,
            most_results: None,
            filter: Filter::default(),
        }
    }
}

/// The trace of a stream of events.
pub struct Session {
    settings: Settings,
    filter: Rc<Filter>,
    model: Model,
    outputs: Outputs,
    workers: Option<Box<dyn Workers>>,
    newest_ns: u64,
}

struct Outputs {
    all: Vec<Box<dyn Output>>,
    filter: Rc<Filter>,
    /// The number of results that may still be printed.
    left: Option<u64>,
}

impl Outputs {
    /// Returns the number of results in an event that are to be shown.
    fn results(&self, place: Place, told: &Told<'_>) -> u64 {
        match told {
            Told::Requests(requests) => {
                requests.iter().filter(|request| self.filter.wants_request(request)).count() as u64
            }
            Told::Shot(..) | Told::Stray(..) => u64::from(self.filter.wants(place, told)),
            _ => 0,
        }
    }
}

impl Session {
    /// Returns a session without outputs.
    pub fn new(settings: Settings) -> Session {
        let filter = Rc::new(settings.filter.clone());
        let outputs = Outputs { all: Vec::new(), filter: filter.clone(), left: settings.most_results };
        Session { settings, filter, model: Model::default(), outputs, workers: None, newest_ns: 0 }
    }

    /// Adds the frames of the calls that submit requests.
    pub fn callers(self, callers: impl Callers + 'static) -> Session {
        Session { model: Model::with_callers(Box::new(callers)), ..self }
    }

    /// Adds which requests the kernel gave to its workers.
    pub fn workers(self, workers: impl Workers + 'static) -> Session {
        Session { workers: Some(Box::new(workers)), ..self }
    }

    /// Adds an output of lines of text.
    pub fn text(self, to: impl Write + 'static) -> Session {
        self.text_to(Destination::One(Box::new(to)))
    }

    /// Adds an output of lines of text, which may go to a file for each process.
    pub fn text_to(self, to: Destination) -> Session {
        let Settings { sample, colours, enters, time, .. } = self.settings;
        let options = text::Options { sample, colours, enters, time };
        self.with(|filter| Text::new(to, filter, options))
    }

    /// Adds a table of operations, printed at the end.
    pub fn counts(self, to: impl Write + 'static) -> Session {
        self.with(|filter| Counts::new(to, filter))
    }

    /// Adds an output with a line of JSON for each finished event.
    pub fn json(self, to: impl Write + 'static) -> Session {
        self.json_to(Destination::One(Box::new(to)))
    }

    /// Adds an output with a line of JSON for each finished event, which may go to a file for each process.
    pub fn json_to(self, to: Destination) -> Session {
        let sample = self.settings.sample;
        self.with(|filter| Json::new(to, filter, sample))
    }

    /// Adds a trace for the Perfetto UI.
    pub fn perfetto(self, to: impl Write + 'static) -> Session {
        let sample = self.settings.sample;
        self.with(|filter| Perfetto::new(to, filter, sample))
    }

    /// Adds a summary of unhealthy behaviour, printed at the end.
    pub fn summary(self, to: impl Write + 'static) -> Session {
        let sample = self.settings.sample;
        self.with(|_| Lints::new(to, sample))
    }

    fn with<T: Output + 'static>(mut self, output: impl FnOnce(Rc<Filter>) -> T) -> Session {
        self.outputs.all.push(Box::new(output(self.filter.clone())));
        self
    }

    /// Handles the next event.
    pub fn event(&mut self, event: &Event<'_>) {
        self.newest_ns = self.newest_ns.max(event.head.time_ns);
        self.note_workers();
        self.model.event(event, &mut self.outputs);
    }

    fn note_workers(&mut self) {
        if let Some(workers) = &mut self.workers {
            workers.take().into_iter().for_each(|queued| self.model.queued(queued));
        }
    }

    /// Returns the number of known requests in flight on a ring.
    pub fn under_way(&self, process: u32, ring: u32) -> u64 {
        let ring = self.model.process(process).and_then(|process| process.ring(ring));
        ring.map_or(0, |ring| ring.under_way() as u64)
    }

    /// True if a ring of the kernel was seen.
    pub fn has_kernel_ring(&self) -> bool {
        self.model.has_kernel_ring()
    }

    /// True if the maximum number of results was printed.
    pub fn is_over(&self) -> bool {
        self.outputs.left == Some(0)
    }

    /// Notes that `dropped` events were lost, because the buffer had no room.
    pub fn miss(&mut self, dropped: u64) {
        self.model.miss(dropped);
    }

    /// Flushes all outputs.
    ///
    /// # Errors The first error of writing.
    pub fn flush(&mut self) -> io::Result<()> {
        self.note_workers();
        self.outputs.all.iter_mut().try_for_each(|output| output.flush())
    }

    /// Ends the trace: prints the requests that never completed, tables and summaries.
    ///
    /// # Errors The first error of writing.
    pub fn end(&mut self) -> io::Result<()> {
        if !self.is_over() {
            self.model.end(self.newest_ns, &mut self.outputs);
        }
        for output in &mut self.outputs.all {
            output.end(&self.model);
        }
        self.flush()
    }
}

impl Listener for Outputs {
    fn tell(&mut self, place: Place, told: &Told<'_>, model: &Model) {
        if self.left == Some(0) {
            return;
        }
        let results = if self.left.is_some() { self.results(place, told) } else { 0 };
        self.left = self.left.map(|left| left.saturating_sub(results));
        for output in &mut self.all {
            output.tell(place, told, model);
        }
    }
}
