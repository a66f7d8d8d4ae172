//! Work of one decoder in several streams.

use std::sync::{Mutex, PoisonError};

use wcodec::Result;
use wcodec::gpu::{Device, Event, Stream};

/// The last work that used a decoder's scratch, which planes of coder `zstd` share: work in another stream waits for it.
pub struct Turn(Mutex<Last>);

struct Last {
    done: Event,
    stream: Option<usize>,
}

impl Turn {
    /// A turn, where one of these coders needs it.
    pub fn new(device: &Device, mut coders: impl Iterator<Item = String>) -> Result<Option<Self>> {
        if !coders.any(|c| c == "zstd") {
            return Ok(None);
        }
        Ok(Some(Self(Mutex::new(Last { done: Event::new(device)?, stream: None }))))
    }

    /// Does `work`, which puts something into `stream`, when it is its turn.
    pub fn take(turn: Option<&Self>, stream: &Stream, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let Some(turn) = turn else { return work() };
        let mut last = turn.0.lock().unwrap_or_else(PoisonError::into_inner);
        // What is captured cannot wait for what is not; before it captures, torch waits for everything.
        let captured = stream.is_capturing()?;
        if !captured && last.stream.is_some_and(|raw| raw != stream.raw() as usize) {
            stream.wait(&last.done)?;
        }
        work()?;
        if !captured {
            last.done.record(stream)?;
            last.stream = Some(stream.raw() as usize);
        }
        Ok(())
    }
}
