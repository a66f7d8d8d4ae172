//! The program in a pseudo-terminal: the terminal is given back, however the program ends.
#![cfg(unix)]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use tempfile::TempDir;
use wcodec::{Dtype, EncodeOptions, MemorySource, encode_to_vec};
use wcodec_tui::terminal::{PanicGuard, Screen};

/// Much longer than anything takes, for machines that do much else.
const PATIENCE: Duration = Duration::from_secs(60);

/// The alternate screen is shown, and is left.
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";
const SHOW_CURSOR: &str = "\x1b[?25h";

/// A program on a terminal of its own.
struct Session {
    child: Child,
    keys: File,
    terminal: OwnedFd,
    shown: Arc<Mutex<Vec<u8>>>,
    lines: bool,
}

impl Session {
    fn start(mut command: Command) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let terminal: OwnedFd = File::options().read(true).write(true).open(name).unwrap().into();
        tcsetwinsize(&terminal, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let lines = tcgetattr(&terminal).unwrap().local_modes.contains(LocalModes::ICANON);
        let end = || terminal.try_clone().unwrap();
        command.env("TERM", "xterm-256color").stdin(end()).stdout(end()).stderr(end());
        let child = command.spawn().unwrap();
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (keys, mut reader, sink) = (File::from(master.try_clone().unwrap()), File::from(master), shown.clone());
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = reader.read(&mut buffer) {
                sink.lock().unwrap().extend_from_slice(&buffer[..n]);
            }
        });
        Self { child, keys, terminal, shown, lines }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    fn wait_for(&self, part: &str) {
        let start = Instant::now();
        while !self.text().contains(part) {
            assert!(start.elapsed() < PATIENCE, "{part:?} is not in {:?}", self.text());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the end, and looks whether the terminal is as it was.
    fn end(mut self) -> (i32, String) {
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if start.elapsed() > PATIENCE => panic!("it does not end: {:?}", self.text()),
                None => thread::sleep(Duration::from_millis(5)),
            }
        };
        self.wait_for(LEAVE);
        thread::sleep(Duration::from_millis(100));
        let text = self.text();
        let modes = tcgetattr(&self.terminal).unwrap().local_modes;
        assert_eq!(modes.contains(LocalModes::ICANON), self.lines, "raw mode is left");
        assert!(text.rfind(LEAVE) > text.rfind(ENTER), "{text:?}");
        assert!(text.rfind(SHOW_CURSOR) > text.rfind("\x1b[?25l"), "{text:?}");
        (status.code().unwrap_or(-1), text[text.rfind(LEAVE).unwrap()..].to_owned())
    }
}

fn container(folder: &TempDir) -> PathBuf {
    let mut source = MemorySource::new();
    for name in ["layers.0.q_proj.weight", "layers.1.q_proj.weight"] {
        let values: Vec<u8> = (0..64 * 64).flat_map(|i| ((i % 97) as f32 - 48.0).to_le_bytes()).collect();
        source.push(name.to_owned(), Dtype::F32, vec![64, 64], values.into()).unwrap();
    }
    let (bytes, _) = encode_to_vec(&source, &EncodeOptions::default(), &mut |_| Ok(())).unwrap();
    let file = folder.path().join("a.wcodec");
    std::fs::write(&file, bytes).unwrap();
    file
}

fn program(folder: &TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wcodec-tui"));
    command.arg(container(folder)).env("LANG", "C.UTF-8").env_remove("LC_ALL").env_remove("NO_COLOR");
    command
}

#[test]
fn keys_and_signals_end_it_and_the_terminal_is_given_back() {
    let folder = tempfile::tempdir().unwrap();
    for key in ["q", "\x03"] {
        let mut session = Session::start(program(&folder));
        session.wait_for("q_proj");
        session.keys.write_all(key.as_bytes()).unwrap();
        let (status, after) = session.end();
        assert_eq!(status, 0, "{after:?}");
    }
    for (signal, status) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let session = Session::start(program(&folder));
        session.wait_for("q_proj");
        kill_process(Pid::from_child(&session.child), signal).unwrap();
        assert_eq!(session.end().0, status);
    }
}

#[test]
fn errors_leave_the_terminal_alone() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wcodec-tui"));
    command.arg("no/such.wcodec");
    let mut session = Session::start(command);
    session.wait_for("wcodec-tui: error: no/such.wcodec");
    assert_eq!(session.child.wait().unwrap().code(), Some(2));
    assert!(!session.text().contains('\x1b'), "{:?}", session.text());
}

#[test]
fn colors_are_left_out_where_they_are_not_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let colored = |session: &Session| session.text().contains("\x1b[38;5;");
    for (flags, wanted) in [(vec![], false), (vec!["--color", "always"], true), (vec!["--color", "never"], false)] {
        let mut command = program(&folder);
        command.args(&flags).env("NO_COLOR", "1");
        let mut session = Session::start(command);
        session.wait_for("q_proj");
        session.keys.write_all(b"q").unwrap();
        thread::sleep(Duration::from_millis(50));
        assert_eq!(colored(&session), wanted, "{flags:?} {:?}", session.text());
        session.end();
    }
}

/// A part of the next test: it runs in a process and a terminal of its own.
#[test]
#[ignore = "panics, and needs a terminal"]
fn panics_on_the_screen() {
    let _guard = PanicGuard::install(|_| {});
    let mut screen = Screen::take(true).unwrap();
    screen.draw(|frame| frame.render_widget("drawn", frame.area())).unwrap();
    // That of another thread is none of the screen's business.
    let _ = thread::spawn(|| panic!("not to be seen")).join();
    screen.draw(|_| panic!("to be seen")).unwrap();
}

#[test]
fn a_panic_gives_the_terminal_back_and_is_told() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "panics_on_the_screen", "--ignored", "--nocapture", "--test-threads", "1"]);
    let session = Session::start(command);
    session.wait_for("drawn");
    let (status, after) = session.end();
    assert_ne!(status, 0);
    assert!(after.contains("to be seen"), "{after:?}");
    assert!(!after.contains("not to be seen"), "{after:?}");
}
