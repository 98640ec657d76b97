//! Keeps the memory of earlier messages' headers and heads for later ones, so that few messages allocate any. It is the thread's, so
//! idle connections keep none.

use std::cell::RefCell;

use crate::message::headers::Headers;

/// The most lists of headers, and the most texts, that a thread keeps. A request and its response need one each.
const MOST: usize = 256;

/// The largest list that is kept, in bytes of memory.
const LARGEST: usize = 4 * 1024;

/// The largest text that is kept, in bytes of memory.
const LARGEST_TEXT: usize = 8 * 1024;

thread_local! {
    static SPARE: RefCell<Vec<Headers>> = const { RefCell::new(Vec::new()) };
    static TEXTS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Returns headers without lines, with memory if there is some.
pub(in crate::http) fn take() -> Headers {
    SPARE.with_borrow_mut(Vec::pop).unwrap_or_default()
}

/// Keeps the memory of headers that are not needed any more.
pub(in crate::http) fn keep(mut headers: Headers) {
    if (1..=LARGEST).contains(&headers.memory()) {
        headers.clear();
        SPARE.with_borrow_mut(|spare| {
            if spare.len() < MOST {
                spare.push(headers);
            }
        });
    }
}

/// Returns an empty text, with memory if there is some.
pub(super) fn take_text() -> Vec<u8> {
    TEXTS.with_borrow_mut(Vec::pop).unwrap_or_default()
}

/// Keeps the memory of a text that is not needed any more.
pub(super) fn keep_text(mut text: Vec<u8>) {
    if (1..=LARGEST_TEXT).contains(&text.capacity()) {
        text.clear();
        TEXTS.with_borrow_mut(|spare| {
            if spare.len() < MOST {
                spare.push(text);
            }
        });
    }
}
