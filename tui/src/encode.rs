//! A checkpoint that is being encoded, or could be: the ways to encode it, the key, the worker's reports, and the line on its progress.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wcodec::text::safe_path;
use wcodec::{Bits, EncodeOptions, ErrorKind, Granularity, Rate, Scheme};

use crate::draw::{Pen, text, widgets};
use crate::effect::Effect;
use crate::estimate::Would;
use crate::keymap::Command;
use crate::menu::Menu;
use crate::state::{Overlay, State};
use crate::stats::Fetch;

/// The progress of an encoding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The tensor at work.
    pub tensor: String,
    /// Bytes done, of the uncompressed tensors.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
}

/// The estimates of a checkpoint, and its encoding.
#[derive(Clone, Debug, Default)]
pub struct EncodeState {
    /// The estimates of its tensors, by their places.
    pub would: Fetch<Arc<HashMap<usize, Would>>>,
    /// The file that is being written, and how far it is.
    pub running: Option<(PathBuf, Progress)>,
}

impl EncodeState {
    /// The progress of the estimates while they are worked out; empty else.
    pub fn sampling(&self) -> String {
        match self.would {
            Fetch::Running(part) => format!("sampling rows: {:.0} %", 100.0 * part),
            _ => String::new(),
        }
    }
}

worded! {
    /// A way to encode.
    Way {
        Int8 = "int8: rows with a scale each, about 7.7 bits/weight", "scheme `int8`";
        Rate4 = "rate: 4 bits/weight", "scheme `rate` with 4 bits for each weight";
        Rate3 = "rate: 3 bits/weight", "scheme `rate` with 3 bits for each weight";
        Lossless = "lossless: every bit as it is", "scheme `lossless`";
    }
}

impl Way {
    /// The letter that chooses it.
    pub fn letter(self) -> char {
        char::from(b"i43l"[self as usize])
    }

    /// The scheme.
    pub fn scheme(self) -> Scheme {
        let bits = match self {
            Self::Int8 => return Scheme::Int8(Granularity::Row),
            Self::Lossless => return Scheme::Lossless,
            Self::Rate4 => 4.0,
            Self::Rate3 => 3.0,
        };
        let EncodeOptions { optimize, coder, .. } = EncodeOptions::default();
        // Both are among the bits that there are.
        Bits::new(bits).map_or(Scheme::Raw, |bits| Scheme::Rate(Rate { bits, trellis: optimize.trellis(coder) }))
    }
}

/// The file that a checkpoint is encoded to: next to it, under its name.
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
pub fn open(state: &mut State) {
    if state.encode.running.is_some() {
        state.effects.push(Effect::CancelEncode);
        return state.say("the encoding is given up");
    }
    let Some(original) = state.file.original() else {
        return state.say("this file is no checkpoint: there is nothing to encode");
    };
    if let Err(e) = original.checkpoint() {
        return state.fail(e.to_string());
    }
    let out = out(state);
    if out.symlink_metadata().is_ok() {
        return state.fail(format!("{} is there already (move it away, or use wcodec encode -o)", safe_path(&out)));
    }
    state.overlay = Overlay::Menu(Menu::Encode, 0);
}

/// Begins to encode.
pub fn begin(state: &mut State, way: Way) {
    let out = out(state);
    state.encode.running = Some((out.clone(), Progress::default()));
    state.effects.push(Effect::Encode { out, scheme: way.scheme() });
}

/// The encoding went on.
pub fn progress(state: &mut State, progress: Progress) {
    if let Some((_, known)) = &mut state.encode.running {
        *known = progress;
    }
}

/// The encoding ended.
pub fn done(state: &mut State, out: &Path, done: Result<u64, (ErrorKind, String)>) {
    state.encode.running = None;
    match done {
        Ok(bytes) => {
            let ratio = state.file.totals.original_bytes as f64 / bytes.max(1) as f64;
            state.say(format!("written to {}, ratio {ratio:.3}: wcodec-tui shows it", safe_path(out)));
        }
        Err((ErrorKind::Cancelled, _)) => state.say("the encoding was given up, nothing was written"),
        Err((_, why)) => state.fail(why),
    }
}

/// The line above the keys while a checkpoint is encoded.
pub fn footer(mut pen: Pen<'_>, state: &State) {
    let look = state.look;
    let Some((out, progress)) = &state.encode.running else { return };
    let part = progress.done as f64 / progress.total.max(1) as f64;
    let (drawn, rest) = widgets::part(look, part, 20);
    pen.put("encoding ", look.warn());
    if pen.left() > 50 {
        pen.put(&drawn, look.bar()).put(&rest, look.dim());
    }
    let words = format!(" {:.0} % to {}", 100.0 * part.clamp(0.0, 1.0), text::file_name(look, out));
    pen.put(&words, look.text());
    let key = state.keys.shown(state.context(), Command::Encode).unwrap_or("E");
    pen.put(&format!("  {key} gives it up  "), look.dim());
    pen.short(&progress.tensor, look.dim());
}
