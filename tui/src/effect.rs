//! Work that the inspector wants done outside of its state.

use std::path::PathBuf;

use wcodec::Scheme;

use crate::stats::StatsEffect;
use crate::timing::TimingEffect;

/// One thing to do. Effects are done on threads that report with [`Action`](crate::action::Action)s; none of them waits.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Leave, with this exit status.
    Quit(u8),
    /// Compute statistics of a tensor of the file of this generation, verify it, compare it with the reference, or stop doing so.
    Stats(u64, StatsEffect),
    /// Begin, change or stop timing.
    Timing(TimingEffect),
    /// Read the file again.
    Reload,
    /// Put a text into the terminal's clipboard.
    Copy(String),
    /// Write a text to a new file.
    Export {
        /// The file.
        path: PathBuf,
        /// The text.
        text: String,
    },
    /// Find out what the tensors of a checkpoint would take, encoded.
    Estimate,
    /// Encode a checkpoint.
    Encode {
        /// A file that does not exist yet.
        out: PathBuf,
        /// The scheme.
        scheme: Scheme,
    },
    /// Give that up.
    CancelEncode,
    /// Draw everything anew, whatever the terminal shows.
    Redraw,
}
