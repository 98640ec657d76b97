//! Text of users' mistakes and of times, for messages.

pub mod duration;
pub mod quote;
pub mod suggest;
