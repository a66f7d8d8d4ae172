//! From the command line to the exit status.

pub mod input;
pub mod log;
pub mod once;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use signal_hook::consts::SIGTSTP;
use signal_hook::low_level;
use wcodec::text::{safe, safe_lines, safe_path};
use wcodec::{Checkpoint, OutputKind, Source};

use self::input::{Input, Signals};
use self::log::Log;
use self::once::Once;
use crate::action::{Action, Report};
use crate::cli::look::look;
use crate::cli::{self, Job, Options, PROGRAM, When};
use crate::draw::{self, Canvas, Look, Theme, draw};
use crate::effect::Effect;
use crate::keymap::{file, file::Settings};
use crate::model::{FileModel, Sort};
use crate::state::State;
use crate::terminal::{PanicGuard, Screen};
use crate::update::{self, update};
use crate::views::Tab;
use crate::workers::Workers;

/// Equal, or done.
const FINE: u8 = 0;
/// The files differ.
const DIFFERENT: u8 = 1;
/// Something went wrong.
const FAILED: u8 = 2;
/// The number that shells add to that of a signal that ended a program.
const SIGNALLED: u8 = 128;

/// The least time between two frames: about 60 a second.
const FRAME: Duration = Duration::from_millis(16);
/// Time between two ticks, while something runs.
const TICK: Duration = Duration::from_millis(250);
/// The time that a file may take to open before the screen says so.
const PATIENCE: Duration = Duration::from_millis(40);
/// The time that a signal may wait for its answer.
const SIGNAL: Duration = Duration::from_millis(100);
/// The most actions between two looks at the clock, so that a flood of reports cannot keep the screen from being drawn.
const BATCH: usize = 256;

/// Runs the inspector with these arguments, the program's name first; the exit status.
///
/// ```
/// assert_eq!(wcodec_tui::run(["wcodec-tui", "no/such/file.wcodec"].map(Into::into)), 2);
/// ```
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    run_with(arguments, Vec::new())
}

/// [`run`], for a caller that knows of more folders in which nvCOMP may be, such as those of Python's `sys.path`.
pub fn run_with(arguments: impl IntoIterator<Item = OsString>, nvcomp_folders: Vec<PathBuf>) -> u8 {
    let done = match job(arguments, nvcomp_folders) {
        Job::Inspect(options) => inspect(&options),
        Job::Print(text) => print(&text).map(|()| FINE),
        Job::Refuse(message) => {
            // Already as long as it should be, with advice. Where nobody reads it, the status tells.
            let _ = io::stderr().write_all(safe_lines(&message).as_bytes());
            return FAILED;
        }
    };
    done.unwrap_or_else(|message| {
        let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
        let _ = writeln!(io::stderr(), "{PROGRAM}: error: {}", safe(&line));
        FAILED
    })
}

fn job(arguments: impl IntoIterator<Item = OsString>, nvcomp_folders: Vec<PathBuf>) -> Job {
    let mut job = cli::parse(arguments);
    if let Job::Inspect(options) = &mut job {
        options.nvcomp_folders = nvcomp_folders;
    }
    job
}

/// Prints a text. Who closes the pipe has seen enough.
fn print(text: &str) -> Result<(), String> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(format!("stdout: {e}")),
        _ => Ok(()),
    }
}

fn open(path: &Path, trusted: bool) -> Result<Arc<FileModel>, String> {
    FileModel::open_any(path, trusted).map(Arc::new).map_err(|e| e.to_string())
}

/// Opens a file whose index may be large: what takes longer than an eye notices is said on the screen, which is then taken already.
fn open_patiently(path: &Path, options: &Options, look: Look) -> Result<(Arc<FileModel>, Option<Screen>), String> {
    let (done, opened) = channel();
    let (wanted, trusted) = (path.to_owned(), options.trust);
    let thread = thread::Builder::new().name("open".to_owned());
    // The thread ends unheard if the screen cannot be had.
    thread.spawn(move || done.send(open(&wanted, trusted))).map_err(|e| format!("{}: {e}", safe_path(path)))?;
    let gone = || format!("{}: internal error while it was opened", safe_path(path));
    match opened.recv_timeout(PATIENCE) {
        Ok(file) => Ok((file?, None)),
        Err(RecvTimeoutError::Disconnected) => Err(gone()),
        Err(RecvTimeoutError::Timeout) => {
            let bytes = std::fs::metadata(path).ok().map(|m| m.len());
            let terminal = |e: io::Error| format!("terminal: {e}");
            let mut screen = Screen::take(options.mouse).map_err(terminal)?;
            screen.draw(|frame| draw::head::loading(&mut Canvas::whole(frame, look), path, bytes)).map_err(terminal)?;
            let file = opened.recv().map_err(|_| gone())??;
            Ok((file, Some(screen)))
        }
    }
}

