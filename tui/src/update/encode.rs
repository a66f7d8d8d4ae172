//! Keys that encode a checkpoint, and what the workers report of it.

use std::path::PathBuf;

use crossterm::event::{KeyCode, KeyEvent};
use wcodec::ErrorKind;
use wcodec::text::safe_path;

use crate::effect::Effect;
use crate::keymap::Command;
use crate::state::encode::{Progress, Way};
use crate::state::{Overlay, State};

/// Where a checkpoint is encoded to: next to it, under its name.
pub fn out(state: &State) -> PathBuf {
    let path = &state.file.path;
    if path.is_dir() {
        let name = path.canonicalize().ok().and_then(|p| p.file_name().map(std::ffi::OsStr::to_owned));
        let mut name = name.unwrap_or_else(|| "model".into());
        name.push(".wcodec");
        return path.join(name);
    }
    path.with_extension("wcodec")
}

/// Asks how to encode; while that is done, gives it up.
pub fn open(state: &mut State) -> Vec<Effect> {
    if state.encode.running.is_some() {
        state.say("the encoding is given up");
        return vec![Effect::CancelEncode];
    }
    let Some(original) = state.file.original() else {
        state.say("this file is no checkpoint: there is nothing to encode");
        return Vec::new();
    };
    if let Err(e) = original.checkpoint() {
        state.fail(e.to_string());
        return Vec::new();
    }
    let out = out(state);
    if out.symlink_metadata().is_ok() {
        state.fail(format!("{} is there already (move it away, or use wcodec encode -o)", safe_path(&out)));
        return Vec::new();
    }
    state.overlay = Overlay::Encode(0);
    Vec::new()
}

/// A letter chooses a way at once.
pub fn on_key(state: &mut State, key: KeyEvent) -> Vec<Effect> {
    match key.code {
        KeyCode::Char(letter) => match Way::ALL.into_iter().find(|w| w.letter() == letter) {
            Some(way) => begin(state, way),
            None => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// Does what a key asks for in the list of ways.
pub fn command(state: &mut State, command: Command) -> Vec<Effect> {
    let Overlay::Encode(at) = &mut state.overlay else { return Vec::new() };
    match command {
        Command::Up => *at = at.saturating_sub(1),
        Command::Down => *at = (*at + 1).min(Way::ALL.len() - 1),
        Command::Enter => {
            let way = Way::ALL[*at];
            return begin(state, way);
        }
        Command::Quit => return vec![Effect::Quit(0)],
        _ => state.overlay = Overlay::None,
    }
    Vec::new()
}

fn begin(state: &mut State, way: Way) -> Vec<Effect> {
    state.overlay = Overlay::None;
    let out = out(state);
    state.encode.running = Some((out.clone(), Progress::default()));
    vec![Effect::Encode { out, scheme: way.scheme() }]
}

/// How far it is.
pub fn progress(state: &mut State, progress: Progress) {
    if let Some((_, known)) = &mut state.encode.running {
        *known = progress;
    }
}

/// It ended.
pub fn done(state: &mut State, out: PathBuf, done: Result<u64, (ErrorKind, String)>) {
    state.encode.running = None;
    match done {
        Ok(bytes) => {
            let ratio = state.file.totals.original_bytes as f64 / bytes.max(1) as f64;
            state.say(format!("written to {}, ratio {ratio:.3}: wcodec-tui shows it", safe_path(&out)));
        }
        Err((ErrorKind::Cancelled, _)) => state.say("the encoding was given up, nothing was written"),
        Err((_, why)) => state.fail(why),
    }
}
