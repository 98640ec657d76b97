//! Scenarios: requests to a store with a simulated clock, and the expected answers.
//!
//! A scenario is `{case, limits, steps: [{at_ms, op, limit, id, cost, expect}]}`. `expect` asserts only the keys that it has.
//! Whatever would be read and not used fails the scenario: an unknown key, a limit that does not exist, steps without `expect`.
//!
//! A step may name the `slot` of a request in flight. Without a name, a spend takes a new slot, as each request does, and a
//! refund frees the slot that was taken last.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use super::super::print::joined;
use super::buckets::{connected, forget};
use super::step_answer::{StepAnswer, UNLIMITED, answer, binding, compare};
use super::unread::{self, given};
use crate::config::{self, Severity};
use crate::engine::algorithms::charge::{Bucket, Charge, Dated, Input, Mode, Slot};
use crate::engine::algorithms::decision::{Decision, Decisions, Detail, Outcome};
use crate::engine::algorithms::micros::Micros;
use crate::engine::charging::plan::{DenialReason, LimitDenial, Plan};
use crate::engine::charging::terms::Terms;
use crate::engine::deciding::{Decided, Deciding};
use crate::engine::limit::fingerprint::Fingerprinter;
use crate::engine::limit::key::opaque;
use crate::engine::limit::overrides::OverrideLookup;
use crate::engine::limit::rules::Rules;
use crate::engine::limit::{Limit, LimitMode};
use crate::engine::stable_hash::stable;
use crate::message::unique_json;
use crate::store::{Batch, Store, StoreError};

/// Ids need no secret here.
const FINGERPRINTER: Fingerprinter = Fingerprinter::new((0, 0));

/// The wall clock at `at_ms: 0` if a scenario does not set it: an instant of 2023, so that the integers are as large as in
/// production.
const EPOCH_MS: u64 = 1_700_000_000_000;

/// Plays scenarios on one store.
pub(super) struct Player {
    store: Store,
    clock: Arc<AtomicU64>,
    /// Keeps the buckets of scenarios apart, and those of other runs on the same Redis.
    run: String,
    played: u64,
    slots: Slots,
    /// The ends of bans, by limit and by the key of the bucket.
    bans: HashMap<(u32, String), Micros>,
}

/// The names of slots.
#[derive(Default)]
struct Slots {
    named: u64,
    /// Those that are taken, with the keys of their buckets.
    taken: Vec<(String, Slot)>,
}

impl Player {
    /// Waits until the store, which decides by `clock`, is connected.
    pub(super) async fn connect(store: Store, clock: Arc<AtomicU64>) -> Result<Self, String> {
        let store = connected(store).await?;
        Ok(Self {
            store,
            clock,
            run: format!("test-{}", std::process::id()),
            played: 0,
            slots: Slots::default(),
            bans: HashMap::new(),
        })
    }

    /// Plays the scenario on one line, unless the filter excludes it. Returns its name; the error is its first difference.
    pub(super) async fn play_line(&mut self, line: &str, filter: Option<&str>) -> Option<(String, Result<(), String>)> {
        const UNNAMED: &str = "unnamed";
        let scenario = match unique_json::parse(line.as_bytes()) {
            Ok(scenario) => scenario,
            Err(error) => return Some((UNNAMED.to_owned(), Err(format!("invalid JSON: {error}")))),
        };
        let case = scenario["case"].as_str().unwrap_or(UNNAMED);
        if filter.is_some_and(|filter| !case.contains(filter)) {
            return None;
        }
        let played = self.play(&scenario).await;
        Some((case.to_owned(), played))
    }

