//! The table on a terminal, controlled by keys.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyring_tracer::{Session, Settings};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Alignment, Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row as Cells, Table as Widget, TableState};
use ratatui::{DefaultTerminal, Frame};

use crate::signals;
use crate::table::{self, COLUMNS, Column, FIRST_ORDER};
use crate::top::{Machine, Row, Table};
use crate::trace::{Taken, Watch};

/// The maximum number of lines that are kept of a ring's requests.
const MOST_LINES: usize = 1000;

/// Shows the table until a key ends it.
///
/// # Errors
/// The errors of reading from and writing to the terminal.
pub fn show(machine: Machine, interval: Duration) -> io::Result<()> {
    // SIGHUP ends the process immediately: a terminal that has hung up needs no cleaning up, and reading from it would never end.
    signals::catch_end(&[libc::SIGINT, libc::SIGTERM]);
    let mut terminal = ratatui::try_init()?;
    let result = Screen::new(machine, interval).run(&mut terminal);
    ratatui::try_restore().and(result)
}

struct Screen {
    machine: Machine,
    interval: Duration,
    table: Table,
    order: char,
    state: TableState,
    opened: Option<Opened>,
    is_paused: bool,
}

/// A ring whose requests are shown.
struct Opened {
    process: u32,
    descriptor: i32,
    /// The watch of the ring, or the reason why it cannot be watched.
    watch: Result<Watch, String>,
    session: Session,
    lines: Lines,
    /// The lines that stay on the screen while it is paused.
    kept: Option<VecDeque<String>>,
}

