//! Counts the bytes of a request's body on their way to the upstream, for limits whose cost they are.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::http::message::{BodyError, Piece, RequestBody, Upload};

#[derive(Debug)]
struct CountedBody {
    body: RefCell<RequestBody>,
    count: Rc<Cell<u64>>,
}

/// Adds the bytes of a body to `count` as they are read.
pub(super) fn count(body: &mut RequestBody, count: Rc<Cell<u64>>) {
    if !body.is_end() {
        let counted = CountedBody { body: std::mem::take(body).into(), count };
        *body = RequestBody::Upload(Rc::new(counted));
    }
}

impl Upload for CountedBody {
    fn poll_piece(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, BodyError>>> {
        let polled = self.body.borrow_mut().poll_piece(cx);
        if let Poll::Ready(Some(Ok(Piece::Data(data)))) = &polled {
            self.count.set(self.count.get().saturating_add(data.len() as u64));
        }
        polled
    }

    fn is_end(&self) -> bool {
        self.body.borrow().is_end()
    }

    fn length(&self) -> Option<u64> {
        self.body.borrow().length()
    }
}
