//! Keys, and signals that end the program.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossterm::event::{self, Event};
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

use crate::action::Action;
use crate::terminal::usual;
use crate::workers::join_within;

/// The time that the thread waits for a key before it looks whether it is still wanted.
const PATIENCE: Duration = Duration::from_millis(50);

/// The time that leaving waits for the end of the thread.
const LEAVE: Duration = Duration::from_millis(300);

/// A thread that turns what the terminal sends into actions. It ends when this is dropped.
#[derive(Debug)]
pub struct Input {
    leave: Arc<AtomicBool>,
    lost: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Input {
    /// Starts it.
    ///
    /// # Errors
    /// No thread can be had.
    pub fn start(sender: Sender<Action>) -> io::Result<Self> {
        let (leave, lost) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let (stop, gone) = (leave.clone(), lost.clone());
        let thread = thread::Builder::new().name("keys".to_owned()).spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                let event = match event::poll(PATIENCE) {
                    Ok(false) => continue,
                    Ok(true) => event::read(),
                    Err(e) => Err(e),
                };
                let action = match event {
                    Ok(Event::Key(key)) => Action::Key(key),
                    Ok(Event::Mouse(mouse)) => Action::Mouse(mouse),
                    Ok(Event::Paste(text)) => Action::Paste(text),
                    Ok(Event::Resize(columns, rows)) => {
                        let (columns, rows) = usual(columns, rows);
                        Action::Resize(columns, rows)
                    }
                    Ok(Event::FocusGained | Event::FocusLost) => continue,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                    Err(_) => {
                        gone.store(true, Ordering::SeqCst);
                        return;
                    }
                };
                if sender.send(action).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { leave, lost, thread: Some(thread) })
    }

    /// Whether no key can come any more: the terminal is gone.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::SeqCst)
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        self.leave.store(true, Ordering::SeqCst);
        // It must not read keys that are meant for the shell. Where the terminal is gone, the library may never come back.
        self.thread.take().into_iter().for_each(|thread| join_within(thread, LEAVE));
    }
}

/// Notes signals that ask the program to end, until this is dropped.
#[derive(Debug)]
pub struct Signals {
    seen: Arc<AtomicUsize>,
    ids: Vec<SigId>,
}

impl Signals {
    /// From now on they are noted.
    ///
    /// # Errors
    /// The system does not let us.
    pub fn listen() -> io::Result<Self> {
        let mut signals = Self { seen: Arc::default(), ids: Vec::new() };
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            signals.ids.push(flag::register_usize(signal, signals.seen.clone(), signal as usize)?);
        }
        Ok(signals)
    }

    /// The one that came last.
    pub fn seen(&self) -> Option<u8> {
        match self.seen.load(Ordering::SeqCst) {
            0 => None,
            n => u8::try_from(n).ok(),
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for id in self.ids.drain(..) {
            low_level::unregister(id);
        }
    }
}
