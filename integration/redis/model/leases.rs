//! Leases over three processes: random charges, refunds, resets, reloads, crashes and late messages. Whatever is used, directly or
//! from a lease, never exceeds what the limit allows in any span, and a request is denied only if a bucket of three quarters of the
//! burst, which counts leased tokens as used from the start, would deny it.
//!
//! The scripts decide by a given time. Each process has the table of a real worker, on a clock of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weir::clock::Clock;
use weir::engine::algorithms::algorithm::Aligned;
use weir::engine::algorithms::charge::{Bucket, Charge, Input, Mode};
use weir::engine::algorithms::decision::{Decision, Decisions, Detail, Outcome};
use weir::engine::algorithms::lease::{LeaseGrant, LeaseTerms, LeaseWish, MOST_LEASED};
use weir::engine::algorithms::micros::Micros;
use weir::engine::algorithms::numbers::Numbers;
use weir::engine::algorithms::tag::Tag;
use weir::store::redis::leases::table::LeaseTable;
use weir::store::redis::{RedisOptions, RedisStore};
use weir::store::{Batch, StoreAnswer};

use super::super::{connected, options};
use crate::support::redis::RedisServer;

const TRACES: u64 = 10_000;

/// Traces that are played together: their requests share calls.
const TOGETHER: u64 = 250;

const STEPS: u64 = 25;
const PROCESSES: usize = 3;

/// An instant in 2025.
const START: u64 = 1_760_000_000_000_000;

/// The longest that a wish takes to the server, and its answer back.
const LATENCY: u64 = 5_000;

/// Numbers that anybody can compute (splitmix64).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }
}

/// Adds up the tokens used, and lets them come back by the numbers in force. If the sum never exceeds the burst, no span has
/// more use than the burst and the tokens that come back in it; the reverse holds, too.
enum Meter {
    /// GCRA; a token is [`Numbers::period`] parts.
    Even { used: u128, at: u64 },
    /// The window that ends at `end`.
    Window { used: u64, end: u64, is_cleared: bool },
}

struct Process {
    table: LeaseTable,
    /// Ahead of the others' clocks.
    offset: u64,
    /// The place of its numbers, and when they took effect.
    numbers: (usize, u64),
    /// An answer to a wish that has not arrived.
    arriving: Option<(Charge, u64, LeaseGrant, Decision)>,
}

struct Trace {
    number: u64,
    random: Random,
    numbers: [Numbers; 2],
    terms: LeaseTerms,
    processes: Vec<Process>,
    meter: Meter,
    /// Returns that are on the way.
    late: Vec<Charge>,
    /// The level of a bucket that counts leased tokens as used from the start, of a trace in which only time and charges change it.
    plain: Option<(u128, u64)>,
    sent: Option<Sent>,
    reloads: u32,
    tally: Tally,
}

/// A request on the way to the server.
struct Sent {
    charge: Charge,
    process: usize,
    /// By the clock of the process.
    asked: u64,
}

/// The number of events in all traces. The test fails if there were few leases.
#[derive(Debug, Default)]
struct Tally {
    sent: u64,
    granted: u64,
    served: u64,
    given_back: u64,
}