/// Everything that can be wrong with what the user gave is found here, before the screen is taken.
fn inspect(options: &Options) -> Result<u8, String> {
    let path = options.file.as_deref().ok_or("a file is needed")?;
    let reference = options.reference.as_deref().map(Checkpoint::open).transpose().map_err(|e| e.to_string())?;
    let log = options.log.as_deref();
    if let Some(log) = log {
        let mut inputs = reference.as_ref().map(Source::files).unwrap_or_default();
        let named = [Some(path), options.other.as_deref(), options.keys.as_deref()];
        for path in named.into_iter().flatten() {
            inputs.push(path.to_owned());
            // Any file of a folder may be read.
            inputs.extend(std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()));
        }
        OutputKind::Log.check(log, &inputs).map_err(|e| e.to_string())?;
        check_log(log)?;
    }
    let mut log = Log::open(log).map_err(|e| format!("{}: {e}", safe_path(log.unwrap_or(path))))?;
    let mut look = look(options, |name| std::env::var(name).ok());
    let shows = !options.json && !options.plain && io::stdout().is_terminal();
    let settings = settings(options, shows)?;
    if let Some(theme) = settings.theme.filter(|_| options.theme.is_none() && look.theme != Theme::Plain) {
        look.theme = theme;
    }
    // A library that draws for us looks at NO_COLOR, too.
    if shows && options.color == When::Always {
        crossterm::style::force_color_output(true);
    }
    let (file, screen) = match shows {
        true => open_patiently(path, options, look)?,
        false => (open(path, options.trust)?, None),
    };
    let (version, shown) = (env!("CARGO_PKG_VERSION"), safe_path(path));
    log.line(format_args!("{PROGRAM} {version}: {shown}, {} tensors", file.tensors.len()));
    let other = options.other.as_deref().map(|path| open(path, options.trust)).transpose()?;
    let tensor = options.tensor.as_ref().map(|name| file.place(name)).transpose().map_err(|e| e.to_string())?;
    // Two files are compared by what they decode to; one that was cut off is only for the screen.
    for file in other.iter().chain((other.is_some() || !shows && file.original().is_none()).then_some(&file)) {
        file.container().map_err(|e| e.to_string())?;
    }
    if !shows {
        let (text, same) = Once::new(options, &file, other.as_deref(), tensor, look)?.text()?;
        print(&text)?;
        return Ok(if same { FINE } else { DIFFERENT });
    }
    let reference = reference.map(Arc::new);
    let channel = channel();
    let mut state = State::new(file.clone(), other, look, (80, 24));
    state.has_reference = reference.is_some();
    state.keys = Arc::new(settings.keys);
    prepare(&mut state, options, tensor);
    let mut workers = Workers::new(file, reference, &options.nvcomp_folders, &channel.0);
    let session = Session { state, workers: &mut workers, log: &mut log };
    let done = session.show(screen, options, &channel);
    log.line(format_args!("end: {done:?}"));
    done.map_err(|e| format!("terminal: {e}"))
}

/// Refuses to wait: a pipe opens when somebody reads it. A device is a terminal, or one that swallows everything.
fn check_log(log: &Path) -> Result<(), String> {
    match std::fs::metadata(log).map(|m| m.file_type()) {
        Ok(kind) if !kind.is_file() && !kind.is_char_device() => {
            Err(format!("{}: the log is none that lines can be added to (name a file)", safe_path(log)))
        }
        _ => Ok(()),
    }
}

/// Keys and colours: of the file that is named, or of the one in the folder of settings, where keys are pressed.
fn settings(options: &Options, shows: bool) -> Result<Settings, String> {
    let usual = || file::default_path(|name| std::env::var(name).ok()).filter(|path| shows && path.exists());
    options.keys.clone().or_else(usual).map_or_else(|| Ok(Settings::default()), |path| file::read(&path))
}

/// Sets the first view as the flags say.
fn prepare(state: &mut State, options: &Options, tensor: Option<usize>) {
    update::estimate(state);
    state.views.speed.device = options.device.unwrap_or_default();
    state.views.speed.threads = options.threads.map_or(0, usize::from);
    if let Some(column) = options.sort {
        state.views.list.sort = Sort::by(column);
    }
    // The filter arranges the rows by the order, too.
    update::filter(state, options.filter.as_deref().unwrap_or_default());
    if let Some(tensor) = tensor {
        update::reveal(state, tensor);
    }
    let unasked = options.filter.is_none() && options.sort.is_none();
    match options.tab.or(tensor.map(|_| Tab::Tensor)) {
        Some(tab) => update::view(state, tab),
        // Its first cell is selected, not that of the list's first row.
        None if unasked && state.file.heat().is_grid() => {
            (state.tab, state.home) = (Tab::Overview, Tab::Overview);
        }
        None => {}
    }
}

