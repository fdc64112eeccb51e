//! The answers of the kernel's io_uring, kept in text files: `tests/record/VERSION/MODULE.txt` has an entry for each comparison of
//! each test. A test compares the user engine with its entries, also where the kernel's io_uring is denied.
//!
//! `ANYRING_ORACLE` has the kernel asked: `live` compares the user engine, the kernel and the record; `record` writes the
//! entries anew; `kernel` compares the user engine with a kernel of which there is no record.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use anyring_engine::request::version::Version;

use super::text;

/// The other side of a comparison with the user engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Oracle {
    Record,
    /// The kernel, whose answers must be those of the record.
    Live,
    /// The kernel alone.
    Kernel,
    /// The kernel, whose answers become the record.
    Recording,
}

impl Oracle {
    pub fn asks_the_kernel(self) -> bool {
        self != Oracle::Record
    }
}

/// That of this process.
pub fn oracle() -> Oracle {
    static ORACLE: LazyLock<Oracle> = LazyLock::new(|| {
        let wanted = std::env::var("ANYRING_ORACLE").unwrap_or_default();
        let oracle = match wanted.as_str() {
            "" => return Oracle::Record,
            "live" => Oracle::Live,
            "kernel" => Oracle::Kernel,
            "record" => Oracle::Recording,
            _ => panic!("ANYRING_ORACLE is '{wanted}': it can be live, record or kernel"),
        };
        if let Err(error) = super::kernel_ring() {
            panic!(
                "ANYRING_ORACLE={wanted}, but the kernel gives no io_uring (a filter, or kernel.io_uring_disabled?): {error}"
            );
        }
        oracle
    });
    *ORACLE
}

/// The version that the user engine plays: that of the record, or of the kernel that is asked.
pub fn version() -> Version {
    if !oracle().asks_the_kernel() {
        return newest(&records()).unwrap_or(Version::NEWEST);
    }
    // SAFETY: zeroes are a value; the call fills it with strings.
    let release = unsafe {
        let mut name: libc::utsname = std::mem::zeroed();
        assert_eq!(libc::uname(&mut name), 0);
        std::ffi::CStr::from_ptr(name.release.as_ptr()).to_owned()
    };
    let kernel = release.to_str().ok().and_then(Version::of_release);
    kernel.unwrap_or(Version::NEWEST)
}

fn records() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../record")
}

/// The newest version that there is a record of.
fn newest(records: &Path) -> Option<Version> {
    let versions = fs::read_dir(records).ok()?.flatten();
    versions.filter_map(|entry| Version::parse(entry.file_name().as_encoded_bytes())).max()
}

/// The running test: its module and its name there.
fn test() -> (String, String) {
    let thread = std::thread::current();
    let name = thread.name().filter(|&name| name != "main");
    let name = name.expect(
        "answers are compared in the thread of the test, or in one that has its name (record::like_this)",
    );
    let (module, test) = name.split_once("::").unwrap_or((module_path!().split_once("::").unwrap().0, name));
    (module.to_owned(), test.to_owned())
}

/// A thread in which answers are compared as in this one.
pub fn like_this() -> std::thread::Builder {
    let name = std::thread::current().name().expect("a test's thread").to_owned();
    std::thread::Builder::new().name(name)
}

/// The entries of a test, by the number of the comparison.
type Entries = BTreeMap<usize, String>;

/// Entries by test.
type Page = BTreeMap<String, Entries>;

fn read(text: &str) -> Page {
    let (mut page, mut place) = (Page::new(), None);
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(answer) = line.strip_prefix("    ") {
            let (test, number): &(String, usize) =
                place.as_ref().expect("an answer stands behind the name of its test");
            page.entry(test.clone()).or_default().entry(*number).or_default().extend([answer, "\n"]);
            continue;
        }
        let (test, number) = line.rsplit_once(' ').expect("the name of a test, and a number");
        place = Some((test.to_owned(), number.parse().expect("the number of a comparison")));
    }
    page
}

/// All tests that the record of this version has answers of.
pub fn tests() -> Vec<String> {
    let pages =
        fs::read_dir(records().join(version().to_string())).expect("a directory for each version").flatten();
    let of_page = |page: fs::DirEntry| {
        let module = page.path().file_stem().unwrap().to_str().unwrap().to_owned();
        let tests = read(&fs::read_to_string(page.path()).unwrap()).into_keys();
        tests.map(move |test| format!("{module}::{test}"))
    };
    pages.flat_map(of_page).collect()
}

