//! The terminal: taken, and given back whatever happens.

use std::io::{self, BufWriter, Stdout, Write};
use std::panic::{self, PanicHookInfo};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crossterm::clipboard::CopyToClipboard;
use crossterm::cursor::Show;
use crossterm::event::{DisableBracketedPaste, DisableMouseCapture, EnableBracketedPaste, EnableMouseCapture};
use crossterm::terminal::{self, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use crossterm::{execute, queue};
use ratatui::backend::CrosstermBackend;
use ratatui::layout::Rect;
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};

/// Columns and rows of a terminal that does not know how many it has: a new one of a container, or a serial line, says 0.
const USUAL: (u16, u16) = (80, 24);

/// Whether the terminal is ours: there is one only.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Bytes that are collected for one write: a frame of a large terminal, so that it does not flicker over ssh.
const FRAME_BYTES: usize = 1 << 16;

/// A terminal in raw mode that shows its alternate screen, until this is dropped.
#[derive(Debug)]
pub struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
    /// Columns and rows that are drawn to.
    size: (u16, u16),
    mouse: bool,
}

impl Screen {
    /// Takes the terminal, and the mouse if asked to.
    ///
    /// # Errors
    /// There is no terminal, or it does not answer.
    pub fn take(mouse: bool) -> io::Result<Self> {
        enter(mouse)?;
        let out = BufWriter::with_capacity(FRAME_BYTES, io::stdout());
        let size = size();
        let options = TerminalOptions { viewport: Viewport::Fixed(Rect::new(0, 0, size.0, size.1)) };
        let terminal = Terminal::with_options(CrosstermBackend::new(out), options).inspect_err(|_| restore())?;
        Ok(Self { terminal, size, mouse })
    }

    /// Columns and rows.
    pub fn size(&self) -> (u16, u16) {
        self.size
    }

    /// Shows a frame.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn draw(&mut self, frame: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        let size = size();
        if size != self.size {
            self.size = size;
            self.terminal.resize(Rect::new(0, 0, size.0, size.1))?;
        }
        self.terminal.draw(frame).map(drop)
    }

    /// Lets the next frame be drawn whole, whatever is on the terminal now.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn clear(&mut self) -> io::Result<()> {
        self.terminal.clear()
    }

    /// Asks the terminal to put a text into its clipboard; works over ssh, and not in every terminal.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn copy(&mut self, text: &str) -> io::Result<()> {
        execute!(self.terminal.backend_mut(), CopyToClipboard::to_clipboard_from(text))
    }

    /// Gives the terminal back, runs `f`, and takes it again.
    ///
    /// # Errors
    /// The terminal cannot be taken again.
    pub fn without(&mut self, f: impl FnOnce()) -> io::Result<()> {
        restore();
        f();
        enter(self.mouse)?;
        self.clear()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
        // Or the library does it, after us.
        let _ = self.terminal.show_cursor();
    }
}

/// The size that a terminal says it has, without zeros.
///
/// ```
/// use wcodec_tui::terminal::usual;
/// assert_eq!((usual(0, 0), usual(0, 7), usual(132, 1)), ((80, 24), (80, 7), (132, 1)));
/// ```
pub fn usual(columns: u16, rows: u16) -> (u16, u16) {
    let or = |n, other| if n == 0 { other } else { n };
    (or(columns, USUAL.0), or(rows, USUAL.1))
}

fn size() -> (u16, u16) {
    terminal::size().map_or(USUAL, |(columns, rows)| usual(columns, rows))
}

fn enter(mouse: bool) -> io::Result<()> {
    enable_raw_mode()?;
    TAKEN.store(true, Ordering::SeqCst);
    let mut out = io::stdout();
    let wanted = queue!(out, EnterAlternateScreen, EnableBracketedPaste)
        .and_then(|()| if mouse { queue!(out, EnableMouseCapture) } else { Ok(()) })
        .and_then(|()| out.flush());
    wanted.inspect_err(|_| restore())
}

/// Gives the terminal back if it is taken. What goes wrong does not matter any more.
fn restore() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        let mut out = io::stdout();
        // To switch off a mouse that is not captured does no harm.
        let _ = execute!(out, DisableMouseCapture, DisableBracketedPaste, LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
    }
}

type Hook = Arc<dyn Fn(&PanicHookInfo<'_>) + Send + Sync>;

/// Keeps panics from leaving the terminal as it is, and the hook that was there before from being lost.
pub struct PanicGuard {
    before: Hook,
}

impl PanicGuard {
    /// From now on a panic of this thread gives the terminal back before its message is printed. A panic of another thread while
    /// the terminal is taken goes to `tell` instead: it must not tear the screen.
    pub fn install(tell: impl Fn(String) + Send + Sync + 'static) -> Self {
        let before: Hook = Arc::from(panic::take_hook());
        let (next, ours) = (before.clone(), thread::current().id());
        panic::set_hook(Box::new(move |info| {
            if thread::current().id() == ours {
                restore();
            } else if TAKEN.load(Ordering::SeqCst) {
                tell(format!("internal error: {}", info.to_string().replace('\n', " ")));
                return;
            }
            next(info);
        }));
        Self { before }
    }
}

impl Drop for PanicGuard {
    fn drop(&mut self) {
        // A thread that panics cannot change its hook, and the process is about to end.
        if !thread::panicking() {
            let before = self.before.clone();
            panic::set_hook(Box::new(move |info| before(info)));
        }
    }
}
