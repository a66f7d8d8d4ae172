//! CUDA graphs: what a graph that is being captured uses stays alive as long as the graph does.

use std::any::Any;
use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

use cudarc::driver::sys;

use super::driver::DriverResult;
use super::stream::{Event, Stream};
use crate::error::Result;

/// Something that is kept alive.
type Kept = Box<dyn Any + Send>;

/// Drops what graphs have kept. The driver calls [`release`] on a thread of its own, where nothing of CUDA may be called, and what is
/// dropped mostly frees memory of a device.
fn dropper() -> Option<&'static Sender<Kept>> {
    static DROPPER: OnceLock<Option<Sender<Kept>>> = OnceLock::new();
    let start = || {
        let (kept, received) = channel::<Kept>();
        let thread = std::thread::Builder::new().name("wcodec-drop".to_owned());
        thread.spawn(move || received.into_iter().for_each(drop)).ok().map(|_| kept)
    };
    DROPPER.get_or_init(start).as_ref()
}

/// The driver's call when the last graph is gone that keeps something.
unsafe extern "C" fn release(kept: *mut c_void) {
    // SAFETY: it is the box that `keep` made, and comes back once.
    let kept = *unsafe { Box::from_raw(kept.cast::<Kept>()) };
    match dropper() {
        // The thread runs until the process ends.
        Some(dropper) => drop(dropper.send(kept)),
        // Better lost than dropped here.
        None => std::mem::forget(kept),
    }
}

impl Stream {
    /// The number of the capture that the stream is in, which no other capture has; none while work in it is done at once.
    ///
    /// # Errors
    /// The capture was spoilt, or the driver refuses.
    pub fn capture(&self) -> Result<Option<u64>> {
        Ok(self.capture_info()?.map(|(number, _)| number))
    }

    /// Lets work that is put into this stream from now on wait for what is in `other`, and says whether it does. It does not where one
    /// of the two is being captured and the other one is not in the same capture: an event there is the graph's, and who waits for it
    /// becomes a part of the capture.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn follow(&self, other: &Self) -> Result<bool> {
        let here = self.capture_state()?;
        if other.capture_state()? != here {
            return Ok(false);
        }
        let mark = Event::new(self.device())?;
        mark.record(other)?;
        // Another thread may have begun a capture meanwhile, which then has the event.
        if other.capture_state()? != here {
            return Ok(false);
        }
        self.wait(&mark)?;
        Ok(true)
    }

    /// The number of the capture that is under way; one that was spoilt is none, but no ordinary work either.
    fn capture_state(&self) -> Result<(bool, Option<u64>)> {
        Ok((self.is_capturing()?, self.capture()?))
    }

    fn capture_info(&self) -> Result<Option<(u64, sys::CUgraph)>> {
        let _scope = self.device().enter()?;
        let (mut status, mut number) = (sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE, 0);
        let mut graph = ptr::null_mut();
        // SAFETY: the stream is alive; the driver writes a status, a number and a graph, and leaves out what it is not asked for.
        let result = unsafe {
            sys::cuStreamGetCaptureInfo_v2(
                self.raw().cast(),
                &mut status,
                &mut number,
                &mut graph,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        result.result().named("cuStreamGetCaptureInfo")?;
        Ok((status == sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE).then_some((number, graph)))
    }

    /// Keeps `what` alive until the graph that is being captured in this stream is gone, and with it all that was made
    /// of it. Without a capture it is dropped; the answer says whether it is kept.
    ///
    /// It is dropped by a thread of its own, some time after the last graph was destroyed and has run.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn keep(&self, what: impl Any + Send) -> Result<bool> {
        let Some((_, graph)) = self.capture_info()? else { return Ok(false) };
        // Started now, while an error can be told.
        dropper();
        let _scope = self.device().enter_uncaptured()?;
        let kept = Box::into_raw(Box::new(Box::new(what) as Kept)).cast::<c_void>();
        let mut object = ptr::null_mut();
        let flags = sys::CUuserObject_flags_enum::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as u32;
        // SAFETY: `release` takes what is handed over here, once.
        let made = unsafe { sys::cuUserObjectCreate(&mut object, kept, Some(release), 1, flags) };
        if let Err(e) = made.result().named("cuUserObjectCreate") {
            // SAFETY: the driver has not taken it.
            drop(unsafe { Box::from_raw(kept.cast::<Kept>()) });
            return Err(e);
        }
        let flags = sys::CUuserObjectRetain_flags_enum::CU_GRAPH_USER_OBJECT_MOVE as u32;
        // SAFETY: the graph is alive while it is being captured, and takes over the one reference that there is.
        let retained = unsafe { sys::cuGraphRetainUserObject(graph, object, 1, flags) };
        if let Err(e) = retained.result().named("cuGraphRetainUserObject") {
            // SAFETY: the reference is still ours; giving it up has the driver call `release`.
            unsafe { sys::cuUserObjectRelease(object, 1) }.result().ok();
            return Err(e);
        }
        Ok(true)
    }
}