fn write(page: &Page) -> String {
    let mut all = String::new();
    for (test, entries) in page {
        for (number, answer) in entries {
            writeln!(all, "{test} {number}").unwrap();
            answer.lines().for_each(|line| writeln!(all, "    {line}").unwrap());
            all.push('\n');
        }
    }
    all
}

/// The comparisons of the running test.
struct Comparisons {
    path: PathBuf,
    test: String,
    entries: Entries,
    done: usize,
}

thread_local! {
    static COMPARISONS: RefCell<Option<Comparisons>> = const { RefCell::new(None) };
    static PANICKED: Cell<bool> = const { Cell::new(false) };
}

impl Comparisons {
    fn new() -> Comparisons {
        let (module, test) = test();
        let path = records().join(version().to_string()).join(module + ".txt");
        let text = fs::read_to_string(&path).unwrap_or_default();
        let entries = if oracle() == Oracle::Recording { None } else { read(&text).remove(&test) };
        // What a test that fails has not compared is not missed.
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICKED.set(true);
            hook(info);
        }));
        Comparisons { path, test, entries: entries.unwrap_or_default(), done: 0 }
    }

    /// The place of the last comparison in the record, for messages.
    fn place(&self) -> String {
        format!("{}, {} {}", self.path.display(), self.test, self.done)
    }

    /// Writes the last entry to the record. Tests that run at once take turns.
    fn keep(&self) {
        let directory = self.path.parent().unwrap();
        fs::create_dir_all(directory).unwrap();
        let turn = fs::File::open(directory).unwrap();
        // SAFETY: a descriptor of ours.
        assert_eq!(unsafe { libc::flock(turn.as_raw_fd(), libc::LOCK_EX) }, 0);
        let mut page = read(&fs::read_to_string(&self.path).unwrap_or_default());
        page.insert(self.test.clone(), self.entries.clone());
        fs::write(&self.path, write(&page)).unwrap();
    }
}

impl Drop for Comparisons {
    fn drop(&mut self) {
        let (done, recorded) = (self.done, self.entries.len());
        if done < recorded && !PANICKED.get() && oracle() != Oracle::Kernel {
            eprintln!(
                "{}: {recorded} answers are recorded, of which the test asked for {done}. Where that is right: make record",
                self.place()
            );
            // A panic while a thread ends says nothing of the test.
            std::process::abort();
        }
    }
}

/// Passes over an entry: the test has said why it leaves this comparison out.
pub fn leave_out() {
    COMPARISONS.with_borrow_mut(|comparisons| comparisons.get_or_insert_with(Comparisons::new).done += 1);
}

/// Compares an answer of the user engine with what the kernel answered, or answers now. `Err` says how they differ.
pub fn compare<T: PartialEq + Debug>(user: &T, kernel: impl FnOnce() -> T) -> Result<(), String> {
    let kernel = oracle().asks_the_kernel().then(kernel);
    if let Some(kernel) = kernel.as_ref().filter(|&kernel| kernel != user) {
        let (user, kernel) = (text::lay_out(user), text::lay_out(kernel));
        return Err(format!(
            "the kernel (-) and the user engine (+) differ:\n{}",
            text::difference(&kernel, &user)
        ));
    }
    COMPARISONS.with_borrow_mut(|comparisons| {
        let comparisons = comparisons.get_or_insert_with(Comparisons::new);
        comparisons.done += 1;
        let (number, answer) = (comparisons.done, text::lay_out(user));
        if oracle() == Oracle::Recording {
            comparisons.entries.insert(number, answer);
            comparisons.keep();
        } else if oracle() != Oracle::Kernel {
            let who = if kernel.is_some() { "the kernel's and the user engine's" } else { "the user engine's" };
            let Some(recorded) = comparisons.entries.get(&number) else {
                let place = comparisons.place();
                comparisons.done -= 1;
                return Err(format!("no answer is recorded as {place}: record it on a machine that has io_uring, by make record"));
            };
            if *recorded != answer {
                let difference = text::difference(recorded, &answer);
                let place = comparisons.place();
                comparisons.done -= 1;
                return Err(format!("the record (-, {place}) and {who} answer (+) differ:\n{difference}"));
            }
        }
        anyring_tally::compared();
        Ok(())
    })
}