impl Trace {
    fn new(number: u64) -> Self {
        let mut random = Random(number.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        let burst = 4 + random.below(60);
        let period = (1 + random.below(40)) * 50_000_000;
        let is_plain = random.one_in(3);
        // A reload changes the rate while processes follow one by one, or the burst of all at once.
        let other = if random.one_in(2) { burst } else { 4 + random.below(60) };
        let kind = random.below(3);
        let numbers = |burst: u64, count: u64| match kind {
            0 => Numbers::fixed_window(burst, burst, period, Aligned::First),
            1 => Numbers::fixed_window(burst, burst, period, Aligned::Clock),
            _ => Numbers::new(burst, count, period),
        };
        let (slow, fast) = (1 + random.below(60), 1 + random.below(60));
        let numbers = [numbers(burst, slow), numbers(other, fast)].map(Result::unwrap);
        let meter = if numbers[0].windows().is_some() {
            Meter::Window { used: 0, end: 0, is_cleared: true }
        } else {
            Meter::Even { used: 0, at: START }
        };
        let terms = LeaseTerms {
            tokens: u32::try_from(1 + random.below(50)).unwrap(),
            span: u32::try_from((1 + random.below(20)) * 10_000).unwrap(),
        };
        let mut process = || Process {
            table: LeaseTable::default(),
            offset: random.below(1 << 40),
            numbers: (0, START - 1),
            arriving: None,
        };
        let processes = (0..PROCESSES).map(|_| process()).collect();
        let plain = (is_plain && kind > 1).then_some((0, START));
        let (late, sent, tally) = (Vec::new(), None, Tally::default());
        Self { number, random, numbers, terms, processes, meter, late, plain, sent, reloads: 0, tally }
    }

    fn charge(&self, process: usize, cost: u64, mode: Mode) -> Charge {
        let (place, changed) = self.processes[process].numbers;
        let (key, fingerprint) = (format!("leases:{}", self.number), u128::from(self.number));
        let bucket = Bucket { key, fingerprint, tag: Tag::OfId };
        let charge = Charge::new(bucket, self.numbers[place].clone(), cost, mode);
        Charge { lease: Some(self.terms), changed: Micros(changed), ..charge }
    }

    /// Lets one thing happen. Returns what it sends.
    fn step(&mut self, now: u64) -> Option<&Charge> {
        let process = usize::try_from(self.random.below(PROCESSES as u64)).unwrap();
        self.arrive(process);
        self.advance(now);
        let cost = 1 + self.random.below(8);
        let charge = match self.random.below(if self.plain.is_some() { 24 } else { 31 }) {
            // A burst of requests, the last of which no lease serves.
            0..16 => self.spend(process, now)?,
            16..20 => {
                let local = Micros(now + self.processes[process].offset);
                let ends = self.random.one_in(3);
                let table = &mut self.processes[process].table;
                let returns = if ends { table.end_all() } else { table.returns(local) };
                self.late.extend(returns.into_iter().map(|back| back.charge));
                return None;
            }
            20..23 => self.late.pop()?,
            23 => {
                self.processes[process].table = LeaseTable::default();
                self.processes[process].arriving = None;
                return None;
            }
            24..27 => self.charge(process, cost, Mode::Refund),
            27 => self.charge(process, 0, Mode::Reset),
            28 => self.charge(process, cost, Mode::SpendOnly),
            _ => {
                self.reload(process, now);
                return None;
            }
        };
        let latency = self.random.below(LATENCY);
        let asked = (now + self.processes[process].offset).saturating_sub(latency);
        self.sent = Some(Sent { charge, process, asked });
        self.sent.as_ref().map(|sent| &sent.charge)
    }

    /// Spends at a process until its lease is empty, or for a while.
    fn spend(&mut self, process: usize, now: u64) -> Option<Charge> {
        let local = Micros(now + self.processes[process].offset);
        for _ in 0..=self.random.below(25) {
            // Large costs exhaust the bucket.
            let most = if self.random.one_in(4) { self.numbers[0].burst() } else { 2 };
            let cost = 1 + self.random.below(most);
            let charge = self.charge(process, cost, Mode::Spend);
            let Process { table, numbers, .. } = &mut self.processes[process];
            let Some((decision, taken)) = table.take(&charge, Micros(numbers.1), local) else {
                let mut ask = table.ask(&charge, local, local.after(Micros(2 * LATENCY))).unwrap_or_default();
                // Whatever a worker wishes must be safe.
                if ask.wish.is_none() && self.random.one_in(2) {
                    ask.wish = Some(LeaseWish { terms: self.terms, demand: 1 + self.random.below(100) });
                }
                return Some(Charge { input: Some(Box::new(Input::Lease(ask))), ..charge });
            };
            assert_eq!(decision.outcome, Outcome::Allowed);
            if self.random.one_in(10) {
                table.put_back(taken);
                continue;
            }
            self.tally.served += 1;
            if let Meter::Window { end, .. } = self.meter {
                assert!(now < end, "trace {}: a lease reaches beyond its window", self.number);
            }
            self.used(process, charge.cost, now);
        }
        None
    }

    /// Lets an answer arrive. Its lease is counted from before the wish was sent.
    fn arrive(&mut self, process: usize) {
        let Process { table, numbers, arriving, .. } = &mut self.processes[process];
        if let Some((charge, asked, grant, decision)) = arriving.take() {
            table.answered(&charge, Micros(numbers.1), Micros(asked), Some((grant, &decision)));
        }
    }

    /// Changes the rules: of one process if only the rate changes, or else of all.
    fn reload(&mut self, process: usize, now: u64) {
        self.advance(now);
        self.reloads += 1;
        let is_gradual = self.numbers[0].burst() == self.numbers[1].burst();
        let place = 1 - self.processes[process].numbers.0;
        for (number, process_to_change) in self.processes.iter_mut().enumerate() {
            if number == process || !is_gradual {
                process_to_change.numbers = (place, now);
                process_to_change.arriving = None;
            }
        }
        // What had no room under the new numbers was dropped.
        if let Meter::Even { used, .. } = &mut self.meter {
            let numbers = &self.numbers[place];
            *used = (*used).min(u128::from(numbers.burst()) * u128::from(numbers.period()));
        }
    }

    /// Lets tokens come back until `now`, at the highest rate of any process or message.
    fn advance(&mut self, now: u64) {
        let counts = self.processes.iter().map(|process| self.numbers[process.numbers.0].count());
        let late = self.late.iter().map(|back| back.numbers.count());
        // A bucket that was not written between two reloads does not know the first.
        let unseen = self.numbers.iter().map(Numbers::count).filter(|_| self.reloads > 1);
        let fastest = u128::from(counts.chain(late).chain(unseen).max().unwrap_or_default());
        if let Meter::Even { used, at } = &mut self.meter {
            *used = used.saturating_sub(u128::from(now - *at) * 1_000 * fastest);
            *at = now;
        }
    }

    /// Notes that tokens were used.
    fn used(&mut self, process: usize, cost: u64, now: u64) {
        self.advance(now);
        let numbers = &self.numbers[self.processes[process].numbers.0];
        let is_within = match &mut self.meter {
            Meter::Even { used, .. } => {
                *used += u128::from(cost) * u128::from(numbers.period());
                *used <= u128::from(numbers.burst()) * u128::from(numbers.period())
            }
            Meter::Window { used, .. } => {
                *used += cost;
                *used <= numbers.burst()
            }
        };
        assert!(is_within, "trace {}: more than {numbers} was used", self.number);
    }

    /// Notes the window of an answer.
    fn look_at_window(&mut self, decision: &Decision, now: u64) {
        let Meter::Window { used, end, is_cleared } = &mut self.meter else { return };
        let found = now + decision.reset_after.unwrap().0;
        if found != *end && decision.remaining < decision.limit {
            assert!(now >= *end || *is_cleared, "trace {}: a window began within another", self.number);
            (*used, *end, *is_cleared) = (0, found, false);
        }
    }

    /// Takes the answer to what was sent.
    fn answer(&mut self, decisions: &Decisions, now: u64) {
        let Some(Sent { charge, process, asked }) = self.sent.take() else { return };
        let decision = decisions[0];
        let granted = match decisions.detail(0) {
            Some(Detail::Leased(grant)) => Some(*grant),
            _ => None,
        };
        self.tally.sent += 1;
        match charge.mode {
            Mode::Refund | Mode::Reset => self.gave_back(&charge, &decision, now),
            _ if decision.outcome == Outcome::Allowed => {
                self.look_at_window(&decision, now);
                self.used(process, charge.cost, now);
            }
            _ => {}
        }
        self.check_plain(&charge, &decision, granted, now);
        if let Some(grant) = granted {
            self.tally.granted += 1;
            assert!(grant.tokens <= u64::from(self.terms.tokens) && grant.span.0 <= u64::from(self.terms.span));
            self.processes[process].arriving = Some((charge, asked, grant, decision));
        }
        if self.random.one_in(2) {
            self.arrive(process);
        }
    }

    fn gave_back(&mut self, charge: &Charge, decision: &Decision, now: u64) {
        self.advance(now);
        self.tally.given_back += u64::from(charge.lease_ask().is_some());
        let is_full = decision.remaining == decision.limit;
        match (&mut self.meter, charge.mode) {
            (Meter::Even { used, .. }, Mode::Reset) => *used = 0,
            (Meter::Even { used, .. }, _) => {
                *used = used.saturating_sub(u128::from(charge.cost) * u128::from(charge.numbers.period()));
            }
            (Meter::Window { used, is_cleared, .. }, mode) => {
                *used = if mode == Mode::Reset { 0 } else { used.saturating_sub(charge.cost) };
                *is_cleared |= is_full;
            }
        }
    }

    /// Compares what remains with a bucket that no lease holds up. The difference is the tokens that do not drain while they are
    /// leased.
    fn check_plain(&mut self, charge: &Charge, decision: &Decision, granted: Option<LeaseGrant>, now: u64) {
        let Some((level, at)) = &mut self.plain else { return };
        let numbers = &charge.numbers;
        let tokens = |tokens: u64| u128::from(tokens) * u128::from(numbers.token());
        *level = level.saturating_sub(u128::from(now - *at) * u128::from(numbers.drain()));
        *at = now;
        let ended = charge.lease_ask().and_then(|ask| ask.ended).filter(|ended| now < ended.until.0);
        if decision.outcome != Outcome::Denied {
            *level = level.saturating_sub(ended.map_or(0, |ended| tokens(ended.left)));
        }
        if decision.outcome == Outcome::Allowed {
            *level += tokens(charge.cost);
        }
        let room = tokens(numbers.burst()) - *level;
        let least = room.saturating_sub(tokens(numbers.burst() / MOST_LEASED));
        let remaining = u128::from(decision.remaining);
        assert!((least / tokens(1)..=room / tokens(1)).contains(&remaining), "trace {}, {charge:?}", self.number);
        assert!(
            decision.outcome != Outcome::Denied || tokens(charge.cost) > least,
            "trace {}, {charge:?}",
            self.number
        );
        *level += granted.map_or(0, |grant| tokens(grant.tokens));
    }
}

struct Server {
    store: Arc<RedisStore>,
    time: Arc<AtomicU64>,
}

impl Server {
    /// Plays traces together, from step to step.
    async fn play(&self, traces: &mut [Trace], random: &mut Random) {
        let mut now = START;
        for _ in 0..STEPS {
            now += match random.below(4) {
                0 => random.below(100),
                1 => random.below(10_000),
                2 => random.below(30_000),
                _ => random.below(200_000),
            };
            self.time.store(now, Ordering::Relaxed);
            let asked: Vec<Option<StoreAnswer>> = traces
                .iter_mut()
                .map(|trace| {
                    let charges = std::slice::from_ref(trace.step(now)?);
                    Some(self.store.ask(&Batch { charges, effective_from: Micros(0), now: Micros(now) }))
                })
                .collect();
            for (trace, answer) in traces.iter_mut().zip(asked) {
                if let Some(answer) = answer {
                    trace.answer(&answer.wait().await.unwrap(), now);
                }
            }
        }
    }
}

#[test]
fn leases_never_let_more_pass_than_the_limit() {
    let server = RedisServer::plain();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let time = Arc::new(AtomicU64::new(START));
    let clock = Clock::Set(time.clone());
    let options = RedisOptions { clock, ..options(&server.url()) };
    runtime.block_on(async {
        let served_by = Server { store: connected(&options).await, time };
        let mut all = Tally::default();
        for first in (0..TRACES).step_by(usize::try_from(TOGETHER).unwrap()) {
            let mut traces: Vec<Trace> = (first..first + TOGETHER).map(Trace::new).collect();
            served_by.play(&mut traces, &mut Random(first)).await;
            for Trace { tally, .. } in traces {
                all.sent += tally.sent;
                all.granted += tally.granted;
                all.served += tally.served;
                all.given_back += tally.given_back;
            }
        }
        assert!(all.granted > 2 * TRACES && all.served > TRACES && all.given_back > TRACES / 5, "{all:?}");
    });
}
