//! Codes of [`ErrorKind::Input`](crate::ErrorKind::Input) that only a program which uses this crate can cause.

use super::{Code, Entry, Section};
use crate::error::ErrorKind;

codes! {
    "Mistakes of a program", Input;

    I901 INPUT_BUG: "a mistake of the program that uses the crate",
        "Users of the package cannot cause it; programs that give the Rust crate's functions wrong numbers or \
        sources can.",
        "From Python or a command it is a bug: report it, with the output of `wcodec doctor`.";
}
