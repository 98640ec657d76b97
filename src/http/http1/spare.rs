//! Keeps the memory of earlier messages' headers for later ones, so that few messages allocate any.

use std::cell::RefCell;

use crate::message::headers::Headers;

/// The most lists of headers that a thread keeps. A request and its response need one each.
const MOST: usize = 256;

/// The largest list that is kept, in bytes of memory.
const LARGEST: usize = 4 * 1024;

thread_local! {
    static SPARE: RefCell<Vec<Headers>> = const { RefCell::new(Vec::new()) };
}

/// Returns headers without lines, with memory if there is some.
pub(super) fn take() -> Headers {
    SPARE.with_borrow_mut(Vec::pop).unwrap_or_default()
}

/// Keeps the memory of headers that are not needed any more.
pub(super) fn keep(mut headers: Headers) {
    if (1..=LARGEST).contains(&headers.memory()) {
        headers.clear();
        SPARE.with_borrow_mut(|spare| {
            if spare.len() < MOST {
                spare.push(headers);
            }
        });
    }
}
