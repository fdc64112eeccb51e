//! The table of operations (`-c`).

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::rc::Rc;

use anyring_trace::event::Entered;
use hdrhistogram::Histogram;
use linux_raw_sys::io_uring::{IORING_ENTER_GETEVENTS, IORING_ENTER_SQ_WAIT, IORING_ENTER_SQ_WAKEUP};

use crate::filter::Filter;
use crate::model::{Listener, Model, Place, Request, Told};
use crate::output::{Output, Sink};
use crate::{quote, transfer};

/// The counts for each operation, and for the calls.
pub struct Counts {
    sink: Sink,
    filter: Rc<Filter>,
    operations: BTreeMap<u8, Operation>,
    enters: u64,
    failed_enters: u64,
    spurious_enters: u64,
    enters_ns: u64,
    batches: Histogram<u64>,
}

struct Operation {
    name: &'static str,
    calls: u64,
    results: u64,
    errors: u64,
    unfinished: u64,
    bytes: u64,
    latency_ns: Histogram<u64>,
}

/// Returns a histogram with a precision of three digits, which grows as needed.
fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("so many digits may be had")
}

/// Counts a value.
fn record(histogram: &mut Histogram<u64>, value: u64) {
    // A histogram that grows takes any value.
    let recorded = histogram.record(value);
    debug_assert!(recorded.is_ok());
}

/// True if a call neither submitted nor fetched anything, and did not wake the SQ thread.
pub fn is_spurious(entered: &Entered) -> bool {
    let wakes = entered.flags & (IORING_ENTER_SQ_WAKEUP | IORING_ENTER_SQ_WAIT) != 0;
    let fetches = entered.flags & IORING_ENTER_GETEVENTS != 0;
    entered.result == 0 && !wakes && !(fetches && entered.cq_ready != 0)
}

impl Counts {
    /// Returns a table that is printed to `to` at the end.
    pub fn new(to: impl Write + 'static, filter: Rc<Filter>) -> Counts {
        Counts {
            sink: Sink::new(to),
            filter,
            operations: BTreeMap::new(),
            enters: 0,
            failed_enters: 0,
            spurious_enters: 0,
            enters_ns: 0,
            batches: histogram(),
        }
    }

    fn operation(&mut self, request: &Request) -> &mut Operation {
        self.operations.entry(request.op.code).or_insert_with(|| Operation {
            name: request.op.name,
            calls: 0,
            results: 0,
            errors: 0,
            unfinished: 0,
            bytes: 0,
            latency_ns: histogram(),
        })
    }

    fn request(&mut self, request: &Request) {
        let operation = self.operation(request);
        operation.calls += 1;
        operation.results += request.count();
        if transfer::moves_bytes(request.op) {
            operation.bytes += request.bytes();
        }
        let Some(result) = request.result().filter(|_| request.is_done()) else {
            operation.unfinished += u64::from(!request.may_be_done());
            return;
        };
        operation.errors += u64::from(result.res < 0);
        // The time until the end of a multishot request is not the latency of its results.
        if request.is_multishot() {
            return;
        }
        record(&mut operation.latency_ns, request.latency_ns(result));
    }

    fn entered(&mut self, entered: &Entered) {
        self.enters += 1;
        self.enters_ns = self.enters_ns.saturating_add(entered.duration_ns);
        self.failed_enters += u64::from(entered.result < 0);
        self.spurious_enters += u64::from(is_spurious(entered));
        if entered.result > 0 {
            record(&mut self.batches, entered.result as u64);
        }
    }
}

impl Listener for Counts {
    fn tell(&mut self, place: Place, told: &Told<'_>, _model: &Model) {
        match told {
            Told::Requests(requests) => {
                for request in *requests {
                    if self.filter.wants_request(request) {
                        self.request(request);
                    }
                }
            }
            Told::Entered(entered) if self.filter.wants(place, told) => self.entered(entered),
            _ => {}
        }
    }
}

fn time(duration_ns: u64) -> String {
    let mut text = String::new();
    quote::duration(&mut text, duration_ns);
    text
}

impl Output for Counts {
    fn end(&mut self, _model: &Model) {
        let mut table = String::from(
            "   calls  results   errors unfinished       p50       p99       max          bytes operation\n",
        );
        let mut operations: Vec<_> = self.operations.values().collect();
        operations.sort_by_key(|operation| std::cmp::Reverse(operation.calls));
        for operation in operations {
            let Operation { name, calls, results, errors, unfinished, bytes, latency_ns } = operation;
            let at = |quantile| match latency_ns.len() {
                0 => "-".to_owned(),
                _ => time(latency_ns.value_at_quantile(quantile)),
            };
            let (p50, p99, max) = (at(0.5), at(0.99), at(1.0));
            table += &format!(
                "{calls:8} {results:8} {errors:8} {unfinished:10} {p50:>9} {p99:>9} {max:>9} {bytes:14} {name}\n"
            );
        }
        table += &format!(
            "\nenters: {}, {} failed, {} spurious, {} altogether\nbatches: {} submitted, p50 {}, p99 {}, max {}\n",
            self.enters,
            self.failed_enters,
            self.spurious_enters,
            time(self.enters_ns),
            self.batches.len(),
            self.batches.value_at_quantile(0.5),
            self.batches.value_at_quantile(0.99),
            self.batches.max(),
        );
        self.sink.put(table.as_bytes());
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}
