//! Two users of leases, on a given time: one who spends as steadily as people do, and one who spends at the worst instants. Each
//! worker has the table of a real one, on a clock of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::runtime::Runtime;
use weir::engine::algorithms::algorithm::Aligned;
use weir::engine::algorithms::charge::{Charge, Input, Mode};
use weir::engine::algorithms::decision::{Decision, Detail, Outcome};
use weir::engine::algorithms::lease::LeaseTerms;
use weir::engine::algorithms::micros::Micros;
use weir::engine::algorithms::numbers::Numbers;
use weir::store::Batch;
use weir::store::memory::{DEFAULT_MAX_KEYS, MemoryStore};
use weir::store::redis::RedisStore;
use weir::store::redis::leases::table::LeaseTable;

use super::super::{charge, on_set_clock};
use super::leases::Random;
use crate::support::redis::RedisServer;

/// An instant in 2025.
const START: u64 = 1_760_000_000_000_000;

const SECOND: u64 = 1_000_000_000;

/// The time in which the rules took effect.
const RULES: Micros = Micros(1);

/// The longest that a charge takes to the server.
const LATENCY: u64 = 500;

struct Server {
    runtime: Runtime,
    store: Arc<RedisStore>,
    time: Arc<AtomicU64>,
    _process: RedisServer,
}

impl Server {
    fn start() -> Self {
        let process = RedisServer::plain();
        let (runtime, store, time) = on_set_clock(&process);
        Self { runtime, store, time, _process: process }
    }

    /// Decides a charge at `now` by the server's clock.
    fn ask(&self, charge: &Charge, now: u64) -> (Decision, Option<Detail>) {
        self.time.store(now, Ordering::Relaxed);
        let batch = Batch { charges: std::slice::from_ref(charge), effective_from: RULES, now: Micros(now) };
        let decisions = self.runtime.block_on(async { self.store.ask(&batch).wait().await }).unwrap();
        (decisions[0], decisions.detail(0).cloned())
    }
}

/// A bucket and the workers that charge it.
struct Workers<'s> {
    server: &'s Server,
    charge: Charge,
    tables: Vec<LeaseTable>,
    /// The lead of each worker's clock.
    ahead: Vec<u64>,
    /// The end of each worker's last lease.
    ends: Vec<u64>,
    /// The lag of the server's clock.
    behind: u64,
    random: Random,
}

#[derive(PartialEq, Eq)]
enum Answer {
    Leased,
    Allowed,
    Denied,
}

impl<'s> Workers<'s> {
    fn new(
        server: &'s Server,
        key: &str,
        numbers: &Numbers,
        terms: LeaseTerms,
        count: usize,
        mut random: Random,
    ) -> Self {
        let charge = Charge { lease: Some(terms), ..charge(key, numbers, 1, Mode::Spend) };
        let tables = (0..count).map(|_| LeaseTable::default()).collect();
        let ahead = (0..count).map(|_| random.below(1 << 40)).collect();
        Self { server, charge, tables, ahead, ends: vec![0; count], behind: 0, random }
    }

    /// Spends 1 at a worker.
    fn spend(&mut self, worker: usize, now: u64) -> Answer {
        let latency = self.random.below(LATENCY);
        let (local, table) = (Micros(now + self.ahead[worker]), &mut self.tables[worker]);
        if table.take(&self.charge, RULES, local).is_some() {
            return Answer::Leased;
        }
        let ask = table.ask(&self.charge, local, local.after(Micros(20_000)));
        let input = ask.map(|ask| Box::new(Input::Lease(ask)));
        let (decision, detail) = self.server.ask(&Charge { input, ..self.charge.clone() }, now - self.behind);
        let granted = match detail {
            Some(Detail::Leased(grant)) => Some((grant, &decision)),
            _ => None,
        };
        let asked = Micros(local.0 - latency);
        table.answered(&self.charge, RULES, asked, granted);
        if let Some((grant, _)) = granted {
            self.ends[worker] = asked.after(grant.span).0 - self.ahead[worker];
        }
        if decision.outcome == Outcome::Allowed { Answer::Allowed } else { Answer::Denied }
    }

    /// Gives back what is due until `now`.
    fn give_back(&mut self, now: u64) {
        for (table, ahead) in self.tables.iter_mut().zip(&self.ahead) {
            while let Some(Micros(at)) = table.next_look().filter(|at| at.0 <= now + ahead) {
                for back in table.returns(Micros(at)) {
                    self.server.ask(&back.charge, at.saturating_sub(*ahead) - self.behind);
                }
            }
        }
    }
}

