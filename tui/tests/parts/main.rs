//! The parts of the inspector, each by itself.

mod cli;
mod draw;
mod files;
mod keymap;
mod model;
mod speed;
mod stats;
mod stats_worker;
mod timing_worker;
