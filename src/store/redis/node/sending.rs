//! A call's way to the server, and its answers' way back to the callers.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::{RedisError, Value};
use tokio::time::Instant;

use super::calls::{Migration, Route, TakenPlace};
use super::connection::Connection;
use super::lines::Line;
use super::patience::{PARTS, Patience, within};
use super::shared_call::{Asker, Call, RequestAnswer};
use super::{Node, SILENT_TIMEOUTS};
use crate::engine::algorithms::micros::Micros;
use crate::store::redis::diagnosis::Diagnosis;
use crate::store::redis::unclaimed::Unclaimed;
use crate::store::{Fault, StoreAnswer, StoreError};

/// Sends the oldest call that is being collected, and then calls from the lines as long as something waits there.
pub(super) async fn send_calls(node: Arc<Node>) {
    let mut place = TakenPlace::new(&node);
    let mut next = node.calls.take().or_else(|| place.next());
    while let Some(call) = next {
        node.send(call).await;
        next = place.next();
    }
}

impl Node {
    /// Sends a call and distributes the answers. Ends when the reply has come, or when the connection is given up.
    async fn send(self: &Arc<Self>, mut call: Call) {
        let most = call.askers.iter().map(|asker| asker.patience).max().unwrap_or(PARTS);
        let mut patience = Patience::rest(self.timeout, most);
        let live = match self.live.load_full() {
            Some(live) => Ok(live),
            None => patience.wait(pin!(self.awaited_connection())).await.unwrap_or(Err(StoreError::Down)),
        };
        let live = match live {
            Ok(live) => live,
            Err(error) => return fail(&mut call.askers, PARTS, &error),
        };
        let (since, waited) = (call.since, call.waited);
        let fail_late = |askers: &mut [Asker], patience: &Patience| {
            let spent = most - patience.left();
            if askers.iter().any(|asker| asker.caller.is_some() && asker.patience <= spent) {
                fail(askers, spent, &self.without_reply(&live, waited, since));
            }
        };
        fail_late(&mut call.askers, &patience);
        if !call.drop_unwanted() {
            return;
        }
        let Call { tag, migration, requests, mut askers, .. } = call;
        let sent = Instant::now();
        let mut reply = pin!(live.ask(&requests, migration == Some(Migration::Destination)));
        let (answer, is_awaited) = loop {
            if let Some(answer) = patience.wait_for_a_part(reply.as_mut()).await {
                break (answer, true);
            }
            fail_late(&mut askers, &patience);
            if patience.left() == 0 {
                match self.outwait(&live, reply.as_mut()).await {
                    Some(answer) => break (answer, false),
                    None => return,
                }
            }
        };
        let is_timely = is_awaited || sent.elapsed() < self.timeout;
        if is_timely {
            self.timely.fetch_add(1, Ordering::Relaxed);
        }
        match self.answers(&live, &requests, answer, is_timely) {
            Ok(answers) => {
                for (asker, answer) in askers.into_iter().zip(answers) {
                    let Asker { caller, unclaimed, .. } = asker;
                    let answered = match caller {
                        Some(caller) => caller.answer(answer),
                        None => Err(answer),
                    };
                    if let Err(answer) = answered {
                        self.give_back((tag, migration), requests.now, unclaimed, answer);
                    }
                }
            }
            Err(error) => fail(&mut askers, PARTS, &error),
        }
    }

    /// Waits for an overdue reply, whose answers nobody takes; the call stays outstanding until it arrives. Gives the connection up
    /// if the server stays silent.
    async fn outwait<F>(&self, live: &Arc<Connection>, mut reply: Pin<&mut F>) -> Option<F::Output>
    where
        F: Future<Output = Result<Value, RedisError>>,
    {
        live.overdue.fetch_add(1, Ordering::Relaxed);
        let mut silent = 1;
        while silent < SILENT_TIMEOUTS {
            let heard = live.heard.load(Ordering::Relaxed);
            if let Some(answer) = within(self.timeout, reply.as_mut()).await {
                live.overdue.fetch_sub(1, Ordering::Relaxed);
                // The result still shows whether the connection works.
                return Some(answer);
            }
            silent = if live.heard.load(Ordering::Relaxed) == heard { silent + 1 } else { 0 };
        }
        let text = format!("no answer within {:?}", self.timeout * SILENT_TIMEOUTS);
        self.give_up(live, Diagnosis::new(Fault::Silent, text));
        None
    }

    /// Gives back what a request has taken whose answer nobody takes.
    fn give_back(
        self: &Arc<Self>,
        (tag, migration): (u8, Option<Migration>),
        now: Option<Micros>,
        unclaimed: Option<Box<Unclaimed>>,
        answer: RequestAnswer,
    ) {
        if let (Some(unclaimed), Ok(decisions)) = (unclaimed, answer) {
            let refunds = unclaimed.refunds(&decisions);
            if !refunds.is_empty() {
                let route = Route { migration, ..Route::new(tag, Line::of(&refunds)) };
                let answer = StoreAnswer::Pending(self.calls.ask(self, route, &unclaimed.batch(&refunds), now));
                let node = Arc::clone(self);
                self.calls.spawn(async move {
                    if answer.wait().await.is_err() {
                        node.counts.count_lost(1);
                    }
                });
            }
        }
    }
}

/// Ends the requests that wait for at most `spent` parts of the timeout.
fn fail(askers: &mut [Asker], spent: u32, error: &StoreError) {
    for asker in askers.iter_mut().filter(|asker| asker.patience <= spent) {
        if let Some(caller) = asker.caller.take() {
            let _ = caller.answer(Err(error.clone()));
        }
    }
}
