//! Memory that answers use again.

use bytes::{Bytes, BytesMut};

/// Bytes of a [`Memory`]: some dozen short answers.
const SIZE: usize = 4 * 1024;

/// Memory for parts of answers. It is used again when all that was taken from it is gone; until then, more is allocated for
/// what does not fit into its rest.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// The part being written. A vector takes single bytes faster than memory that parts share.
    written: Vec<u8>,
    rest: BytesMut,
}

impl Memory {
    /// Returns what `write` appends.
    pub(crate) fn take(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Bytes {
        self.written.clear();
        write(&mut self.written);
        // What is long would stay allocated for short answers.
        if self.written.len() > SIZE {
            return std::mem::take(&mut self.written).into();
        }
        if self.rest.capacity() < self.written.len() {
            self.rest.reserve(SIZE);
        }
        self.rest.extend_from_slice(&self.written);
        self.rest.split().freeze()
    }

    pub(crate) fn text(&mut self, text: &str) -> Bytes {
        self.take(|written| written.extend_from_slice(text.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_makes_room_and_what_is_not_stays_as_it_was() {
        let mut memory = Memory::default();
        let kept = memory.text("kept");
        let place = kept.as_ptr();
        for _ in 0..SIZE {
            assert_eq!(memory.text("gone"), "gone");
        }
        let long = "l".repeat(SIZE + 1);
        assert_eq!((memory.text(&long), &kept[..]), (long.into(), &b"kept"[..]));
        assert!(memory.rest.capacity() <= SIZE);
        // Its memory was let go for another, and both stay of one size.
        drop(kept);
        let first = memory.text("first").as_ptr();
        for _ in 0..SIZE {
            memory.text("gone");
        }
        assert_ne!(place, first);
        assert!(memory.rest.capacity() <= SIZE);
    }
}
