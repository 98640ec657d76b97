//! Keeps a request's body until its response begins, so that it can be sent again if an upstream refuses the request. A route may have
//! it read ahead, so that slow clients hold no worker of a server.
//!
//! HTTP/2 servers refuse requests without processing them when they reload or have too many (RFC 9113 section 8.7), often
//! after the body was sent.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};

use crate::http::activity::Activity;
use crate::http::failure::UpstreamError;
use crate::http::message::{BodyError, Piece, RequestBody, Upload};
use crate::http::upload;
use crate::message::connection::Unbuffered;
use crate::message::headers::Headers;

/// The longest body that is kept, unless a route reads longer ones ahead.
const MAX_BODY: usize = 64 * 1024;

/// Bytes of all bodies that a worker keeps. Further ones are not kept, nor read ahead.
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
    /// The part to send first or again, before the rest.
    again: RefCell<Bytes>,
    trailers: RefCell<Option<Headers>>,
    /// True if the end has come while the body was read ahead.
    has_ended: Cell<bool>,
}

#[derive(Debug)]
struct Kept {
    /// The part that was read ahead.
    begin: Bytes,
    text: BytesMut,
    most: usize,
    /// True if some of the body is missing, so that this is only kept until it was sent.
    is_over: bool,
    memory: Rc<KeptMemory>,
}

impl KeptBody {
    /// Takes a request's body, unless it is known to be empty or too long.
    pub(super) fn keep(body: &mut RequestBody, memory: &Rc<KeptMemory>) -> Option<Rc<Self>> {
        Self::keep_up_to(body, MAX_BODY, memory)
    }

    fn keep_up_to(body: &mut RequestBody, most: usize, memory: &Rc<KeptMemory>) -> Option<Rc<Self>> {
        if body.is_end() || body.length().is_some_and(|length| length > most as u64) {
            return None;
        }
        let (begin, text, memory) = (Bytes::new(), BytesMut::new(), memory.clone());
        let kept = Kept { begin, text, most, is_over: false, memory };
        let keeping = Rc::new(Self {
            rest: std::mem::take(body).into(),
            kept: Some(kept).into(),
            again: RefCell::default(),
            trailers: RefCell::default(),
            has_ended: Cell::new(false),
        });
        *body = RequestBody::Upload(keeping.clone());
        Some(keeping)
    }

    /// Takes a request's body and reads it ahead, up to `most` bytes. One that is known to be longer is left to be sent as it comes, as the
    /// server would have to wait for its end anyway. Returns what keeps it if all was read, or why not all was.
    pub(super) async fn read_ahead(
        body: &mut RequestBody,
        most: usize,
        memory: &Rc<KeptMemory>,
        activity: &Activity,
    ) -> Result<Result<Option<Rc<Self>>, Unbuffered>, UpstreamError> {
        if body.length().is_some_and(|length| length > most as u64) {
            return Ok(Err(Unbuffered::TooLong));
        }
        let Some(kept) = Self::keep_up_to(body, most, memory) else { return Ok(Ok(None)) };
        Ok(match kept.fill(activity).await? {
            Some(unbuffered) => Err(unbuffered),
            None => Ok(Some(kept)),
        })
    }

    async fn fill(&self, activity: &Activity) -> Result<Option<Unbuffered>, UpstreamError> {
        loop {
            match poll_fn(|cx| upload::poll_piece(&mut self.rest.borrow_mut(), activity, cx)).await? {
                Some(Piece::Data(data)) => {
                    if let Some(unbuffered) = self.took_ahead(&data) {
                        return Ok(Some(unbuffered));
                    }
                }
                last => {
                    if let Some(Piece::Trailers(trailers)) = last {
                        *self.trailers.borrow_mut() = Some(trailers);
                    }
                    self.has_ended.set(true);
                    self.sends_first(&[]);
                    return Ok(None);
                }
            }
        }
    }

    /// Adds data that was read ahead. If there is no room, what has come is sent first.
    fn took_ahead(&self, data: &[u8]) -> Option<Unbuffered> {
        let unbuffered = {
            let mut kept = self.kept.borrow_mut();
            let kept = kept.as_mut()?;
            if kept.add(data) {
                return None;
            }
            if kept.length() + data.len() > kept.most { Unbuffered::TooLong } else { Unbuffered::Memory }
        };
        self.sends_first(data);
        Some(unbuffered)
    }

    /// Sends what was read ahead, and further data that is not kept.
    fn sends_first(&self, further: &[u8]) {
        if let Some(kept) = self.kept.borrow_mut().as_mut() {
            kept.is_over = !further.is_empty();
            kept.begin = kept.text.split().freeze();
            let first = if kept.is_over { [&kept.begin, further].concat().into() } else { kept.begin.clone() };
            self.again.replace(first);
        }
    }

    /// Returns whether all of the body was read ahead and is kept.
    pub(super) fn is_whole(&self) -> bool {
        self.has_ended.get() && self.trailers.borrow().is_none() && self.kept.borrow().is_some()
    }