/// Requests come at random at 50 and 95 % of a limit, as many at each worker, half of them together with the one before. Most are decided from
/// leases, and none is denied that one bucket would let pass.
#[test]
fn an_id_within_its_limit_is_served_from_leases_and_not_denied() {
    let server = Server::start();
    let window = |count| Numbers::fixed_window(count, count, SECOND, Aligned::Clock).unwrap();
    let even = |count| Numbers::new(count, count, SECOND).unwrap();
    // The example of the page, and others, with the least share of leases in percent.
    for (numbers, span, least) in [
        (even(10_000), 100_000, 90),
        (window(10_000), 100_000, 90),
        (even(1_000), 100_000, 80),
        (even(200), 1_000_000, 60),
    ] {
        let terms = LeaseTerms { tokens: 50, span };
        for (workers, percent) in [(1, 50), (1, 95), (2, 50), (2, 95), (3, 50), (3, 95)] {
            let key = format!("A:{numbers}:{workers}:{percent}");
            let memory = MemoryStore::new(DEFAULT_MAX_KEYS);
            let mut all = Workers::new(&server, &key, &numbers, terms, workers, Random(percent));
            let interval = 100_000_000 / (numbers.count() * percent);
            let (mut now, mut leased, mut unneeded) = (START, 0, 0);
            let requests = 8_000;
            for _ in 0..requests {
                // Half of them come together with the one before.
                now += if all.random.below(2) == 0 { 0 } else { all.random.below(4 * interval) };
                all.give_back(now);
                let plain = Charge { lease: None, ..all.charge.clone() };
                let batch = Batch { charges: &[plain], effective_from: RULES, now: Micros(now) };
                let would_pass = memory.decide(&batch).unwrap()[0].outcome == Outcome::Allowed;
                let worker = usize::try_from(all.random.next()).unwrap() % workers;
                match all.spend(worker, now) {
                    Answer::Leased => leased += 1,
                    Answer::Allowed => {}
                    Answer::Denied => unneeded += u32::from(would_pass),
                }
            }
            assert!(leased * 100 >= requests * least, "{key}: {leased} of {requests} were decided from leases");
            assert_eq!(unneeded, 0, "{key}: requests were denied for the sake of leases");
        }
    }
}

/// The id stays busy at another worker.
#[test]
fn tokens_of_a_worker_that_dies_count_until_its_lease_ends() {
    let server = Server::start();
    let numbers = Numbers::new(1_000, 1_000, SECOND).unwrap();
    let mut all = Workers::new(&server, "C", &numbers, LeaseTerms { tokens: 50, span: 100_000 }, 2, Random(1));
    let (mut now, mut held) = (START, 0);
    let mut left = Vec::new();
    for turn in 0..1_000 {
        now += 2_000;
        all.give_back(now);
        let worker = usize::from(turn >= 200);
        assert!(all.spend(worker, now) != Answer::Denied);
        if turn >= 150 && worker == 0 && all.tables[0].tokens() > 20 {
            held = all.tables[0].tokens();
            all.tables[0] = LeaseTable::default();
        }
        if turn > 200 {
            let plain = Charge { lease: None, cost: 0, mode: Mode::Check, ..all.charge.clone() };
            left.push(server.ask(&plain, now).0.remaining + all.tables[1].tokens());
        }
    }
    // What the living worker has leased is used early, by as much as it leases at a time.
    assert!(held > 20 && left[600..].iter().all(|left| *left >= 940), "{held} {:?}", &left[600..]);
}

/// Adds up what is used, and lets it come back. If the sum never exceeds the burst, no span has more use than the burst and the
/// tokens that come back in it. A token is [`Numbers::period`] parts.
struct Meter {
    used: u128,
    at: u64,
}

impl Meter {
    fn pass(&mut self, numbers: &Numbers, tokens: u64, now: u64) {
        let back = u128::from(now - self.at) * 1_000 * u128::from(numbers.count());
        self.used = self.used.saturating_sub(back) + u128::from(tokens) * u128::from(numbers.period());
        self.at = now;
        assert!(
            self.used <= u128::from(numbers.burst()) * u128::from(numbers.period()),
            "more than {numbers} was used"
        );
    }
}

/// All workers lease what they get, use it in the last instant, and take all that the bucket has left then and when the leases have
/// ended. The server's clock may step back meanwhile.
#[test]
fn leases_that_are_used_in_their_last_instant_let_no_more_pass_than_the_limit() {
    let server = Server::start();
    let (mut late, mut at_once) = (0, 0);
    for number in 0..150 {
        let mut random = Random(number);
        let burst = 8 + random.below(200);
        let numbers = Numbers::new(burst, 1 + random.below(2 * burst), (1 + random.below(40)) * 50_000_000).unwrap();
        let terms = LeaseTerms { tokens: 50, span: 10_000 + u32::try_from(random.below(500_000)).unwrap() };
        let mut all = Workers::new(&server, &format!("B:{number}"), &numbers, terms, 3, random);
        let (mut meter, mut now) = (Meter { used: 0, at: START }, START);
        for _ in 0..4 {
            for turn in 0..60 {
                now += all.random.below(u64::from(terms.span) / 200);
                let worker = turn % 3;
                if all.tables[worker].tokens() == 0 && all.spend(worker, now) != Answer::Denied {
                    meter.pass(&numbers, 1, now);
                }
            }
            if all.random.below(3) == 0 {
                all.behind += all.random.below(1_500_000);
            }
            let leasing: Vec<usize> = (0..3).filter(|worker| all.tables[*worker].tokens() > 0).collect();
            let Some(end) = leasing.iter().map(|worker| all.ends[*worker]).min() else { continue };
            now = now.max(end - 1);
            for worker in leasing {
                while all.tables[worker].tokens() > 0 && all.spend(worker, now) == Answer::Leased {
                    meter.pass(&numbers, 1, now);
                    late += 1;
                }
            }
            for pause in [0, 1, 2 * LATENCY, all.random.below(u64::from(terms.span))] {
                now += pause;
                let plain = Charge { lease: None, cost: 0, mode: Mode::Check, ..all.charge.clone() };
                let left = server.ask(&plain, now - all.behind).0.remaining;
                let spend = Charge { cost: left, mode: Mode::Spend, ..plain };
                assert_eq!(server.ask(&spend, now - all.behind).0.outcome, Outcome::Allowed);
                meter.pass(&numbers, left, now);
                at_once += left;
            }
        }
    }
    assert!(late > 1_000 && at_once > 10_000, "{late} {at_once}");
}