/// The newest lines that a session has printed.
#[derive(Clone, Default)]
struct Lines(Rc<RefCell<VecDeque<String>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut lines = self.0.borrow_mut();
        // A session writes whole lines.
        for line in String::from_utf8_lossy(bytes).lines() {
            lines.push_back(line.into());
        }
        let surplus = lines.len().saturating_sub(MOST_LINES);
        lines.drain(..surplus);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Opened {
    fn new(row: &Row) -> Opened {
        let lines = Lines::default();
        let session = Session::new(Settings::default()).text(lines.clone());
        let watch = Watch::of_ring(row.process, row.descriptor)
            .map_err(|refusal| format!("{refusal}\n{}\n{}", refusal.why(), refusal.remedy()));
        Opened { process: row.process, descriptor: row.descriptor, watch, session, lines, kept: None }
    }

    /// Looks at the ring; returns the processor time that the look took.
    fn look(&mut self) -> Duration {
        let Ok(watch) = &mut self.watch else { return Duration::ZERO };
        match watch.look(&mut Taken::default(), &mut self.session) {
            Ok(looked) => looked.took,
            Err(refusal) => {
                self.watch = Err(refusal.to_string());
                Duration::ZERO
            }
        }
    }
}

impl Screen {
    fn new(machine: Machine, interval: Duration) -> Screen {
        let table = Table { interval_s: 0.0, processes_denied: 0, rings: Vec::new() };
        let state = TableState::default().with_selected(0);
        Screen { machine, interval, table, order: FIRST_ORDER, state, opened: None, is_paused: false }
    }

    fn run(&mut self, terminal: &mut DefaultTerminal) -> io::Result<()> {
        self.machine.search();
        self.machine.look();
        let mut told = Instant::now();
        loop {
            terminal.draw(|frame| self.draw(frame))?;
            // The first table comes soon.
            let interval =
                if self.table.interval_s == 0.0 { self.interval.min(FIRST) } else { self.interval };
            while told.elapsed() < interval {
                if signals::has_to_end() {
                    return Ok(());
                }
                let mut took = self.machine.look();
                if let Some(opened) = &mut self.opened {
                    took += opened.look();
                }
                let pause = if self.opened.is_some() { crate::short_pause(took) } else { crate::pause(took) };
                let pause = pause.min(interval.saturating_sub(told.elapsed()));
                if event::poll(pause)? {
                    if !self.answer(&event::read()?) {
                        return Ok(());
                    }
                    terminal.draw(|frame| self.draw(frame))?;
                }
            }
            told = Instant::now();
            self.machine.search();
            let table = self.machine.next_table();
            if !self.is_paused {
                self.table = table;
                table::sort(&mut self.table.rings, self.order);
            }
        }
    }

    /// Handles a key; returns false if the program is to end.
    fn answer(&mut self, event: &Event) -> bool {
        let Event::Key(key) = event else { return true };
        if key.kind == KeyEventKind::Release {
            return true;
        }
        let last = self.table.rings.len().saturating_sub(1);
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left if self.opened.is_some() => self.opened = None,
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Up => self.state.select_previous(),
            KeyCode::Down => {
                self.state.select(Some(self.state.selected().map_or(0, |row| (row + 1).min(last))))
            }
            KeyCode::Enter | KeyCode::Right => {
                let row = self.state.selected().and_then(|row| self.table.rings.get(row));
                self.opened = row.map(Opened::new);
                self.is_paused = false;
            }
            KeyCode::Char(' ') => {
                self.is_paused = !self.is_paused;
                if let Some(opened) = &mut self.opened {
                    opened.kept = self.is_paused.then(|| opened.lines.0.borrow().clone());
                }
            }
            KeyCode::Char(key) if COLUMNS.iter().any(|column| column.key == Some(key)) => {
                self.order = key;
                table::sort(&mut self.table.rings, key);
            }
            _ => {}
        }
        true
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let heights = [Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)];
        let [above, middle, below] = Layout::vertical(heights).areas(frame.area());
        let paused = if self.is_paused { " (paused)" } else { "" };
        frame.render_widget(format!("anyring top{paused}  {}", table::summary(&self.table)), above);
        let keys = match &self.opened {
            None => "keys: arrows, Enter: requests of a ring, s c f k o u e l p: sort, space: pause, q: quit",
            Some(_) => "keys: Esc: back, space: pause, Ctrl-C: exit",
        };
        frame.render_widget(Line::styled(keys, Style::new().add_modifier(Modifier::DIM)), below);
        match &self.opened {
            Some(opened) => draw_requests(opened, frame, middle),
            None => self.draw_table(frame, middle),
        }
    }

    fn draw_table(&mut self, frame: &mut Frame<'_>, area: ratatui::layout::Rect) {
        let shown = columns_within(area.width);
        let widths = shown.iter().map(|column| match column.width {
            0 => Constraint::Fill(1),
            width => Constraint::Length(width),
        });
        let cell = |text: String, is_right: bool| {
            let alignment = if is_right { Alignment::Right } else { Alignment::Left };
            Cell::from(Text::from(text).alignment(alignment))
        };
        let heads = shown.iter().map(|column| {
            let head = cell(column.head.into(), column.is_right);
            if column.key == Some(self.order) { head.style(Modifier::UNDERLINED) } else { head }
        });
        let rows = self
            .table
            .rings
            .iter()
            .map(|row| Cells::new(shown.iter().map(|column| cell(column.cell(row), column.is_right))));
        let widget = Widget::new(rows, widths)
            .header(Cells::new(heads).style(Modifier::BOLD))
            .row_highlight_style(Modifier::REVERSED);
        frame.render_stateful_widget(widget, area, &mut self.state);
    }
}

/// The longest duration of the first interval.
const FIRST: Duration = Duration::from_millis(500);

/// Returns the columns that fit into a width, from the left; the last one takes the remaining width. A number is never cut off, because
/// its part would be a different number.
fn columns_within(width: u16) -> Vec<&'static Column> {
    const SPACE: u16 = 1;
    const LEAST: u16 = 10;
    let mut left = width;
    let fits = |column: &&Column| {
        let wanted = if column.width == 0 { LEAST } else { column.width + SPACE };
        // No space is needed behind the last column.
        let fits = wanted <= left.saturating_add(SPACE);
        left = left.saturating_sub(wanted);
        fits
    };
    COLUMNS.iter().take_while(fits).collect()
}

