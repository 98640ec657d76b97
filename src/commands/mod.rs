//! .
pub mod check;
pub mod schema;