    /// Plays one scenario. The error is the first difference.
    async fn play(&mut self, scenario: &Value) -> Result<(), String> {
        self.played += 1;
        unread::check_scenario(scenario)?;
        let epoch = Micros::from_millis(given(scenario, "epoch_ms", Value::as_u64)?.unwrap_or(EPOCH_MS));
        let tolerance = |value: &Value| value.as_f64().filter(|tolerance| *tolerance >= 0.0);
        let tolerance = given(scenario, "tolerance_ms", tolerance)?.unwrap_or(0.0);
        let mut rules = compile(&scenario["limits"], epoch)?;
        let steps = scenario["steps"].as_array().ok_or("`steps` must be a list")?;
        let mut used = Vec::new();
        let mut result = Ok(());
        for (number, step) in (1..).zip(steps) {
            let answer = match unread::check_step(step) {
                Ok(()) => self.step(&mut rules, step, epoch, &mut used).await,
                Err(mistake) => Err(mistake),
            };
            result = answer.and_then(|answer| compare(&answer, &step["expect"], tolerance));
            if let Err(difference) = result {
                let op = step["op"].as_str().unwrap_or("no `op`");
                result = Err(format!("step {number} ({op} at {} ms): {difference}", step["at_ms"]));
                break;
            }
        }
        forget(&self.store, used).await;
        result
    }

    async fn step(
        &mut self,
        rules: &mut Rules,
        step: &Value,
        epoch: Micros,
        used: &mut Vec<Charge>,
    ) -> Result<StepAnswer, String> {
        let now = epoch.after(micros(&step["at_ms"])?);
        self.clock.store(now.0, Ordering::Relaxed);
        let op = step["op"].as_str().unwrap_or_default();
        let mode = match op {
            "limits" => {
                *rules = compile(&step["limits"], now)?;
                return Ok(Ok(json!({})));
            }
            "batch" => None,
            "batch_refund" => Some(Mode::Refund),
            "batch_reset" => Some(Mode::Reset),
            "concurrent_spend" => Some(Mode::Spend),
            op => Some(mode_of(op).ok_or_else(|| format!("unknown operation `{op}`"))?),
        };
        let batch = step["charges"].as_array().map_or(&[][..], Vec::as_slice);
        let charges = if op.starts_with("batch") { batch } else { std::slice::from_ref(step) };
        unread::check_limits(rules, charges)?;
        let plan = match self.plan(rules, charges, mode) {
            Ok(plan) => plan,
            Err(reason) => return Ok(Err(reason)),
        };
        used.extend(plan.charges.iter().cloned());
        if op == "concurrent_spend" {
            let calls = step["n"].as_u64().ok_or("`n` must be a number")?;
            if plan.is_denied() {
                return Ok(Ok(json!({"allowed_count": 0, "denied_count": calls})));
            }
            return self.spend_concurrently(rules, &plan, now, calls).await;
        }
        self.decide(rules, plan, now, used).await
    }

    async fn decide(
        &mut self,
        rules: &Rules,
        plan: Plan,
        now: Micros,
        used: &mut Vec<Charge>,
    ) -> Result<StepAnswer, String> {
        let effective_from = rules.effective_from;
        let mut deciding = Deciding::new(plan);
        if let Some([charges, _]) = deciding.round() {
            match self.store.decide(&Batch { charges, effective_from, now }).await {
                Ok(decisions) => {
                    self.slots.decided(charges, &decisions);
                    deciding.answered(decisions);
                }
                Err(StoreError::Duplicate) => return Ok(Err(StoreError::Duplicate.to_string())),
                Err(error) => return Err(error.to_string()),
            }
        }
        let Decided { verdict, due, bans, .. } = deciding.conclude(rules);
        for ban in bans.iter().filter(|ban| ban.is_enforced) {
            let claim = ban.claim(rules);
            let batch = |charges| Batch { charges, effective_from, now };
            let claimed = self.store.decide(&batch(&claim)).await.map_err(|error| error.to_string())?;
            let Some((block, counting)) = ban.block(rules, &claimed, now) else { continue };
            for charge in &counting {
                let batch = batch(std::slice::from_ref(charge));
                self.store.decide(&batch).await.map_err(|error| error.to_string())?;
            }
            used.extend(claim.into_iter().chain(counting));
            let banned = deciding.plan.charges.iter().position(|charge| charge.origin.limit == ban.limit);
            let detail = Detail::Counted(block.until.since(now));
            deciding.decisions.details.extend(banned.map(|place| (place, detail)));
            self.bans.insert((ban.limit, block.key), block.until);
        }
        if !due.is_empty() {
            let batch = Batch { charges: &due, effective_from, now };
            self.store.decide(&batch).await.map_err(|error| error.to_string())?;
        }
        let Deciding { plan, decisions, .. } = &deciding;
        if let Some(denial) = plan.denials.iter().find(|denial| denial.enforced) {
            return Ok(Ok(answer(rules, Some(denial.limit), &denial.reason.decision(), None)));
        }
        if plan.charges.is_empty() {
            // Without a limit that applies, there is nothing left or to wait for that could be compared.
            let nothing = || json!({"allowed": true});
            let unlimited = || json!({"allowed": true, "remaining": UNLIMITED, "retry_after_ms": 0, "reset_ms": 0});
            return Ok(Ok(if plan.unlimited.is_empty() { nothing() } else { unlimited() }));
        }
        let mut values = binding(rules, plan, decisions);
        if !verdict.candidates.is_empty() {
            values["candidate_denied"] = verdict.candidate_decisions().any(|decision| decision.is_denied).into();
        }
        Ok(Ok(values))
    }

