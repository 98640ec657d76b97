//! Starts and stops recordings, and adds decisions to the one that runs.

use std::sync::Arc;

use arc_swap::{ArcSwapOption, Cache};
use tokio::sync::mpsc::Receiver;

use super::recording::{Fate, Recording};
use super::{DecisionRequest, Limiter, Shared, View};
use crate::engine::algorithms::charge::Mode;
use crate::engine::deciding::DecisionSubject;
use crate::engine::deciding::verdict::Verdict;
use crate::engine::limit::rules::Rules;

/// A worker's copy of the pointer to the recording that runs.
pub(super) type CachedRecording = Cache<Arc<ArcSwapOption<Recording>>, Option<Arc<Recording>>>;

impl Shared {
    /// Starts a recording of a share of the clients, in parts of
    /// [`WHOLE_SHARE`](crate::engine::limit::WHOLE_SHARE). `None` if one is running.
    pub fn start_recording(&self, secret: (u64, u64), share: u32) -> Option<(Arc<Recording>, Receiver<String>)> {
        if self.recording.load().is_some() {
            return None;
        }
        let (recording, received) = Recording::new(&self.snapshot.load().rules, secret, share);
        self.recording.store(Some(recording.clone()));
        Some((recording, received))
    }

    pub fn stop_recording(&self) {
        self.recording.store(None);
    }
}

impl Limiter {
    /// Adds a decision about a request to the recording that runs, if one does.
    #[inline]
    pub(super) fn record(&self, view: &View, asked: &DecisionRequest<'_>, verdict: &Verdict) {
        if let Some(recording) = self.recording.borrow_mut().load() {
            record(recording, view.rules(), asked, verdict);
        }
    }
}

#[cold]
fn record(recording: &Recording, rules: &Rules, asked: &DecisionRequest<'_>, verdict: &Verdict) {
    if !asked.is_decision() {
        return;
    }
    let is_kept = match asked.subject {
        DecisionSubject::Named { .. } => return recording.count(Fate::Named),
        // The rules do not give its cost.
        DecisionSubject::Request(_) if asked.intent.cost.is_some() || asked.intent.mode != Mode::Spend => {
            return recording.count(Fate::Named);
        }
        DecisionSubject::Request(request) => match request.client {
            Some(client) => recording.is_kept(&client.to_string()),
            None => recording.is_kept(request.host),
        },
        DecisionSubject::Descriptors(call) => {
            let entries = call.descriptors.iter().flat_map(|descriptor| descriptor.entries);
            let entries: Vec<&str> = entries.flat_map(|entry| [entry.key, entry.value]).collect();
            recording.is_kept(&entries.join("\n"))
        }
    };
    if !is_kept {
        return recording.count(Fate::LeftOut);
    }
    match asked.subject {
        DecisionSubject::Named { .. } => {}
        DecisionSubject::Request(request) => recording.push(rules, recording.request(rules, request), verdict),
        DecisionSubject::Descriptors(call) => recording.push(rules, recording.call(rules, call), verdict),
    }
}
