//! The ids that limits in shadow and candidates would deny: a list for each, which reloads keep that leave its limit alone.

use std::collections::HashMap;
use std::sync::Arc;

use crate::engine::limit::candidate::Candidate;
use crate::engine::limit::rules::Rules;
use crate::engine::limit::{Limit, LimitMode, WHOLE_SHARE};
use crate::telemetry::most_denied::DenialKind;
use crate::telemetry::would_deny::{ListCount, WouldDeny};

/// The lists of all limits, in the order of the rules.
#[derive(Debug)]
pub(super) struct WouldDenyLists {
    limits: Vec<LimitLists>,
    count: ListCount,
}

/// The lists of a limit. A limit that is enforced for all ids has no list.
#[derive(Debug, Default)]
struct LimitLists {
    shadow: Option<Arc<WouldDeny>>,
    /// In the order of the candidates.
    candidates: Vec<Arc<WouldDeny>>,
}

impl WouldDenyLists {
    pub(super) fn new(rules: &Rules) -> Self {
        Self::begin(rules, ListCount::default(), |_| None)
    }

    /// Returns the lists of the next rules. `last` are the rules of these lists.
    pub(super) fn next(&self, last: &Rules, next: &Rules) -> Self {
        let limits =
            all(last).zip(&self.limits).filter(|(_, lists)| lists.shadow.is_some() || !lists.candidates.is_empty());
        let known: HashMap<&str, (&Limit, &LimitLists)> =
            limits.map(|(limit, lists)| (limit.name.as_str(), (limit, lists))).collect();
        Self::begin(next, self.count.clone(), |limit| {
            let (last, lists) = known.get(limit.name.as_str())?;
            covers_the_same(last, limit).then_some((*last, *lists))
        })
    }

    /// `known` returns the last form of a limit with its lists, if it covers the same requests and ids.
    fn begin<'a>(
        rules: &Rules,
        count: ListCount,
        known: impl Fn(&Limit) -> Option<(&'a Limit, &'a LimitLists)>,
    ) -> Self {
        let new = || Arc::new(WouldDeny::new(rules.effective_from, count.clone()));
        let kept = |list: &Arc<WouldDeny>| (!list.lacks_room()).then(|| list.clone());
        let lists = |limit: &Limit| {
            let has_shadow = limit.mode != LimitMode::Off && !(limit.is_enforced() && limit.enforce_for >= WHOLE_SHARE);
            if !has_shadow && limit.candidates.is_empty() {
                return LimitLists::default();
            }
            let known = known(limit);
            let shadow = || {
                let (last, lists) = known?;
                let is_same = (&last.allowance, last.is_enforced()) == (&limit.allowance, limit.is_enforced());
                lists.shadow.as_ref().filter(|_| is_same).and_then(kept)
            };
            let candidate = |candidate: &Candidate| {
                let (last, lists) = known?;
                let is_same =
                    |last: &Candidate| (&last.name, &last.allowance) == (&candidate.name, &candidate.allowance);
                lists.candidates.get(last.candidates.iter().position(is_same)?).and_then(kept)
            };
            LimitLists {
                shadow: has_shadow.then(|| shadow().unwrap_or_else(new)),
                candidates: limit.candidates.iter().map(|one| candidate(one).unwrap_or_else(new)).collect(),
            }
        };
        Self { limits: all(rules).map(lists).collect(), count }
    }

    /// The list of what a limit, given by its index in the rules, or its candidate of this index would deny.
    pub(super) fn of(&self, limit: u32, kind: DenialKind, candidate: Option<u8>) -> Option<&WouldDeny> {
        let lists = self.limits.get(limit as usize)?;
        match kind {
            DenialKind::Denied => None,
            DenialKind::Shadow => lists.shadow.as_deref(),
            DenialKind::Candidate => Some(lists.candidates.get(usize::from(candidate?))?),
        }
    }
}

fn all(rules: &Rules) -> impl Iterator<Item = &Limit> {
    rules.limits().iter().chain([rules.carried().1])
}

