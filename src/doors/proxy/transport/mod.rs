//! What a new connection of a client goes through until HTTP begins.

mod stream;

pub use stream::Stream;
