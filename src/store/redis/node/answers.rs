//! From a call's reply to the answers of its requests; errors may end the connection.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::{RedisError, Value};
use tokio::time::Instant;

use super::connection::Connection;
use super::shared_call::RequestAnswer;
use super::{Node, NodeState, SHORTEST_LIFE};
use crate::store::redis::call::{BadReply, Requests, describe};
use crate::store::redis::diagnosis::Diagnosis;
use crate::store::redis::redirect::Redirect;
use crate::store::{Fault, StoreError};

impl Node {
    /// Returns the answers to the requests of a call, or the error that all of them get. `in_time`: within the
    /// timeout of being sent.
    pub(super) fn answers(
        &self,
        live: &Arc<Connection>,
        requests: &Requests,
        answer: Result<Value, RedisError>,
        in_time: bool,
    ) -> Result<Vec<RequestAnswer>, StoreError> {
        let value = answer.map_err(|error| self.call_error(live, &error))?;
        let reply = requests.reply(value).map_err(|reply| match reply {
            BadReply::Malformed(text) => {
                self.note_failure(Diagnosis::new(Fault::Failing, &*text));
                StoreError::Failed(text)
            }
            BadReply::Foreign(text) => {
                let text = format!("a reply was lost or duplicated on the way, this call was answered by {text:.100}");
                self.give_up(live, Diagnosis::new(Fault::Unreachable, text));
                StoreError::Broken
            }
        })?;
        if reply.corrupt > 0 {
            self.counts.corrupt.fetch_add(reply.corrupt, Ordering::Relaxed);
        }
        let failing = reply.answers.iter().find_map(|answer| answer.as_ref().err());
        match failing.filter(|_| reply.answers.iter().all(Result::is_err)) {
            Some(text) => self.note_failure(Diagnosis::of_failure(text, &self.key_starts)),
            None => self.note_answer(in_time),
        }
        let answers = reply.answers.into_iter();
        Ok(answers
            .map(|answer| answer.map_err(|text| self.request_error(live, Diagnosis::of_request(&text), text)))
            .collect())
    }

    /// Returns the error of a call. Gives the connection up if it broke or the server is the wrong one.
    fn call_error(&self, live: &Arc<Connection>, error: &RedisError) -> StoreError {
        let text = describe(error);
        if error.code().is_none() {
            // Not a reply: the connection broke, or the peer does not speak Redis' protocol.
            self.give_up(live, Diagnosis::new(Fault::Unreachable, text));
            return StoreError::Broken;
        }
        if self.is_in_cluster && Redirect::of_reply(&text).is_some() {
            return StoreError::Failed(text);
        }
        self.note_failure(Diagnosis::of_failure(&text, &self.key_starts));
        self.request_error(live, Diagnosis::of_call(&text, &self.key_starts), text)
    }

    /// Returns the error of a request. Gives the connection up if the server cannot serve.
    fn request_error(&self, live: &Arc<Connection>, diagnosis: Option<Diagnosis>, text: String) -> StoreError {
        if let Some(diagnosis) = diagnosis {
            self.give_up(live, diagnosis);
        }
        StoreError::Failed(text)
    }

    /// Notes that the server answers, though not with decisions in time.
    pub(in crate::store::redis) fn note_failure(&self, diagnosis: Diagnosis) {
        // Without a connection, the reason for that says more.
        if self.live.load().is_none() {
            return;
        }
        self.is_failing.store(true, Ordering::Relaxed);
        let mut state = self.state.lock();
        state.noted = Instant::now();
        if state.diagnosis.as_ref().is_none_or(|known| known.fault != diagnosis.fault) {
            state.diagnosis = Some(diagnosis);
        }
    }

    /// Notes that a call was answered.
    fn note_answer(&self, in_time: bool) {
        if self.is_failing.load(Ordering::Relaxed) {
            let mut state = self.state.lock();
            if in_time || state.diagnosis.as_ref().is_none_or(|known| known.fault != Fault::Late) {
                state.diagnosis = None;
                self.is_failing.store(false, Ordering::Relaxed);
            }
        }
    }

    /// Stops requests from using `live`, unless it was replaced already.
    pub(super) fn give_up(&self, live: &Arc<Connection>, diagnosis: Diagnosis) {
        let mut state = self.state.lock();
        if self.live.load().as_ref().is_some_and(|current| Arc::ptr_eq(current, live)) {
            // A master that became a replica has been replaced by another.
            let may_return = matches!(diagnosis.fault, Fault::Unreachable | Fault::Replica);
            let may_return = may_return && live.opened.elapsed() >= SHORTEST_LIFE;
            self.is_returning.store(may_return, Ordering::Relaxed);
            self.is_failing.store(false, Ordering::Relaxed);
            let breaker_open = diagnosis.fault == Fault::Silent;
            *state = NodeState { breaker_open, diagnosis: Some(diagnosis), noted: Instant::now() };
            self.live.store(None);
            live.driver.abort();
            self.lost.notify_one();
        }
    }
}
