//! Memory for what connections read. It is the thread's: a connection has some only while it holds bytes, so idle ones take
//! none, and the next one reads into memory that is in the processor's cache.

use std::cell::RefCell;

use bytes::BytesMut;

/// Bytes read at once where little is expected: usually enough for a request's head.
pub(super) const SMALL_READ: usize = 4 * 1024;

/// Bytes read at once where a long body is expected: as much as a socket usually buffers.
pub(super) const BODY_READ: usize = 64 * 1024;

/// The most small buffers that a thread keeps.
const MOST_SMALL: usize = 64;

/// The most large buffers that a thread keeps.
const MOST_LARGE: usize = 8;

thread_local! {
    static SMALL: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
    static LARGE: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
}

/// Makes room for a read, for which `expected` bytes are known to come.
pub(super) fn make_room(input: &mut BytesMut, expected: usize) {
    let (size, spare) = if expected > SMALL_READ { (BODY_READ, &LARGE) } else { (SMALL_READ, &SMALL) };
    if input.try_reclaim(size) {
        return;
    }
    if input.is_empty() {
        release(input);
        *input = spare.with_borrow_mut(Vec::pop).unwrap_or_default();
    }
    // A large one may still be read by somebody; then this allocates another.
    input.reserve(size);
}

/// Takes the memory of an input back if all of it was read.
pub(in crate::http) fn release(input: &mut BytesMut) {
    if !input.is_empty() {
        return;
    }
    let mut input = std::mem::take(input);
    // A buffer that a body's part has filled leaves nothing that could be told from no memory.
    if input.capacity() == 0 {
        return;
    }
    let (spare, most) = if input.try_reclaim(BODY_READ) {
        (&LARGE, MOST_LARGE)
    } else if input.try_reclaim(2 * SMALL_READ + 1) {
        // It has grown for a long head.
        return;
    } else if input.try_reclaim(SMALL_READ) {
        (&SMALL, MOST_SMALL)
    } else {
        // A part of a body is still to be written, so it is a large one.
        (&LARGE, MOST_LARGE)
    };
    spare.with_borrow_mut(|spare| {
        if spare.len() < most {
            spare.push(input);
        }
    });
}

#[cfg(test)]
mod tests {
    use bytes::{Buf, Bytes};

    use super::*;

    /// Fills an input with so many bytes, and returns it with its memory's address.
    fn read(length: usize) -> (BytesMut, *const u8) {
        let mut input = BytesMut::new();
        make_room(&mut input, length);
        let memory = input.as_ptr();
        input.extend_from_slice(&vec![b'x'; length]);
        assert_eq!(input.as_ptr(), memory, "there was room for {length} bytes");
        (input, memory)
    }

    #[test]
    fn the_next_connection_reads_into_the_memory_of_the_last_one() {
        for length in [1, SMALL_READ, SMALL_READ + 1, BODY_READ] {
            let (mut input, memory) = read(length);
            release(&mut input);
            assert_eq!(input.len(), length, "what was not read stays");
            input.advance(length - 1);
            drop(input.split_to(1));
            input.reserve(1);
            release(&mut input);
            assert_eq!((input.len(), input.capacity()), (0, 0), "{length}");
            assert_eq!(read(length).1, memory, "{length}");
        }
    }

    #[test]
    fn a_part_of_a_body_that_is_not_written_yet_is_not_overwritten() {
        let (mut input, memory) = read(BODY_READ - 1);
        let part: Bytes = input.split_to(BODY_READ - 1).freeze();
        release(&mut input);
        let (mut other, elsewhere) = read(BODY_READ);
        assert_ne!(elsewhere, memory);
        assert!(part.iter().all(|byte| *byte == b'x'));
        other.clear();
        release(&mut other);
        assert_eq!(read(BODY_READ).1, elsewhere);
    }

    #[test]
    fn memory_comes_back_once_a_part_is_written() {
        let (mut input, memory) = read(BODY_READ - 1);
        let part = input.split_to(BODY_READ - 1).freeze();
        release(&mut input);
        drop(part);
        assert_eq!(read(BODY_READ).1, memory);
    }

    #[test]
    fn what_a_long_head_has_taken_is_freed() {
        let (mut input, _) = read(1);
        input.extend_from_slice(&vec![b'x'; 5 * SMALL_READ]);
        input.clear();
        release(&mut input);
        assert_eq!((input.capacity(), SMALL.with_borrow(Vec::len)), (0, 0));
    }

    #[test]
    fn a_thread_keeps_a_bounded_number() {
        for (length, most, spare) in [(1, MOST_SMALL, &SMALL), (BODY_READ, MOST_LARGE, &LARGE)] {
            let inputs: Vec<_> = (0..most + 3).map(|_| read(length).0).collect();
            for mut input in inputs {
                input.clear();
                release(&mut input);
            }
            assert_eq!(spare.with_borrow(Vec::len), most);
        }
    }
}
