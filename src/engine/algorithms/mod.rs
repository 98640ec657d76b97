//! The algorithms. Each is in the file of its name in the rules file: its numbers, its state and its decisions.
//!
//! [`algorithm`] names them, and [`state`] dispatches to them. Only Redis decides `queue` and `script`.
//!
//! CONTRIBUTING.md ("Adding an algorithm") lists the parts of an algorithm outside this folder.

// One line per algorithm.
pub mod concurrency;
pub mod elevated;
pub mod fixed_window;
pub mod gcra;
pub mod queue;
pub mod script;
pub mod sliding_log;
pub mod sliding_window;

pub mod activations;
pub mod algorithm;
pub mod by_fingerprint;
pub mod calendar;
pub mod charge;
pub mod decision;
pub mod delay;
pub mod describe;
pub mod lease;
pub mod level;
pub mod micros;
#[cfg(test)]
mod model;
pub mod numbers;
pub mod reservation;
pub mod state;
pub mod tag;
pub mod taking;
mod usage;
pub mod windows;
