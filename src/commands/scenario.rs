//! Scenarios: cases of what a store answers, with a clock of their own.
//!
//! A case is `{case, limits, steps: [{at_ms, op, limit, id, cost, expect}]}`. What `expect` does not name is not
//! asserted, and a key that it names and this version does not know fails the case.
//!
//! A step may name the `slot` of a request in flight. A spend without takes one of a new name, as every request does, and a
//! refund without gives back the one that was taken last.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};

use crate::config::{self, Severity};
use crate::engine::algorithms::charge::{Charge, Input, Mode, Slot};
use crate::engine::algorithms::decision::{Decision, Decisions, Detail, Elevation, Outcome};
use crate::engine::algorithms::micros::Micros;
use crate::engine::rules::allowance::Allowance;
use crate::engine::rules::fingerprint::{Fingerprinter, stable};
use crate::engine::rules::key::opaque;
use crate::engine::rules::limit::Limit;
use crate::engine::rules::plan::{ChargeOrigin, DenialReason, LimitDenial, Plan};
use crate::engine::rules::rule_set::Rules;
use crate::store::{Batch, Store, StoreError};

/// The wall clock at `at_ms: 0`, where a scenario does not care: an instant of 2023, so that the integers are as large
/// as in production.
const EPOCH_MS: u64 = 1_700_000_000_000;

/// How long a store may take to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Ids need no secret here.
const FINGERPRINTER: Fingerprinter = Fingerprinter::new((0, 0));

/// Plays scenarios on one store.
pub(super) struct Player {
    store: Store,
    clock: Arc<AtomicU64>,
    /// Keeps the buckets of cases apart, and those of other runs on the same Redis.
    run: String,
    cases: u64,
    slots: Slots,
}

/// The names of slots: how many were given, and those that are held, with the keys of their buckets.
#[derive(Default)]
struct Slots {
    given: Cell<u64>,
    held: RefCell<Vec<(String, Slot)>>,
}

/// What a step came to.
enum Answer {
    Decided {
        decision: Decision,
        denied_by: Option<String>,
        elevation: Option<Elevation>,
    },
    Counted {
        allowed: usize,
        denied: usize,
    },
    /// Every limit was disabled or unlimited: no store was asked.
    Unasked,
    Mistake(String),
    Done,
}

