//! Text of users' mistakes, of times, and of pages, for messages.

pub mod duration;
pub mod quote;
pub mod site;
pub mod suggest;