fn draw_requests(opened: &Opened, frame: &mut Frame<'_>, area: ratatui::layout::Rect) {
    let newest = opened.lines.0.borrow();
    let lines = opened.kept.as_ref().unwrap_or(&newest);
    let text = match &opened.watch {
        Err(refusal) => Text::from(refusal.clone()),
        Ok(_) => {
            let first = lines.len().saturating_sub(usize::from(area.height.saturating_sub(1)));
            let head = format!("process {}, ring {}: the last requests", opened.process, opened.descriptor);
            let head = Line::styled(head, Modifier::BOLD);
            let newest = lines.range(first..).map(|line| Line::from(line.as_str()));
            std::iter::once(head).chain(newest).collect()
        }
    };
    frame.render_widget(Paragraph::new(text), area);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::KeyEvent;

    fn row(process: u32, submissions_per_s: f64, errors_per_s: f64) -> Row {
        let errors_per_s = Some(errors_per_s);
        Row {
            process,
            program: format!("program-{process}"),
            submissions_per_s: Some(submissions_per_s),
            errors_per_s,
            ..Row::default()
        }
    }

    fn screen() -> Screen {
        let mut screen = Screen::new(Machine::new(None), Duration::from_secs(1));
        screen.table.rings = vec![row(11, 5.0, 0.0), row(12, 3.0, 9.0)];
        screen
    }

    fn press(screen: &mut Screen, code: KeyCode) -> bool {
        screen.answer(&Event::Key(KeyEvent::new(code, KeyModifiers::NONE)))
    }

    /// Returns the lines of the screen, without spaces at their ends.
    fn drawn(screen: &mut Screen) -> Vec<String> {
        drawn_within(screen, 120)
    }

    fn drawn_within(screen: &mut Screen, width: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, 8)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let cells = terminal.backend().buffer().content().chunks(width.into());
        let line = |cells: &[ratatui::buffer::Cell]| {
            cells.iter().map(ratatui::buffer::Cell::symbol).collect::<String>()
        };
        cells.map(|cells| line(cells).trim_end().to_owned()).collect()
    }

    #[test]
    fn letters_sort_the_table() {
        let mut screen = screen();
        let lines = drawn(&mut screen);
        assert!(lines[0].contains("rings: 2, processes: 2") && lines[1].contains("SUBMIT/S"), "{lines:#?}");
        assert!(lines[2].contains("program-11") && lines[3].contains("program-12"), "{lines:#?}");
        assert!(press(&mut screen, KeyCode::Char('e')));
        let lines = drawn(&mut screen);
        assert!(lines[2].contains("program-12") && lines[2].contains(" 9.0 "), "{lines:#?}");
        assert!(!press(&mut screen, KeyCode::Char('q')));
    }

    /// The process does not exist: the screen shows an error, and goes back.
    #[test]
    fn a_ring_is_opened() {
        let mut screen = screen();
        screen.table.rings[1].process = 1 << 22;
        assert!(press(&mut screen, KeyCode::Down) && press(&mut screen, KeyCode::Enter));
        let lines = drawn(&mut screen);
        assert!(lines[1].contains("cannot open process 4194304"), "{lines:#?}");
        assert!(press(&mut screen, KeyCode::Esc));
        assert!(drawn(&mut screen)[2].contains("program-11"));
        assert!(!press(&mut screen, KeyCode::Esc));
    }

    /// A column is shown whole or not at all, so that no number is cut off.
    #[test]
    fn columns_that_do_not_fit_are_left_out() {
        for (width, last) in [(60, "COMPL/S"), (80, "CQ"), (105, "LATENCY"), (120, "OPERATIONS")] {
            let mut screen = screen();
            screen.table.rings[0] = Row {
                process: 4_194_303,
                completions_per_s: Some(98_765.0),
                cq_ready_most: Some(65_536),
                cq_entries: Some(65_536),
                ..row(1, 12_345.0, 1.0)
            };
            let lines = drawn_within(&mut screen, width);
            assert!(lines[1].ends_with(last), "{width}: {lines:#?}");
            for whole in ["4194303", "12345", "98765"] {
                assert!(lines[2].split(' ').any(|word| word == whole), "{width}: {lines:#?}");
            }
            assert_eq!(lines[2].contains("536"), lines[2].contains(" 65536/65536"), "{width}: {lines:#?}");
        }
    }

    #[test]
    fn lines_of_a_ring_stay_while_it_is_paused() {
        let mut screen = screen();
        let mut opened = Opened::new(&Row { process: std::process::id(), ..Row::default() });
        writeln!(opened.lines, "first").unwrap();
        screen.opened = Some(opened);
        press(&mut screen, KeyCode::Char(' '));
        writeln!(screen.opened.as_mut().unwrap().lines, "second").unwrap();
        assert!(!drawn(&mut screen).iter().any(|line| line.contains("second")));
        press(&mut screen, KeyCode::Char(' '));
        assert!(drawn(&mut screen).iter().any(|line| line.contains("second")));
    }
}
