//! Three gateways on one store, in front of an upstream that counts the requests in flight.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::limits::{self, Ids, KINDS};
use super::load::{Answer, micros};
use crate::support::crowd::{CrowdAnswer, ask_at_once};
use crate::support::upstream::{Upstream, ok};
use crate::support::weir::Weir;

pub(super) const GATEWAYS: usize = 3;

/// The time for which the upstream holds a request of the limit `Concurrency`.
const HOLD: Duration = Duration::from_millis(100);

/// Counters of all gateways together, by name and labels.
pub(super) type Counters = BTreeMap<String, u64>;

pub(super) struct Gateways {
    pub(super) all: Vec<Weir>,
    flags: Vec<String>,
    /// A new one for each flood. A store that is well has a minute there, however busy the machine is.
    flooded: Option<Weir>,
    in_flight: Arc<Mutex<BTreeMap<String, InFlight>>>,
    _upstream: Upstream,
}

#[derive(Default)]
struct InFlight {
    now: u64,
    most: u64,
}

impl Gateways {
    pub(super) fn start(store: &str) -> Self {
        let in_flight: Arc<Mutex<BTreeMap<String, InFlight>>> = Arc::default();
        let seen = Arc::clone(&in_flight);
        let upstream = Upstream::start(move |wire, _| {
            while let Some(request) = wire.request() {
                let id = request.header("x-id").unwrap().to_owned();
                {
                    let mut seen = seen.lock();
                    let held = seen.entry(id.clone()).or_default();
                    held.now += 1;
                    held.most = held.most.max(held.now);
                }
                std::thread::sleep(HOLD);
                seen.lock().get_mut(&id).unwrap().now -= 1;
                wire.send(ok(""));
            }
        });
        let slow = format!("/Concurrency=http://{}", upstream.address);
        let upstreams = ["--upstream", "echo", "--upstream", &slow];
        // All streams of a flood come from one address.
        let streams = ["--streams-per-address", "4096"];
        let flags = [&["--workers", "2", "--store", store], &upstreams[..], &streams].concat();
        let hurried = [&flags[..], &["--store-timeout", "20ms"]].concat();
        let all = (0..GATEWAYS).map(|_| Weir::serve(&limits::rules(), &hurried)).collect();
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        Self { all, flags, flooded: None, in_flight, _upstream: upstream }
    }

    pub(super) fn await_flood(&mut self) {
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        let flooded = Weir::serve(&limits::rules(), &flags);
        flooded.until_connected();
        self.flooded = Some(flooded);
    }

    /// Floods one id of each combination, flood by flood.
    pub(super) fn flood(&self, floods: &[usize], ids: &Ids) -> Vec<Answer> {
        let combinations = || (0..KINDS.len()).filter(|kind| KINDS[*kind].is_combination);
        let flood = |each: &usize| -> Vec<Answer> {
            let kinds: Vec<usize> = (0..*each).flat_map(|_| combinations()).collect();
            let request = |kind: &usize| {
                let request = http::Request::get(format!("http://a.example/{}", KINDS[*kind].name));
                let headers = ids.headers(*kind, 0);
                headers.iter().fold(request, |request, (name, value)| request.header(*name, *value)).body(()).unwrap()
            };
            let answers =
                ask_at_once(self.flooded.as_ref().expect("it was awaited").proxy, kinds.iter().map(request).collect());
            let answer = |(answer, kind): (CrowdAnswer, usize)| {
                let CrowdAnswer { head, sent, answered } = answer;
                let (status, times) = (head.status().as_u16(), [sent, answered].map(micros));
                let told = head.headers().get("ratelimit").map(|value| value.to_str().unwrap());
                Answer::new((GATEWAYS, kind, 0), status, times, told)
            };
            answers.into_iter().zip(kinds).map(answer).collect()
        };
        let answers: Vec<Answer> = floods.iter().flat_map(flood).collect();
        // A flood is no failure of the store, and switches no limit off.
        let undecided: Vec<&Answer> = answers.iter().filter(|answer| !answer.is_decided()).collect();
        assert!(undecided.is_empty(), "{} of {} are undecided: {undecided:?}", undecided.len(), answers.len());
        answers
    }

    /// The most requests in flight for one id since the last call.
    pub(super) fn most_in_flight(&self) -> u64 {
        let mut all = self.in_flight.lock();
        let most = all.values_mut().map(|held| std::mem::replace(&mut held.most, held.now)).max().unwrap_or(0);
        all.retain(|_, held| held.now > 0);
        most
    }

    pub(super) fn counters(&self) -> Counters {
        let mut sums = Counters::new();
        for weir in self.all.iter().chain(&self.flooded) {
            let page = weir.admin("/metrics");
            let lines = page.text().lines().filter_map(|line| line.rsplit_once(' '));
            for (name, value) in lines.filter(|(name, _)| !name.starts_with('#')) {
                if let Ok(value) = value.parse::<u64>() {
                    *sums.entry(name.to_owned()).or_default() += value;
                }
            }
        }
        sums
    }

    /// Resident memory of each gateway, in KiB.
    pub(super) fn resident(&self) -> Vec<u64> {
        self.all.iter().map(Weir::resident).collect()
    }
}
