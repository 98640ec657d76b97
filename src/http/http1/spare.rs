//! The headers of earlier messages, whose memory is used again. So a usual message allocates none for its headers.

use std::cell::RefCell;

use crate::message::headers::Headers;

/// The most headers that a thread keeps: those of as many requests at once, and of their responses.
const MOST: usize = 256;

/// The most bytes of memory that kept headers have.
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
