//! Timing on a device: events around work, and CUDA graphs that launch it again without the host.

use std::ptr;

use cudarc::driver::sys;
use wcodec::gpu::{Event, Stream};
use wcodec::{Error, Result};

fn done(call: &str, code: sys::CUresult) -> Result<()> {
    code.result().map_err(|e| Error::device(format!("{call}: {e}")))
}

/// Work that was captured from a stream.
pub struct Graph {
    raw: sys::CUgraph,
    exec: sys::CUgraphExec,
}

impl Graph {
    /// Captures the work that `work` puts into the stream.
    pub fn capture(stream: &Stream, work: impl FnOnce() -> Result<()>) -> Result<Self> {
        let raw_stream = stream.raw().cast();
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        stream.device().bind()?;
        // SAFETY: the stream is alive; the capture is ended whatever `work` does.
        unsafe {
            done("cuStreamBeginCapture", sys::cuStreamBeginCapture_v2(raw_stream, mode))?;
            let worked = work();
            let mut raw = ptr::null_mut();
            let ended = done("cuStreamEndCapture", sys::cuStreamEndCapture(raw_stream, &mut raw));
            worked?;
            ended?;
            let mut exec = ptr::null_mut();
            done("cuGraphInstantiate", sys::cuGraphInstantiateWithFlags(&mut exec, raw, 0))?;
            Ok(Self { raw, exec })
        }
    }

    /// Puts the work into the stream.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        // SAFETY: graph and stream are alive, and the caller of `capture` keeps all memory that the graph uses.
        unsafe { done("cuGraphLaunch", sys::cuGraphLaunch(self.exec, stream.raw().cast())) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: both were made by `capture` and are destroyed once.
        unsafe {
            sys::cuGraphExecDestroy(self.exec);
            sys::cuGraphDestroy(self.raw);
        }
    }
}

/// Milliseconds of `runs` runs of `work`, after `warm` runs that are not counted.
pub fn time(stream: &Stream, warm: usize, runs: usize, work: &dyn Fn() -> Result<()>) -> Result<Vec<f64>> {
    let (start, end) = (Event::with_timing(stream.device())?, Event::with_timing(stream.device())?);
    let mut times = Vec::with_capacity(runs);
    for i in 0..warm + runs {
        start.record(stream)?;
        work()?;
        end.record(stream)?;
        end.synchronize()?;
        if i >= warm {
            times.push(f64::from(end.elapsed_ms(&start)?));
        }
    }
    Ok(times)
}

/// Median and median absolute deviation, the latter as a share of the former.
pub fn median(values: &[f64]) -> (f64, f64) {
    let middle = |mut v: Vec<f64>| {
        v.sort_by(f64::total_cmp);
        v[v.len() / 2]
    };
    let m = middle(values.to_vec());
    let spread = middle(values.iter().map(|v| (v - m).abs()).collect());
    (m, spread / m)
}