impl Player {
    /// A player on a store that decides by `clock`, once it is connected.
    pub(super) async fn connect(store: Store, clock: Arc<AtomicU64>) -> Result<Self, String> {
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        while let Err(error) = store.ready() {
            if Instant::now() > deadline {
                return Err(error);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(Self { store, clock, run: format!("test-{}", std::process::id()), cases: 0, slots: Slots::default() })
    }

    /// Plays one case; the error tells the first difference.
    pub(super) async fn play(&mut self, scenario: &Value) -> Result<(), String> {
        self.cases += 1;
        let epoch = Micros::from_millis(scenario["epoch_ms"].as_u64().unwrap_or(EPOCH_MS));
        let tolerance = scenario["tolerance_ms"].as_f64().unwrap_or(0.0);
        let mut rules = compile(&scenario["limits"], epoch)?;
        let steps = scenario["steps"].as_array().ok_or("`steps` must be a list")?;
        let mut used = Vec::new();
        let mut result = Ok(());
        for (number, step) in (1..).zip(steps) {
            let now = at(epoch, step).map_err(|error| format!("step {number}: {error}"))?;
            self.clock.store(now.0, Ordering::Relaxed);
            let answer = self.step(&mut rules, step, now, &mut used).await;
            result = answer.and_then(|answer| compare(&answer, &step["expect"], tolerance));
            if let Err(what) = result {
                result = Err(format!(
                    "step {number} ({} at {} ms): {what}",
                    step["op"].as_str().unwrap_or("no `op`"),
                    step["at_ms"]
                ));
                break;
            }
        }
        self.forget(used).await;
        result
    }

    async fn step(
        &self,
        rules: &mut Rules,
        step: &Value,
        now: Micros,
        used: &mut Vec<Charge>,
    ) -> Result<Answer, String> {
        let op = step["op"].as_str().unwrap_or_default();
        let modes = |mode: Mode| move |_: &Value| Ok::<_, String>(Some(mode));
        let single = std::slice::from_ref(step);
        let charges = step["charges"].as_array().map_or(&[][..], Vec::as_slice);
        let plan = match op {
            "limits" => {
                *rules = compile(&step["limits"], now)?;
                return Ok(Answer::Done);
            }
            "spend" | "concurrent_spend" => self.plan(rules, single, modes(Mode::Spend)),
            "check" => self.plan(rules, single, modes(Mode::Check)),
            "spend_only" => self.plan(rules, single, modes(Mode::SpendOnly)),
            "refund" => self.plan(rules, single, modes(Mode::Refund)),
            "reset" => self.plan(rules, single, modes(Mode::Reset)),
            "batch" => self.plan(rules, charges, mode_of),
            "batch_refund" => self.plan(rules, charges, modes(Mode::Refund)),
            "batch_reset" => self.plan(rules, charges, modes(Mode::Reset)),
            _ => return Err(format!("unknown operation `{op}`")),
        };
        let plan = match plan {
            Ok(plan) => plan,
            Err(mistake) => return Ok(Answer::Mistake(mistake)),
        };
        used.extend(plan.charges.iter().cloned());
        if op == "concurrent_spend" {
            return self.at_once(rules, plan, now, step["n"].as_u64().ok_or("`n` must be a number")?).await;
        }
        if let Some(refused) = plan.denials.first() {
            let denied_by = rules.limit(refused.limit).map(|limit| limit.name.clone());
            return Ok(Answer::Decided { decision: Decision::never(), denied_by, elevation: None });
        }
        if plan.charges.is_empty() {
            return Ok(Answer::Unasked);
        }
        let batch = Batch { charges: &plan.charges, effective_from: rules.effective_from(), now };
        match self.store.decide(&batch).await {
            Ok(mut decisions) => {
                self.slots.decided(&plan.charges, &decisions);
                plan.correct(&mut decisions);
                Ok(bind(rules, &plan, &decisions))
            }
            Err(StoreError::Duplicate) => Ok(Answer::Mistake(StoreError::Duplicate.to_string())),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The charges of a step; `None` as a mode is a member that is only there to be allowed. The error is a mistake of
    /// the caller, which a scenario may expect.
    fn plan(
        &self,
        rules: &Rules,
        charges: &[Value],
        mode: impl Fn(&Value) -> Result<Option<Mode>, String>,
    ) -> Result<Plan, String> {
        let mut plan = Plan::default();
        for charge in charges {
            let (Some(name), Some(id)) = (charge["limit"].as_str(), charge["id"].as_str()) else {
                return Err("a charge needs `limit` and `id`".into());
            };
            let cost = match &charge["cost"] {
                Value::Null => 1,
                cost => cost.as_u64().ok_or_else(|| format!("the cost {cost} is not a whole number of tokens"))?,
            };
            let Some(mode) = mode(charge)? else { continue };
            let limit = (0..).zip(rules.limits()).find(|(_, limit)| limit.name == name);
            let Some((place, limit)) = limit else { continue };
            let first = plan.charges.len();
            self.charge(&mut plan, place, limit, id, cost, mode);
            if let Some(ago) = charge["taken_ms_ago"].as_u64() {
                let input = || Some(Box::new(Input::TakenAgo(Micros::from_millis(ago))));
                plan.charges.iter_mut().skip(first).for_each(|charge| charge.input = input());
            }
            self.slots.name(&mut plan.charges, charge["slot"].as_str());
        }
        Ok(plan)
    }

    fn charge(&self, plan: &mut Plan, place: u32, limit: &Limit, id: &str, cost: u64, mode: Mode) {
        let origin = ChargeOrigin { limit: place, window: 0, enforced: mode != Mode::SpendOnly };
        match &limit.allowance {
            Allowance::Disabled => {}
            Allowance::Unlimited => plan.unlimited.push(place),
            Allowance::Deny => {
                plan.denials.push(LimitDenial { limit: place, enforced: true, reason: DenialReason::Deny });
            }
            allowance => {
                let bucket = opaque(&format!("{}.{}.{}", self.run, self.cases, limit.short), id, &FINGERPRINTER);
                let first = plan.charges.len();
                plan.add_allowance(allowance, bucket, cost, limit.reporting(mode), origin);
                plan.ask(first, limit);
            }
        }
    }

    async fn at_once(&self, rules: &Rules, plan: Plan, now: Micros, calls: u64) -> Result<Answer, String> {
        let mut tasks = tokio::task::JoinSet::new();
        let effective_from = rules.effective_from();
        for _ in 0..calls {
            let (store, mut charges) = (self.store.clone(), plan.charges.clone());
            charges.iter_mut().for_each(|charge| charge.input = None);
            self.slots.name(&mut charges, None);
            tasks.spawn(async move { store.decide(&Batch { charges: &charges, effective_from, now }).await });
        }
        let (mut allowed, mut denied) = (0, 0);
        while let Some(answer) = tasks.join_next().await {
            let decisions = answer.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
            let refused = decisions.iter().any(Decision::is_denied);
            *(if refused { &mut denied } else { &mut allowed }) += 1;
        }
        Ok(Answer::Counted { allowed, denied })
    }

    /// Leaves nothing behind in a store that outlives the run.
    async fn forget(&self, mut used: Vec<Charge>) {
        used.sort_by(|a, b| a.bucket.key.cmp(&b.bucket.key));
        used.dedup_by(|a, b| a.bucket == b.bucket);
        for charge in &mut used {
            charge.mode = Mode::Reset;
            if charge.elevated().is_some() {
                // Plain numbers leave nothing of what was switched on.
                charge.input = None;
            }
        }
        let _ = self.store.decide(&Batch { charges: &used, effective_from: Micros(0), now: Micros(0) }).await;
    }
}

impl Slots {
    /// Names the slots of charges that have none.
    fn name(&self, charges: &mut [Charge], given: Option<&str>) {
        for charge in charges.iter_mut().filter(|charge| charge.numbers.is_slots() && charge.input.is_none()) {
            let last = |held: &Vec<(String, Slot)>| {
                held.iter().rev().find(|(key, _)| *key == charge.bucket.key).map(|(_, slot)| *slot)
            };
            let name = match given {
                Some(given) => Some(Slot(u128::from(stable(given.as_bytes())))),
                None if charge.mode == Mode::Refund => last(&self.held.borrow()),
                None => {
                    self.given.set(self.given.get() + 1);
                    Some(Slot(u128::from(self.given.get()) << 64))
                }
            };
            charge.input = name.map(|name| Box::new(Input::Slot(name)));
        }
    }

    /// Remembers what was taken and given back.
    fn decided(&self, charges: &[Charge], decisions: &Decisions) {
        let is_denied = decisions.iter().any(Decision::is_denied);
        for charge in charges.iter().zip(decisions.iter()).filter(|(_, decision)| decision.outcome == Outcome::Allowed)
        {
            if let Some(Input::Slot(slot)) = charge.0.input.as_deref().filter(|_| !is_denied) {
                let mut held = self.held.borrow_mut();
                held.retain(|(_, other)| other != slot);
                if matches!(charge.0.mode, Mode::Spend | Mode::SpendOnly | Mode::SpendUpTo) {
                    held.push((charge.0.bucket.key.clone(), *slot));
                }
            }
        }
    }
}

/// The instant of a step.
fn at(epoch: Micros, step: &Value) -> Result<Micros, String> {
    let millis =
        step["at_ms"].as_f64().filter(|millis| (0.0..9e12).contains(millis)).ok_or("`at_ms` must be a time")?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range was checked above")]
    let span = (millis * 1_000.0).round() as u64;
    Ok(Micros(epoch.0 + span))
}

/// Compiles `limits`: JSON is YAML, so a scenario says exactly what a rules file says.
fn compile(limits: &Value, effective_from: Micros) -> Result<Rules, String> {
    let text = Value::Object(Map::from_iter([("limits".to_owned(), limits.clone())])).to_string();
    let source = config::Source { name: "limits".into(), text };
    let sources = config::Sources { limits: Some(source), ..config::Sources::default() };
    let loaded = config::load(&sources, FINGERPRINTER, effective_from);
    loaded.rules.ok_or_else(|| {
        let problems = loaded.report.problems.iter().filter(|problem| problem.severity == Severity::Error);
        let messages: Vec<&str> = problems.map(|problem| problem.message.as_str()).collect();
        format!("the limits are invalid: {}", messages.join("; "))
    })
}

fn mode_of(charge: &Value) -> Result<Option<Mode>, String> {
    Ok(Some(match charge["mode"].as_str().unwrap_or("spend") {
        "spend" => Mode::Spend,
        "check" => Mode::Check,
        "spend_only" => Mode::SpendOnly,
        "refund" => Mode::Refund,
        "reset" => Mode::Reset,
        "allow_only" => return Ok(None),
        other => return Err(format!("unknown mode `{other}`")),
    }))
}

/// The decision that binds: spend-only members have no say beside others, and a refund that found nothing to give back
/// has none beside one that did.
fn bind(rules: &Rules, plan: &Plan, decisions: &Decisions) -> Answer {
    let all = || plan.charges.iter().zip(&plan.origins).zip(decisions.iter());
    let strictest = |members: &mut dyn Iterator<Item = ((&Charge, &ChargeOrigin), &Decision)>| {
        members.max_by(|a, b| a.1.strictness(b.1)).map(|((_, origin), decision)| (origin.limit, *decision))
    };
    let weighty = |member: &((&Charge, &ChargeOrigin), &Decision)| match member.0.0.mode {
        Mode::SpendOnly | Mode::SpendUpTo => false,
        Mode::Refund => member.1.outcome == Outcome::Allowed,
        _ => true,
    };
    let Some((limit, decision)) = strictest(&mut all().filter(weighty)).or_else(|| strictest(&mut all())) else {
        return Answer::Unasked;
    };
    let name = rules.limit(limit).map(|limit| limit.name.clone());
    let mut decision = decision;
    let only_spends = |charge: &Charge| matches!(charge.mode, Mode::SpendOnly | Mode::SpendUpTo);
    if decision.outcome == Outcome::Unchanged && plan.charges.iter().all(only_spends) {
        // A spend-only charge that does not fit still lets the request pass.
        decision.outcome = Outcome::Allowed;
    }
    let place = plan.origins.iter().position(|origin| origin.limit == limit).unwrap_or_default();
    let elevation = decisions.detail(place).and_then(Detail::elevation);
    Answer::Decided { decision, denied_by: name.filter(|_| decision.is_denied()), elevation }
}

fn compare(answer: &Answer, expect: &Value, tolerance: f64) -> Result<(), String> {
    let Some(expect) = expect.as_object() else { return Ok(()) };
    if let Answer::Mistake(mistake) = answer {
        let expected = expect.get("error").is_some_and(|error| *error == Value::Bool(true));
        return if expected { Ok(()) } else { Err(format!("rejected as a mistake: {mistake}")) };
    }
    for (key, expected) in expect {
        let found = found(answer, key)?;
        if !same(&found, expected, tolerance) {
            return Err(format!("{key} is {found}, expected {expected}"));
        }
    }
    Ok(())
}

/// What an answer says of one key of `expect`; null where it says nothing, as of a time that never comes.
fn found(answer: &Answer, key: &str) -> Result<Value, String> {
    let time = |span: Option<Micros>| span.map_or(Value::Null, |span| millis(span).into());
    Ok(match (key, answer) {
        ("allowed", Answer::Decided { decision, .. }) => (decision.outcome == Outcome::Allowed).into(),
        ("remaining", Answer::Decided { decision, .. }) => decision.remaining.into(),
        ("retry_after_ms", Answer::Decided { decision, .. }) => time(decision.retry_after),
        ("reset_ms", Answer::Decided { decision, .. }) => time(decision.reset_after),
        ("denied_by", Answer::Decided { denied_by, .. }) => denied_by.clone().into(),
        ("triggered", Answer::Decided { elevation: Some(elevation), .. }) => elevation.triggered.into(),
        ("activated", Answer::Decided { elevation: Some(elevation), .. }) => elevation.active.into(),
        // -1 unless this charge has switched the elevated numbers on, as limitd says it.
        ("quota_remaining", Answer::Decided { elevation: Some(elevation), .. }) => {
            elevation.activations_left.map_or_else(|| (-1).into(), Value::from)
        }
        ("allowed_count", Answer::Counted { allowed, .. }) => (*allowed).into(),
        ("denied_count", Answer::Counted { denied, .. }) => (*denied).into(),
        ("allowed", Answer::Unasked) => true.into(),
        ("retry_after_ms" | "reset_ms", Answer::Unasked) => 0.into(),
        // However many tokens a case expects to remain, a bucket without a limit has them.
        ("remaining", Answer::Unasked) => "unlimited".into(),
        ("error", _) => false.into(),
        _ => return Err(format!("`{key}` cannot be compared here")),
    })
}

fn same(found: &Value, expected: &Value, tolerance: f64) -> bool {
    // A time that never comes is written null, or -1 as redis-cell does.
    let never = found.is_null() && expected.as_i64() == Some(-1);
    let unlimited = found == "unlimited" && expected.is_u64();
    match (found.as_f64(), expected.as_f64()) {
        // Half a nanosecond: doubles hold milliseconds no more finely.
        (Some(found), Some(expected)) => (found - expected).abs() <= tolerance + 5e-7,
        _ => found == expected || never || unlimited,
    }
}

#[expect(clippy::cast_precision_loss, reason = "spans are below 2^53 microseconds")]
fn millis(span: Micros) -> f64 {
    span.0 as f64 / 1_000.0
}
