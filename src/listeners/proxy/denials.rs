//! The replies to denied requests.
//!
//! A flood of denials repeats few replies: for a second, every client that a limit denies is told the same. Writing
//! a reply takes a fifth of the instructions of such a request, so they are kept.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use bytes::Bytes;
use http::StatusCode;

use crate::engine::answer::headers::Generations;
use crate::engine::answer::problem::{denial, retry_after, round};
use crate::engine::deciding::verdict::Verdict;
use crate::http::message::{KeptHeaders, Response, ResponseBody, ResponseHeaders};
use crate::limiter::{LimiterVerdict, View};
use crate::message::reply::Reply;

/// Replies that are kept, of about 2 KiB each: one for each second of a minute.
const CAPACITY: usize = 64;

/// A worker's replies.
pub(super) struct DenialReplies {
    generations: Generations,
    kept: RefCell<[Option<DenialReply>; CAPACITY]>,
}

/// A reply with its key: rules, verdict and protocol.
struct DenialReply {
    /// Weak, so that replies keep no rules alive.
    view: Weak<View>,
    /// Rounded.
    verdict: Verdict,
    is_grpc: bool,
    status: StatusCode,
    headers: Rc<KeptHeaders>,
    body: Bytes,
}

impl DenialReplies {
    pub(super) fn new(generations: Generations) -> Self {
        Self { generations, kept: RefCell::new([const { None }; CAPACITY]) }
    }

    /// Returns the response to a denied request.
    pub(super) fn response(&self, decided: &mut LimiterVerdict, is_grpc: bool) -> Response {
        let LimiterVerdict { view, verdict, .. } = decided;
        round(verdict);
        let mut kept = self.kept.borrow_mut();
        let slot = &mut kept[index(verdict)];
        let is_same = |kept: &&DenialReply| {
            kept.verdict == *verdict && kept.is_grpc == is_grpc && std::ptr::eq(kept.view.as_ptr(), Rc::as_ptr(view))
        };
        if let Some(reply) = slot.as_ref().filter(is_same) {
            return reply.response();
        }
        let Reply { status, headers, body } = denial(view.rules(), verdict, self.generations, is_grpc);
        let (view, verdict) = (Rc::downgrade(view), verdict.clone());
        let (headers, body) = (Rc::new(headers.into()), body.into());
        slot.insert(DenialReply { view, verdict, is_grpc, status, headers, body }).response()
    }
}

/// Returns the index of a verdict's reply.
fn index(verdict: &Verdict) -> usize {
    let limit = verdict.binding().map_or(0, |answer| answer.limit);
    let seconds = retry_after(verdict).unwrap_or(0);
    usize::try_from(seconds.wrapping_add(limit.into())).unwrap_or(0) % CAPACITY
}

impl DenialReply {
    fn response(&self) -> Response {
        let (headers, body) = (ResponseHeaders::Kept(self.headers.clone()), ResponseBody::Text(self.body.clone()));
        Response { status: self.status, headers, body }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use super::*;
    use crate::engine::algorithms::decision::{Decision, Outcome};
    use crate::engine::algorithms::micros::Micros;
    use crate::engine::algorithms::numbers::Numbers;
    use crate::engine::deciding::DecisionSubject;
    use crate::engine::limit::Limit;
    use crate::engine::limit::allowance::Allowance;
    use crate::engine::limit::fingerprint::Fingerprinter;
    use crate::engine::limit::rules::Rules;
    use crate::engine::request::sample;
    use crate::limiter::{DecisionRequest, Limiter, Shared};
    use crate::message::headers::Headers;
    use crate::store::Store;
    use crate::store::memory::MemoryStore;
    use crate::telemetry::metrics::{DecisionListener, Metrics};

    /// A limit of one a second, by address.
    fn rules(name: &str) -> Rules {
        let windows = [Numbers::new(1, 1, 1_000_000_000).unwrap()].into();
        let limit = Limit { allowance: Allowance::Windows(windows), ..Limit::new(name) };
        Rules::new(vec![limit], Fingerprinter::new((1, 2)), Micros(0), Vec::new())
    }

    /// A denial by the rules in force that differs from others in the microseconds until the client may come back.
    async fn decided(limiter: &Limiter, retry_after: u64) -> LimiterVerdict {
        let headers = Headers::new();
        let request = sample(&headers);
        let asked = DecisionRequest::new(DecisionSubject::Request(&request), DecisionListener::Proxy, Instant::now());
        let mut decided = limiter.decide(asked).await.unwrap();
        for answer in &mut decided.verdict.answers {
            let wait = Some(Micros(retry_after));
            let outcome = Outcome::Denied;
            answer.decision = Decision { outcome, retry_after: wait, reset_after: wait, ..answer.decision };
        }
        decided.verdict.kind = crate::engine::deciding::verdict::VerdictKind::Denied;
        decided
    }

    /// Formats a response.
    fn said(response: &Response) -> String {
        let ResponseBody::Text(body) = &response.body else { panic!("no text") };
        let mut said = format!("{}\n", response.status).into_bytes();
        response.headers.write(&mut said);
        said.extend_from_slice(body);
        String::from_utf8(said).unwrap()
    }

    #[tokio::test]
    async fn a_denial_is_kept_as_long_as_it_would_be_written_alike() {
        let store = || MemoryStore::new(10);
        let shared = Arc::new(Shared::new(rules("First"), Arc::new(Metrics::new().unwrap()), store()));
        let limiter = Limiter::new(shared.clone(), Store::Memory(Arc::new(store())));
        let denials = DenialReplies::new(Generations::default());
        let mut responses: Vec<Response> = Vec::new();
        // The microseconds, whether it is a call of gRPC, and the first of these that is the same piece of memory.
        for (retry_after, is_grpc, first) in [
            (400_000, false, 0),
            (999_999, false, 0),
            (1_000_000, false, 0),
            (1_000_001, false, 3),
            (2_000_000, true, 4),
            (2_000_000, true, 4),
            (2_000_000, false, 6),
            (1_000_000, false, 0),
            (65_000_000, false, 8),
            (1_000_000, false, 9),
        ] {
            let (given, other) = (decided(&limiter, retry_after).await, decided(&limiter, retry_after).await);
            let written = denial(given.view.rules(), &given.verdict, Generations::default(), is_grpc);
            responses.push(denials.response(&mut { other }, is_grpc));
            let kept = |response: &Response| match &response.headers {
                ResponseHeaders::Kept(kept) => Some(Rc::as_ptr(kept)),
                ResponseHeaders::Own(_) => None,
            };
            let last = responses.last().unwrap();
            assert_eq!(said(last), said(&written.into()), "{retry_after} us");
            let found = responses.iter().position(|response| kept(response) == kept(last));
            assert_eq!((kept(last).is_some(), found), (true, Some(first)), "{retry_after} us");
        }

        shared.replace(rules("Second"), None);
        let words = said(&denials.response(&mut decided(&limiter, 2_000_000).await, false));
        assert!(words.contains("\"Second\"") && !words.contains("First"), "{words}");
    }

    #[tokio::test]
    async fn rules_are_not_kept_beyond_their_time() {
        let store = || MemoryStore::new(10);
        let shared = Arc::new(Shared::new(rules("First"), Arc::new(Metrics::new().unwrap()), store()));
        let limiter = Limiter::new(shared.clone(), Store::Memory(Arc::new(store())));
        let denials = DenialReplies::new(Generations::default());
        let view = Rc::downgrade(&limiter.view());
        denials.response(&mut decided(&limiter, 1).await, false);
        shared.replace(rules("Second"), None);
        limiter.flush();
        assert!(view.upgrade().is_none());
    }
}
