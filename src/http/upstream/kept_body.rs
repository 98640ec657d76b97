//! Keeps a request's body until its response begins, so that it can be sent again if an upstream refuses the request.
//!
//! HTTP/2 servers refuse requests without processing them when they reload or have too many (RFC 9113 section 8.7), often
//! after the body was sent.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};

use crate::http::message::{BodyError, Piece, RequestBody, Upload};

/// The longest body that is kept.
const MAX_BODY: usize = 64 * 1024;

/// Bytes of all bodies that a worker keeps. Further ones are not kept.
const MAX_MEMORY: usize = 32 * 1024 * 1024;

/// The memory of a worker's kept bodies.
#[derive(Debug, Default)]
pub(super) struct KeptMemory {
    used: Cell<usize>,
}

/// A body that is forwarded and kept.
#[derive(Debug)]
pub(super) struct KeptBody {
    rest: RefCell<RequestBody>,
    /// The part that was taken from `rest`; `None` if it is not kept.
    kept: RefCell<Option<Kept>>,
    /// The part to send again, before the rest.
    again: RefCell<Bytes>,
}

#[derive(Debug)]
struct Kept {
    text: BytesMut,
    memory: Rc<KeptMemory>,
}

impl KeptBody {
    /// Takes a request's body, unless it is known to be empty or too long.
    pub(super) fn keep(body: &mut RequestBody, memory: &Rc<KeptMemory>) -> Option<Rc<Self>> {
        if body.is_end() || body.length().is_some_and(|length| length > MAX_BODY as u64) {
            return None;
        }
        let kept = Kept { text: BytesMut::new(), memory: memory.clone() };
        let rest = std::mem::take(body).into();
        let keeping = Rc::new(Self { rest, kept: Some(kept).into(), again: RefCell::default() });
        *body = RequestBody::Upload(keeping.clone());
        Some(keeping)
    }

    /// Returns to the start of the body. False if some of it was taken and not kept.
    pub(super) fn rewind(&self) -> bool {
        let kept = self.kept.borrow();
        if let Some(kept) = &*kept {
            self.again.replace(Bytes::copy_from_slice(&kept.text));
        }
        kept.is_some()
    }

    /// Stops keeping: the request will not be sent again.
    pub(super) fn forget(&self) {
        self.kept.take();
    }

    fn add(&self, data: &[u8]) {
        let mut kept = self.kept.borrow_mut();
        if kept.as_mut().is_some_and(|kept| !kept.add(data)) {
            *kept = None;
        }
    }
}

impl Kept {
    /// Returns false if there is no room.
    fn add(&mut self, data: &[u8]) -> bool {
        let used = self.memory.used.get() + data.len();
        let fits = self.text.len() + data.len() <= MAX_BODY && used <= MAX_MEMORY;
        if fits {
            self.memory.used.set(used);
            self.text.extend_from_slice(data);
        }
        fits
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.memory.used.set(self.memory.used.get() - self.text.len());
    }
}

impl Upload for KeptBody {
    fn poll_piece(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, BodyError>>> {
        let again = self.again.take();
        if !again.is_empty() {
            return Poll::Ready(Some(Ok(Piece::Data(again))));
        }
        let piece = ready!(self.rest.borrow_mut().poll_piece(cx));
        match &piece {
            Some(Ok(Piece::Data(data))) => self.add(data),
            // Trailers are rare, and an error is final.
            Some(Ok(Piece::Trailers(_)) | Err(_)) => self.forget(),
            None => {}
        }
        Poll::Ready(piece)
    }

    fn is_end(&self) -> bool {
        self.again.borrow().is_empty() && self.rest.borrow().is_end()
    }

    fn length(&self) -> Option<u64> {
        Some(self.rest.borrow().length()? + self.again.borrow().len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::task::Waker;

    use super::*;

    /// A body in these pieces.
    #[derive(Debug)]
    struct Pieces(RefCell<VecDeque<usize>>);

    impl Upload for Pieces {
        fn poll_piece(&self, _: &mut Context<'_>) -> Poll<Option<Result<Piece, BodyError>>> {
            let next = self.0.borrow_mut().pop_front();
            Poll::Ready(next.map(|length| Ok(Piece::Data(vec![b'x'; length].into()))))
        }

        fn is_end(&self) -> bool {
            self.0.borrow().is_empty()
        }

        fn length(&self) -> Option<u64> {
            Some(self.0.borrow().iter().sum::<usize>() as u64)
        }
    }

    fn kept(memory: &Rc<KeptMemory>, pieces: &[usize]) -> Option<(Rc<KeptBody>, RequestBody)> {
        let mut body = RequestBody::Upload(Rc::new(Pieces(RefCell::new(pieces.iter().copied().collect()))));
        KeptBody::keep(&mut body, memory).map(|kept| (kept, body))
    }

    /// Takes pieces, and returns their bytes.
    fn take(body: &mut RequestBody, most: usize) -> usize {
        let mut cx = Context::from_waker(Waker::noop());
        let mut taken = 0;
        for _ in 0..most {
            match body.poll_piece(&mut cx) {
                Poll::Ready(Some(Ok(Piece::Data(data)))) => taken += data.len(),
                _ => break,
            }
        }
        taken
    }

    #[test]
    fn a_body_is_the_same_again_wherever_it_was_left() {
        for taken in 0..=3 {
            let memory = Rc::default();
            let (kept, mut body) = kept(&memory, &[10, 20, 30]).unwrap();
            for _ in 0..2 {
                take(&mut body, taken);
                assert!(kept.rewind());
                assert_eq!(body.length(), Some(60), "after {taken}");
            }
            assert_eq!((take(&mut body, 9), body.is_end(), memory.used.get()), (60, true, 60), "after {taken}");
            kept.forget();
            assert!(memory.used.get() == 0 && !kept.rewind());
        }
    }

    #[test]
    fn only_what_fits_is_kept() {
        let memory = Rc::default();
        assert!(kept(&memory, &[]).is_none() && kept(&memory, &[MAX_BODY, 1]).is_none());
        let (whole, mut body) = kept(&memory, &[MAX_BODY - 1, 1]).unwrap();
        take(&mut body, 2);
        assert!(whole.rewind());

        let mut others: Vec<_> = (1..MAX_MEMORY / MAX_BODY).map(|_| kept(&memory, &[MAX_BODY]).unwrap()).collect();
        for (kept, body) in &mut others {
            take(body, 1);
            assert!(kept.rewind());
        }
        let (one_more, mut body) = kept(&memory, &[1]).unwrap();
        take(&mut body, 1);
        assert!(!one_more.rewind(), "the memory is used up");
        whole.forget();
        let (next, mut body) = kept(&memory, &[1]).unwrap();
        take(&mut body, 1);
        assert!(next.rewind());
    }
}
