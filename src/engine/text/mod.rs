//! Text of users' mistakes, of times, and of pages, for messages and tables.

pub mod csv;
pub mod duration;
pub mod instant;
pub mod quote;
pub mod site;
pub mod suggest;