    /// Plans charges in this mode, or each in its own. The error is one that a scenario may expect.
    fn plan(&mut self, rules: &Rules, charges: &[Value], mode: Option<Mode>) -> Result<Plan, String> {
        let mut plan = Plan::default();
        for charge in charges {
            let (Some(name), Some(id)) = (charge["limit"].as_str(), charge["id"].as_str()) else {
                return Err("a charge needs `limit` and `id`".into());
            };
            let cost = charge.get("cost").filter(|cost| !cost.is_null()).map_or(Some(1), Value::as_u64);
            let cost = cost.ok_or_else(|| format!("the cost {} is not a whole number of tokens", charge["cost"]))?;
            let mode = match (mode, charge["mode"].as_str().unwrap_or("spend")) {
                (Some(mode), _) => mode,
                (None, unread::ALLOW_ONLY) => continue,
                (None, word) => mode_of(word).ok_or_else(|| format!("unknown mode `{word}`"))?,
            };
            let limit = (0..).zip(rules.limits()).find(|(_, limit)| limit.name == name);
            let Some((place, limit)) = limit else { return Err(format!("unknown limit `{name}`")) };
            let first = plan.charges.len();
            self.charge(&mut plan, rules, (place, limit), id, (cost, mode));
            if let Some(ago) = charge["taken_ms_ago"].as_u64() {
                let taken = Dated::At(Micros(self.clock.load(Ordering::Relaxed)).before(Micros::from_millis(ago)));
                plan.charges.iter_mut().skip(first).for_each(|charge| charge.dated = taken);
            }
            self.slots.name(&mut plan.charges, charge["slot"].as_str());
        }
        Ok(plan)
    }

    fn charge(
        &self,
        plan: &mut Plan,
        rules: &Rules,
        (place, limit): (u32, &Limit),
        id: &str,
        (cost, mode): (u64, Mode),
    ) {
        if limit.mode == LimitMode::Off {
            return;
        }
        // A share of ids is one of the ids as they are written, whatever the run.
        let by_id = OverrideLookup { prefixes: &[], client: None, text: &|| id.to_owned(), now: Micros(0) };
        let terms = Terms::of(rules, place, limit, Bucket::new(id, 0), &by_id, None);
        if plan.admit(&terms, mode) {
            let short = format!("{}.{}.{}", self.run, self.played, limit.short);
            let bucket = Bucket { tag: limit.tag, ..opaque(&short, id, &FINGERPRINTER) };
            let now = Micros(self.clock.load(Ordering::Relaxed));
            if let Some(until) =
                self.bans.get(&(place, bucket.key.clone())).filter(|until| **until > now && mode.can_deny())
            {
                let denial = LimitDenial {
                    limit: place,
                    enforced: terms.enforced,
                    reason: DenialReason::Blocked(until.since(now)),
                };
                plan.denials.push(denial);
                return;
            }
            let first = plan.charges.len();
            let charged = terms.mode(mode);
            terms.with_bucket(bucket).charge(plan, cost, charged);
            plan.ask(first, limit);
        }
    }