/// The way of all actions.
type Channel = (Sender<Action>, Receiver<Action>);

/// The screen, while it is shown.
struct Session<'a> {
    state: State,
    workers: &'a mut Workers,
    log: &'a mut Log,
}

impl Session<'_> {
    /// Shows the screen until the user, a signal or an error ends it.
    fn show(mut self, screen: Option<Screen>, options: &Options, (sender, actions): &Channel) -> io::Result<u8> {
        let signals = Signals::listen()?;
        let tell = sender.clone();
        let _guard = PanicGuard::install(move |text| {
            let _ = tell.send(Action::Report(Report::Error(text)));
        });
        let mut screen = match screen {
            Some(screen) => screen,
            None => Screen::take(options.mouse)?,
        };
        let input = Input::start(sender.clone())?;
        let (columns, rows) = screen.size();
        let mut effects = update(&mut self.state, Action::Resize(columns, rows));
        let (mut drawn, mut ticked) = (None::<Instant>, Instant::now());
        let mut stale = true;
        loop {
            for effect in std::mem::take(&mut effects) {
                if let Some(status) = self.perform(effect, &mut screen)? {
                    return Ok(status);
                }
            }
            if let Some(signal) = signals.seen() {
                return Ok(SIGNALLED.saturating_add(signal));
            }
            if input.is_lost() {
                return Err(io::Error::other("it does not send keys any more"));
            }
            let now = Instant::now();
            let next = drawn.map_or(now, |d| d + FRAME);
            if stale && now >= next {
                screen.draw(|frame| draw(frame, &self.state))?;
                if drawn.is_none() {
                    self.log.line("first frame");
                }
                // The time that drawing took counts, or a slow terminal would get nothing but frames.
                (drawn, stale) = (Some(Instant::now()), false);
            }
            let wait = if stale { next.saturating_duration_since(now) } else { SIGNAL };
            match actions.recv_timeout(wait) {
                Ok(action) => {
                    // All else that has come is done before the next frame, but not for ever.
                    for action in std::iter::once(action).chain(actions.try_iter().take(BATCH)) {
                        self.take(action, &mut screen, &mut effects)?;
                    }
                    stale = true;
                }
                Err(RecvTimeoutError::Timeout) => {}
                // This function holds a sender itself.
                Err(RecvTimeoutError::Disconnected) => return Ok(FINE),
            }
            if ticked.elapsed() >= TICK {
                ticked = Instant::now();
                if is_busy(&self.state) {
                    effects.extend(update(&mut self.state, Action::Tick));
                    stale = true;
                }
            }
        }
    }

    /// Lets the state follow what happened.
    fn take(&mut self, action: Action, screen: &mut Screen, effects: &mut Vec<Effect>) -> io::Result<()> {
        self.log.action(&action);
        if is_suspend(&action) {
            // Until the shell wakes us. If there is none, the system does not let us sleep.
            return screen.without(|| drop(low_level::raise(SIGTSTP)));
        }
        effects.extend(update(&mut self.state, action));
        self.workers.follow(&self.state.file, self.state.generation);
        Ok(())
    }

    /// Does an effect, or has it done. A status ends the program.
    fn perform(&mut self, effect: Effect, screen: &mut Screen) -> io::Result<Option<u8>> {
        self.log.effect(&effect);
        match effect {
            Effect::Quit(status) => return Ok(Some(status)),
            Effect::Copy(text) => screen.copy(&text)?,
            Effect::Redraw => screen.clear()?,
            other => self.workers.perform(other, self.state.generation),
        }
        Ok(None)
    }
}

/// Whether something goes on of which the screen shows how far it is.
fn is_busy(state: &State) -> bool {
    let encodes = state.encode.would.is_running() || state.encode.running.is_some();
    let fetches = || state.known.values().any(|k| k.stats.is_running() || k.verdict.is_running());
    encodes || state.views.speed.running.is_some() || fetches()
}

fn is_suspend(action: &Action) -> bool {
    matches!(action, Action::Key(KeyEvent { code: KeyCode::Char('z'), modifiers: KeyModifiers::CONTROL, .. }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_callers_folders_of_nvcomp_are_options() {
        let folders = vec![PathBuf::from("/site-packages")];
        let Job::Inspect(options) = job(["wcodec-tui", "a.wcodec"].map(Into::into), folders.clone()) else { panic!() };
        assert_eq!(options.nvcomp_folders, folders);
        let Job::Inspect(options) = cli::parse(["wcodec-tui", "a.wcodec"]) else { panic!() };
        assert!(options.nvcomp_folders.is_empty());
    }
}
