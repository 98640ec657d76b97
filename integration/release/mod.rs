//! The workflows of a release, its scripts, and what they make.

mod checks;
mod names;
mod packages;
mod workflows;