/// Returns whether both cover the same requests and charge them to the same ids. Conditions have regular expressions, which only their
/// text compares.
fn covers_the_same(last: &Limit, next: &Limit) -> bool {
    let text = |limit: &Limit| format!("{:?}", (&limit.conditions, &limit.by, &limit.cost));
    text(last) == text(next)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::rc::Rc;
    use std::time::Instant;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use tokio::runtime::Builder;

    use super::super::operator::{Operator, WouldBeDeniedIds};
    use super::super::{DecisionRequest, Limiter, Shared};
    use super::*;
    use crate::clock::Clock;
    use crate::engine::algorithms::micros::Micros;
    use crate::engine::algorithms::numbers::Numbers;
    use crate::engine::deciding::DecisionSubject;
    use crate::engine::deciding::candidate::CandidateDecision;
    use crate::engine::limit::allowance::Allowance;
    use crate::engine::limit::fingerprint::Fingerprinter;
    use crate::engine::limit::identity::Fallback;
    use crate::engine::limit::{Cost, StoreErrorPolicy};
    use crate::engine::request::part::{Part, TypedPart};
    use crate::engine::request::value_type::ValueType;
    use crate::engine::request::{Request, sample};
    use crate::message::headers::Headers;
    use crate::store::Store;
    use crate::store::memory::MemoryStore;
    use crate::telemetry::metrics::{DecisionListener, Metrics};

    const START: Micros = Micros(1_800_000_000_000_000);

    fn numbers(burst: u64) -> Allowance {
        Allowance::Windows([Numbers::new(burst, 1, 10_000_000_000).unwrap()].into())
    }

    fn by(header: &'static str) -> Vec<TypedPart> {
        vec![TypedPart::new(Part::Header(http::HeaderName::from_static(header)), ValueType::Text)]
    }

    fn limit(name: &str, burst: u64) -> Limit {
        Limit { by: by("x-id"), allowance: numbers(burst), missing: Fallback::Deny, ..Limit::new(name) }
    }

    fn shadow(name: &str, burst: u64) -> Limit {
        Limit { mode: LimitMode::Shadow, ..limit(name, burst) }
    }

    fn tried(name: &str, burst: u64, candidate: u64) -> Limit {
        let candidate = Candidate { name: None, allowance: numbers(candidate), enforce_for: 0 };
        Limit { candidates: vec![candidate], ..limit(name, burst) }
    }

    fn rules(limits: Vec<Limit>, from: Micros) -> Rules {
        Rules::new(limits, Fingerprinter::new((1, 2)), from, Vec::new())
    }

    /// Two workers and an operator.
    struct Process {
        shared: Arc<Shared>,
        workers: [Limiter; 2],
        operator: Rc<Operator>,
    }

    impl Process {
        fn new(limits: Vec<Limit>) -> Self {
            let metrics = Arc::new(Metrics::new().unwrap());
            let shared = Arc::new(Shared::new(rules(limits, START), metrics, MemoryStore::new(1_000)));
            let store = Store::Memory(Arc::new(MemoryStore::new(1_000)));
            let workers = [0, 1].map(|_| Limiter::new(shared.clone(), store.clone()));
            let operator = Rc::new(Operator::new(shared.clone(), store, Clock::set(START)));
            Self { shared, workers, operator }
        }

        /// Returns the limits in shadow and the candidates that would deny a request.
        async fn ask(&self, worker: usize, id: Option<&str>, now: Micros) -> Vec<(String, DenialKind)> {
            let headers = Headers::from_iter(id.map(|id| ("x-id", id)));
            let request = Request { now, ..sample(&headers) };
            let subject = DecisionSubject::Request(&request);
            let asked = DecisionRequest::new(subject, DecisionListener::Proxy, Instant::now());
            let decided = self.workers[worker].decide(asked).await.unwrap();
            let name = |limit: u32| decided.view.rules().name(limit).to_owned();
            let shadow = decided.verdict.answers.iter().filter(|answer| answer.would_deny());
            let candidates = decided.verdict.candidate_decisions().filter(|decision| decision.is_denied);
            let label = |CandidateDecision { limit, candidate, .. }| {
                decided.view.rules().candidate(limit, candidate).unwrap().label(&name(limit)).into_owned()
            };
            let shadow = shadow.map(|answer| (name(answer.limit), DenialKind::Shadow));
            shadow.chain(candidates.map(|decision| (label(decision), DenialKind::Candidate))).collect()
        }
    }

    fn run<T>(test: impl Future<Output = T>) -> T {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn lists_have_what_verdicts_say(asks in vec((0..2_usize, 0..8_u8, 0..3_000_000_u64), 1..120)) {
            run(async {
                let named = |(name, burst): (&str, u64)| {
                    Candidate { name: Some(name.into()), allowance: numbers(burst), enforce_for: 0 }
                };
                let candidates = [("low", 1), ("high", 3)].map(named).to_vec();
                let several = Limit { candidates, ..limit("Several", 2) };
                let limits = vec![shadow("Watched", 2), limit("Enforced", 3), tried("Tried", 9, 1), several];
                let (process, mut now) = (Process::new(limits), START);
                let mut exact = BTreeMap::<(String, usize, Option<String>), (u64, Micros, Micros)>::new();
                for (worker, id, later) in asks {
                    now = now.after(Micros(later));
                    let id = (id > 0).then(|| format!("id-{id}"));
                    for (limit, kind) in process.ask(worker, id.as_deref(), now).await {
                        let (denied, _, last) = exact.entry((limit, kind as usize, id.clone())).or_insert((0, now, now));
                        (*denied, *last) = (*denied + 1, now);
                    }
                }
                let mut listed = BTreeMap::new();
                for WouldBeDeniedIds { limit, kind, candidate, list, names } in process.operator.would_deny(None).unwrap() {
                    prop_assert_eq!((list.since, list.others_error), (START, 0));
                    let limit = candidate.map_or(limit.clone(), |candidate| format!("{limit}:{candidate}"));
                    for (id, name) in list.ids.iter().zip(names) {
                        prop_assert_eq!(id.error, 0);
                        listed.insert((limit.clone(), kind as usize, Some(name)), (id.denied, id.first, id.last));
                    }
                    if list.others > 0 {
                        let of_nobody = exact.remove(&(limit, kind as usize, None)).map(|(denied, ..)| denied);
                        prop_assert_eq!(of_nobody, Some(list.others));
                    }
                }
                prop_assert_eq!(listed, exact);
                Ok(())
            })?;
        }
    }

    /// Each list has denied one request of one id.
    #[test]
    fn a_list_lasts_while_reloads_leave_its_limit_alone() {
        let first = || vec![shadow("Watched", 1), tried("Tried", 9, 1)];
        let with = |change: fn(&mut Limit)| {
            let mut limits = first();
            limits.iter_mut().for_each(change);
            limits
        };
        let both = ["Watched shadow", "Tried candidate"];
        for (what, next, lists, kept) in [
            ("nothing", first(), &both[..], &both[..]),
            ("the order", first().into_iter().rev().collect(), &["Tried candidate", "Watched shadow"], &both),
            ("the failure policy", with(|limit| limit.on_store_error = StoreErrorPolicy::Deny), &both, &both),
            (
                "the share",
                with(|limit| limit.enforce_for /= 10),
                &["Watched shadow", "Tried shadow", "Tried candidate"],
                &both,
            ),
            ("the limits' numbers", vec![shadow("Watched", 2), tried("Tried", 8, 1)], &both, &both[1..]),
            ("the candidate's", vec![shadow("Watched", 1), tried("Tried", 9, 2)], &both, &both[..1]),
            ("the cost", with(|limit| limit.cost = Cost::Fixed(2)), &both, &[]),
            ("the id", with(|limit| limit.by = by("x-other")), &both, &[]),
            ("the requests", with(|limit| limit.conditions.methods.push("GET".to_owned())), &both, &[]),
            ("the mode", vec![limit("Watched", 1), tried("Tried", 9, 1)], &both[1..], &both[1..]),
            ("the names", vec![shadow("Other", 1)], &["Other shadow"], &[]),
        ] {
            run(async {
                let (process, later) = (Process::new(first()), START.after(Micros(60_000_000)));
                for worker in [0, 1] {
                    process.ask(worker, Some("a"), START).await;
                }
                process.shared.replace(rules(next, later), None);
                process.shared.apply_overrides(Vec::new(), later);
                let found = process.operator.would_deny(None).unwrap();
                let name = |ids: &WouldBeDeniedIds| {
                    let kind = if ids.kind == DenialKind::Shadow { "shadow" } else { "candidate" };
                    format!("{} {kind}", ids.limit)
                };
                assert_eq!(found.iter().map(name).collect::<Vec<_>>(), lists, "{what}");
                for ids in found {
                    let expected = if kept.contains(&name(&ids).as_str()) { (1, START) } else { (0, later) };
                    assert_eq!((ids.list.ids.len(), ids.list.since), expected, "{what}: {}", name(&ids));
                }
            });
        }
    }

    /// Requests that have begun under old rules end under them.
    #[test]
    fn requests_under_old_rules_count_for_them() {
        run(async {
            let process = Process::new(vec![shadow("Watched", 1)]);
            let old = process.shared.snapshot.load_full();
            process.shared.replace(rules(vec![shadow("Watched", 2)], START.after(Micros(1))), None);
            old.would_deny.of(0, DenialKind::Shadow, None).unwrap().add(7, START, || "Watched:a".into());
            assert!(process.operator.would_deny(Some("Watched")).unwrap()[0].list.ids.is_empty());
        });
    }
}
