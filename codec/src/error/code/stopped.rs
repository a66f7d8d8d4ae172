//! Codes of [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled).

use super::{Code, Entry, Section};
use crate::error::ErrorKind;

codes! {
    "Stopped", Cancelled;

    S000 CANCELLED: "a cancelled operation",
        "The progress callback asked to stop. Nothing was left behind.",
        "Start it again.";
}
