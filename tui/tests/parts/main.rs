//! The parts of the inspector, each by itself.

mod cli;
mod draw;
mod keymap;
mod model;
mod speed;
mod stats;
