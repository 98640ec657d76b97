//! The workflows of a release, its scripts, and what they make.

mod packages;
mod workflows;
