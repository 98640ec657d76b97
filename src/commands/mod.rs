//! The commands of the command line: what each does and prints.
pub mod check;
pub mod schema;
