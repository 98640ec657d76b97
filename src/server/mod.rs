//! .
pub mod reload;