    /// Returns to the start of the body. False if some of it was taken and not kept.
    pub(super) fn rewind(&self) -> bool {
        let kept = self.kept.borrow();
        let Some(kept) = kept.as_ref().filter(|kept| !kept.is_over) else { return false };
        let whole =
            if kept.text.is_empty() { kept.begin.clone() } else { [&kept.begin[..], &kept.text].concat().into() };
        self.again.replace(whole);
        true
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
    fn length(&self) -> usize {
        self.begin.len() + self.text.len()
    }

    /// Returns false if there is no room.
    fn add(&mut self, data: &[u8]) -> bool {
        let used = self.memory.used.get() + data.len();
        let fits = self.length() + data.len() <= self.most && used <= MAX_MEMORY;
        if fits {
            self.memory.used.set(used);
            self.text.extend_from_slice(data);
        }
        fits
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.memory.used.set(self.memory.used.get() - self.length());
    }
}

impl Upload for KeptBody {
    fn poll_piece(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, BodyError>>> {
        let again = self.again.take();
        if !again.is_empty() {
            if self.kept.borrow().as_ref().is_some_and(|kept| kept.is_over) {
                self.forget();
            }
            return Poll::Ready(Some(Ok(Piece::Data(again))));
        }
        if let Some(trailers) = self.trailers.take() {
            self.forget();
            return Poll::Ready(Some(Ok(Piece::Trailers(trailers))));
        }
        if self.has_ended.get() {
            return Poll::Ready(None);
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
        let is_sent = self.again.borrow().is_empty() && self.trailers.borrow().is_none();
        is_sent && (self.has_ended.get() || self.rest.borrow().is_end())
    }

    fn length(&self) -> Option<u64> {
        if self.has_ended.get() {
            // Only a body in chunks has room for trailers.
            return self.trailers.borrow().is_none().then(|| self.again.borrow().len() as u64);
        }
        Some(self.rest.borrow().length()? + self.again.borrow().len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::pin::pin;
    use std::task::Waker;
    use std::time::Instant;

    use super::*;
    use crate::http::admission::SlowReaders;

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

    /// Reads a body ahead whose parts are there.
    fn ahead(
        memory: &Rc<KeptMemory>,
        pieces: &[usize],
        most: usize,
    ) -> (RequestBody, Result<Option<Rc<KeptBody>>, Unbuffered>) {
        let mut body = RequestBody::Upload(Rc::new(Pieces(RefCell::new(pieces.iter().copied().collect()))));
        let activity = Activity::new(Instant::now(), Rc::new(SlowReaders::new(1)));
        let read = {
            let reading = pin!(KeptBody::read_ahead(&mut body, most, memory, &activity));
            let Poll::Ready(Ok(read)) = reading.poll(&mut Context::from_waker(Waker::noop())) else {
                panic!("it is there")
            };
            read
        };
        (body, read)
    }

    #[test]
    fn what_is_read_ahead_waits_in_memory_until_it_is_sent() {
        for (pieces, most, used, unbuffered) in [
            (&[10, 20, 30][..], 60, 60, None),
            (&[10, 20, 30], 59, 0, Some(Unbuffered::TooLong)),
            (&[MAX_BODY, 1], MAX_BODY + 1, MAX_BODY + 1, None),
        ] {
            let memory = Rc::default();
            let total = pieces.iter().sum();
            let (mut body, read) = ahead(&memory, pieces, most);
            assert_eq!(
                (read.as_ref().err().copied(), memory.used.get(), body.length()),
                (unbuffered, used, Some(total as u64)),
                "{most}"
            );
            for _ in 0..2 {
                assert_eq!((take(&mut body, 9), body.is_end()), (total, true), "{most}");
                if read.as_ref().map_or(true, |kept| kept.as_ref().is_none_or(|kept| !kept.rewind())) {
                    break;
                }
            }
            drop((body, read));
            assert_eq!(memory.used.get(), 0);
        }
    }

    #[test]
    fn beyond_the_memory_a_body_is_sent_as_it_comes() {
        let memory = Rc::default();
        let others: Vec<_> = (0..MAX_MEMORY / MAX_BODY).map(|_| ahead(&memory, &[MAX_BODY - 1], MAX_BODY)).collect();
        assert!(others.iter().all(|(_, read)| read.is_ok()));
        let left = MAX_MEMORY - memory.used.get();
        let (mut body, read) = ahead(&memory, &[left, 1, 1], MAX_BODY);
        assert_eq!((read.err(), memory.used.get()), (Some(Unbuffered::Memory), MAX_MEMORY));
        assert_eq!(
            (take(&mut body, 1), memory.used.get()),
            (left + 1, MAX_MEMORY - left),
            "it is gone once it is sent"
        );
        assert_eq!((take(&mut body, 9), body.is_end()), (1, true));
    }
}
