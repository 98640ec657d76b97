//! The algorithms, one file each, under the names that the rules file gives them.

pub mod batch;
pub mod bucket;
pub mod calendar;
pub mod charge;
mod check;
pub mod concurrency;
pub mod details;
pub mod elevated;
mod fixed_window;
pub mod gcra;
pub mod numbers;
pub mod queue;
pub mod refill;
pub mod script;
pub mod sliding_log;
pub mod sliding_window;