    async fn spend_concurrently(
        &mut self,
        rules: &Rules,
        plan: &Plan,
        now: Micros,
        calls: u64,
    ) -> Result<StepAnswer, String> {
        let mut tasks = tokio::task::JoinSet::new();
        let effective_from = rules.effective_from;
        for _ in 0..calls {
            let (store, mut charges) = (self.store.clone(), plan.charges.clone());
            charges.iter_mut().filter(|charge| charge.numbers.is_slots()).for_each(|charge| charge.input = None);
            self.slots.name(&mut charges, None);
            tasks.spawn(async move { store.decide(&Batch { charges: &charges, effective_from, now }).await });
        }
        let mut denied = 0;
        while let Some(answer) = tasks.join_next().await {
            let decisions = answer.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
            denied += u64::from(decisions.iter().any(Decision::is_denied));
        }
        Ok(Ok(json!({"allowed_count": calls - denied, "denied_count": denied})))
    }
}

impl Slots {
    /// Names the slots of charges that have none.
    fn name(&mut self, charges: &mut [Charge], given: Option<&str>) {
        for charge in charges.iter_mut().filter(|charge| charge.numbers.is_slots() && charge.input.is_none()) {
            let slot = match given {
                Some(given) => Some(Slot(u128::from(stable(given.as_bytes())))),
                None if charge.mode == Mode::Refund => {
                    let last = self.taken.iter().rfind(|(key, _)| *key == charge.bucket.key);
                    last.map(|(_, slot)| *slot)
                }
                None => {
                    self.named += 1;
                    Some(Slot(u128::from(self.named) << 64))
                }
            };
            charge.input = slot.map(|slot| Box::new(Input::Slot(slot)));
        }
    }

    /// Remembers which slots were taken and freed.
    fn decided(&mut self, charges: &[Charge], decisions: &Decisions) {
        if decisions.iter().any(Decision::is_denied) {
            return;
        }
        for (charge, decision) in charges.iter().zip(decisions.iter()) {
            if decision.outcome == Outcome::Allowed
                && let Some(Input::Slot(slot)) = charge.input.as_deref()
            {
                self.taken.retain(|(_, other)| other != slot);
                if matches!(charge.mode, Mode::Spend | Mode::SpendOnly | Mode::SpendUpTo) {
                    self.taken.push((charge.bucket.key.clone(), *slot));
                }
            }
        }
    }
}

fn micros(milliseconds: &Value) -> Result<Micros, &'static str> {
    let milliseconds = milliseconds.as_f64().filter(|milliseconds| (0.0..9e12).contains(milliseconds));
    let milliseconds = milliseconds.ok_or("`at_ms` must be a time")?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range was checked above")]
    Ok(Micros((milliseconds * 1_000.0).round() as u64))
}

/// Compiles `limits`: JSON is YAML, so a scenario says exactly what a rules file says.
fn compile(limits: &Value, effective_from: Micros) -> Result<Rules, String> {
    let source = config::Source { name: "limits".into(), text: json!({ "limits": limits }).to_string() };
    let sources = config::Sources { limits: Some(source), ..config::Sources::default() };
    let loaded = config::load(&sources, FINGERPRINTER, effective_from);
    loaded.rules.ok_or_else(|| {
        let problems = loaded.report.problems.iter().filter(|problem| problem.severity == Severity::Error);
        format!("the limits are invalid: {}", joined(problems.map(|problem| &problem.message), "; "))
    })
}

fn mode_of(word: &str) -> Option<Mode> {
    Some(match word {
        "spend" => Mode::Spend,
        "check" => Mode::Check,
        "spend_only" => Mode::SpendOnly,
        "refund" => Mode::Refund,
        "reset" => Mode::Reset,
        _ => return None,
    })
}
