//! Charges by name: an application gives the limit and the id itself, because it knows its users better than a gateway.

use crate::engine::algorithms::charge::Mode;
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::queue::EntryId;
use crate::engine::charging::call_numbers::CallNumbers;
use crate::engine::charging::plan::Plan;
use crate::engine::charging::terms::Terms;
use crate::engine::limit::blocks::Blocks;
use crate::engine::limit::named_id::{GivenId, NamedIdentity};
use crate::engine::limit::overrides::OverrideLookup;
use crate::engine::limit::rules::Rules;
use crate::engine::limit::{Cost, LimitMode};

/// A charge to one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedCharge {
    /// The exact name of the limit.
    pub limit: String,
    pub id: GivenId,
    /// In tokens; `None` for the limit's cost, or 1 if a request would give the cost.
    pub cost: Option<u64>,
    /// Only if the limit has `per_call: true`.
    pub numbers: Option<CallNumbers>,
    /// The fields of a queue entry.
    pub fields: Vec<(String, String)>,
    /// The queue entry that a refund removes.
    pub entry: Option<EntryId>,
}

/// An invalid charge.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct NamedChargeError {
    /// The index of the charge.
    pub charge: usize,
    pub member: ChargeMember,
    pub reason: String,
}

/// The member of a [`NamedCharge`] that is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargeMember {
    Limit,
    /// The index of the part, if it is one.
    Id(Option<usize>),
    Numbers,
    Fields,
    Entry,
}

impl Plan {
    /// Returns the plan for charges by name. The limits' `match` is ignored, because the caller has chosen the limit;
    /// `mode` and overrides apply as for requests. Charges of blocked ids are denied, but refunds and resets are done.
    pub fn of_named(
        rules: &Rules,
        charges: &[NamedCharge],
        mode: Mode,
        now: Micros,
        blocks: Option<&Blocks>,
    ) -> Result<Self, NamedChargeError> {
        let blocks = blocks.filter(|_| mode.can_deny());
        let mut plan = Self::default();
        let mut buckets: Vec<u128> = Vec::with_capacity(charges.len());
        for (index, charge) in charges.iter().enumerate() {
            let wrong = |member, reason| NamedChargeError { charge: index, member, reason };
            let (place, limit) = rules.find(&charge.limit).map_err(|reason| wrong(ChargeMember::Limit, reason))?;
            if charge.numbers.is_some() && !limit.per_call {
                let reason =
                    format!("{} does not have `per_call: true`, so a call cannot give its own numbers", limit.name);
                return Err(wrong(ChargeMember::Numbers, reason));
            }
            limit.check_mode(mode, charge.cost).map_err(|error| wrong(ChargeMember::Limit, error.to_string()))?;
            if limit.queue.is_none() && !charge.fields.is_empty() {
                return Err(wrong(ChargeMember::Fields, format!("{} is not a queue and has no entries", limit.name)));
            }
            if limit.queue.is_none() && charge.entry.is_some() {
                return Err(wrong(ChargeMember::Entry, format!("{} is not a queue and has no entries", limit.name)));
            }
            let identified = NamedIdentity::read(rules, limit, &charge.id)
                .map_err(|(part, reason)| wrong(ChargeMember::Id(part), reason))?;
            if buckets.contains(&identified.bucket.fingerprint) {
                let reason =
                    format!("{} has two charges for this id; combine them into one with the summed cost", limit.name);
                return Err(wrong(ChargeMember::Id(None), reason));
            }
            buckets.push(identified.bucket.fingerprint);
            if limit.mode == LimitMode::Off {
                continue;
            }
            let text = || identified.text.clone();
            let id = OverrideLookup { prefixes: &identified.prefixes, client: identified.client, text: &text, now };
            let terms = Terms::of(rules, place, limit, identified.bucket, &id, blocks);
            let first = plan.charges.len();
            add(&mut plan, terms, charge, mode).map_err(|reason| wrong(ChargeMember::Numbers, reason))?;
            plan.add_input(first, limit, |queue| queue.entry_of(&charge.fields), charge.entry.as_ref())
                .map_err(|reason| wrong(ChargeMember::Fields, reason))?;
            plan.ask(first, limit);
        }
        Ok(plan)
    }
}

fn add(plan: &mut Plan, terms: Terms<'_>, charge: &NamedCharge, mode: Mode) -> Result<(), String> {
    if !plan.admit(&terms, mode) {
        return Ok(());
    }
    let cost = charge.cost.unwrap_or(match terms.limit.cost {
        Cost::Fixed(cost) => cost,
        Cost::Part(_) => terms.limit.cost_fallback.default,
        Cost::Bytes { .. } => 1,
    });
    let charged = terms.mode(mode);
    if let Some(numbers) = &charge.numbers {
        return terms.charge_by_call(plan, numbers, cost, charged);
    }
    terms.charge(plan, cost, charged);
    Ok(())
}

#[cfg(test)]
mod tests {
    use http::header::HeaderName;

    use super::*;
    use crate::engine::algorithms::algorithm::{Algorithm, Aligned};
    use crate::engine::algorithms::numbers::Numbers;
    use crate::engine::charging::plan::DenialReason;
    use crate::engine::charging::terms::Intent;
    use crate::engine::limit::Limit;
    use crate::engine::limit::allowance::Allowance;
    use crate::engine::limit::blocks::Block;
    use crate::engine::limit::candidate::Candidate;
    use crate::engine::limit::fingerprint::Fingerprinter;
    use crate::engine::limit::ids::Id;
    use crate::engine::limit::overrides::{Override, OverrideOrigin};
    use crate::engine::request::part::{Part, TypedPart};
    use crate::engine::request::value_type::ValueType;
    use crate::engine::request::{Request, sample};
    use crate::message::headers::Headers;

    const HASH: Fingerprinter = Fingerprinter::new((3, 4));

    fn burst(burst: u64) -> Allowance {
        Allowance::Windows([Numbers::fixed(burst).unwrap()].into())
    }

    fn part(source: Part, form: ValueType) -> TypedPart {
        TypedPart::new(source, form)
    }

    fn header(name: &'static str, form: ValueType) -> TypedPart {
        part(Part::Header(HeaderName::from_static(name)), form)
    }

    fn limit(name: &str, by: Vec<TypedPart>) -> Limit {
        Limit { by, allowance: burst(10), ..Limit::new(name) }
    }

    fn rules(limits: Vec<Limit>) -> Rules {
        Rules::new(limits, HASH, Micros(0), Vec::new())
    }

    fn charge(limit: &str, id: GivenId) -> NamedCharge {
        NamedCharge { limit: limit.to_owned(), id, cost: None, numbers: None, fields: Vec::new(), entry: None }
    }

    fn text(text: &str) -> GivenId {
        GivenId::Text(text.to_owned())
    }

    fn list(texts: &[&str]) -> GivenId {
        GivenId::Parts(texts.iter().map(|text| (*text).to_owned()).collect())
    }

    /// The key of the bucket that an id of a limit with these parts has, or what is wrong with it.
    fn key(by: &[TypedPart], id: GivenId) -> Result<String, String> {
        let rules = rules(vec![limit("L", by.to_vec())]);
        let plan =
            Plan::of_named(&rules, &[charge("L", id)], Mode::Spend, Micros(0), None).map_err(|error| error.reason)?;
        Ok(plan.charges[0].bucket.key.clone())
    }

    #[test]
    fn ids_are_made_canonical_as_those_of_requests() {
        let ip = |ipv6_prefix| part(Part::Ip { ipv6_prefix }, ValueType::Text);
        let account_and_domain =
            [header("x-account", ValueType::Integer), part(Part::Query("d".into()), ValueType::RegisteredDomain)];
        let text_and_ip = [header("x-a", ValueType::Text), ip(64)];
        for (by, id, expected) in [
            (&[ip(64)][..], text("2001:db8::7"), Ok("L:2001%3Adb8%3A%3A/64")),
            (&[ip(128)], text("::ffff:192.0.2.7"), Ok("L:192.0.2.7")),
            (&[ip(128)], text("192.0.2"), Err("`192.0.2` is not a valid IP address")),
            (&[part(Part::Host, ValueType::Text)], text("EXAMPLE.com:80"), Ok("L:example.com")),
            (&[part(Part::Host, ValueType::Text)], text("0:0::1"), Ok("L:%3A%3A1")),
            (&[part(Part::Host, ValueType::Text)], text("[::1]:80"), Ok("L:%3A%3A1")),
            (&[part(Part::Host, ValueType::Text)], text("a b"), Err("not a valid host")),
            (&[part(Part::Path, ValueType::Text)], text("/a//%62/"), Ok("L:/a/b")),
            (&[part(Part::Path, ValueType::Text)], text("a"), Err("must begin with `/`")),
            (&[header("x-a", ValueType::Text)], text(" a:%3A "), Ok("L:a%3A%253A")),
            (&[header("x-a", ValueType::Text)], list(&["a:b"]), Ok("L:a%3Ab")),
            (&[header("x-a", ValueType::Text)], text(" "), Err("empty")),
            (&[header("x-a", ValueType::Integer)], text("007"), Err("write 7")),
            (&[header("x-a", ValueType::Text)], GivenId::Absent, Err("an id is missing")),
            (&[header("x-a", ValueType::Text)], list(&["a", "b"]), Err("have one component, this one has 2")),
            (&account_and_domain, list(&["7", "www.example.com"]), Ok("L:7:example.com")),
            (&account_and_domain, text("7:example.com"), Ok("L:7:example.com")),
            (&account_and_domain, text("7"), Err("have 2 components, this one has 1")),
            (&account_and_domain, text(&format!("7:{}", "a:".repeat(600))), Err("give a list of texts")),
            (&account_and_domain, list(&["7"]), Err("give a list of 2 texts")),
            (&account_and_domain, list(&["x", "example.com"]), Err("not an unsigned 64-bit integer")),
            (&text_and_ip, text("a%3Ab:2001:db8::/64"), Ok("L:a%3Ab:2001%3Adb8%3A%3A/64")),
            (&[], GivenId::Absent, Ok("L")),
            (&[], list(&[]), Ok("L")),
            (&[], text("x"), Err("by: global")),
        ] {
            match (key(by, id.clone()), expected) {
                (Ok(key), Ok(expected)) => assert_eq!(key, expected, "{id:?}"),
                (Err(reason), Err(part)) => assert!(reason.contains(part), "{id:?}: {reason}"),
                (found, _) => panic!("{id:?}: {found:?}, not {expected:?}"),
            }
        }
    }

    #[test]
    fn a_charge_by_name_meets_the_bucket_of_the_request() {
        let by = vec![header("x-id", ValueType::Text), part(Part::Ip { ipv6_prefix: 64 }, ValueType::Text)];
        let rules = rules(vec![limit("L", by)]);
        let headers = Headers::from_iter([("x-id", "a{b}:c")]);
        let request = Request { client: "2001:db8::9".parse().ok(), ..sample(&headers) };
        let asked = Plan::of_request(&rules, &request, None).unwrap();
        let named =
            Plan::of_named(&rules, &[charge("L", list(&["a{b}:c", "2001:db8::1"]))], Mode::Spend, Micros(0), None)
                .unwrap();
        assert_eq!(asked.charges, named.charges);
    }

    fn with(limit: Limit, id: &str, allowance: Allowance) -> Limit {
        let mut limit = limit;
        let id = Id::parse(&limit.by, id).unwrap();
        let given = Override { allowance, until: None, origin: OverrideOrigin::default() };
        limit.overrides.add_id(id.parts.len(), id.fingerprint(&limit.short, &HASH), given).unwrap();
        limit
    }

    #[test]
    fn overrides_modes_and_numbers_of_the_call() {
        use Mode::{Check, Refund, Spend};

        let by = || vec![header("x-id", ValueType::Text)];
        let mut known = with(with(limit("Known", by()), "big", burst(50)), "shut", Allowance::Deny);
        known = with(known, "free", Allowance::Unlimited);
        known
            .overrides
            .add_network(
                "10.0.0.0/8".parse().unwrap(),
                Override { allowance: burst(70), until: None, origin: OverrideOrigin::default() },
            )
            .unwrap();
        known.per_call = true;
        let net = Limit { by: vec![part(Part::Ip { ipv6_prefix: 128 }, ValueType::Text)], ..limit("Net", Vec::new()) };
        let mut net = net;
        let given = Override { allowance: burst(70), until: None, origin: OverrideOrigin::default() };
        net.overrides.add_network("10.0.0.0/8".parse().unwrap(), given).unwrap();
        let shadow = Limit { mode: LimitMode::Shadow, cost: Cost::Fixed(3), ..limit("Shadow", by()) };
        let off = Limit { mode: LimitMode::Off, ..limit("Off", by()) };
        let open = Limit { per_call: true, allowance: Allowance::Disabled, ..limit("Open", by()) };
        let rules = rules(vec![known, net, shadow, off, open]);
        let ask = |limit: &str, id: &str, numbers: Option<u64>, mode| {
            let window = numbers.map(|burst| Numbers::fixed(burst).unwrap());
            let numbers = window.map(|window| CallNumbers { window: Some(window), ..CallNumbers::default() });
            let charge = NamedCharge { numbers, ..charge(limit, text(id)) };
            let plan = Plan::of_named(&rules, &[charge], mode, Micros(0), None).unwrap();
            let charges = plan.charges.iter().map(|charge| (charge.numbers.burst(), charge.cost, charge.mode)).next();
            (charges, plan.denials.len(), plan.unlimited.len())
        };
        for (limit, id, numbers, mode, expected) in [
            ("Known", "a", None, Spend, (Some((10, 1, Spend)), 0, 0)),
            ("Known", "big", None, Spend, (Some((50, 1, Spend)), 0, 0)),
            ("Known", "big", Some(7), Spend, (Some((7, 1, Spend)), 0, 0)),
            ("Known", "shut", Some(7), Spend, (None, 1, 0)),
            ("Known", "shut", None, Refund, (None, 0, 0)),
            ("Known", "free", Some(7), Spend, (None, 0, 1)),
            ("Known", "a", None, Check, (Some((10, 1, Check)), 0, 0)),
            ("Net", "10.1.2.3", None, Spend, (Some((70, 1, Spend)), 0, 0)),
            ("Net", "192.0.2.1", None, Spend, (Some((10, 1, Spend)), 0, 0)),
            ("Shadow", "a", None, Spend, (Some((10, 3, Spend)), 0, 0)),
            ("Shadow", "a", None, Refund, (Some((10, 3, Refund)), 0, 0)),
            ("Off", "a", None, Spend, (None, 0, 0)),
            ("Open", "a", None, Spend, (None, 0, 0)),
            ("Open", "a", Some(7), Spend, (Some((7, 1, Spend)), 0, 0)),
        ] {
            assert_eq!(ask(limit, id, numbers, mode), expected, "{limit}:{id} {numbers:?} {mode:?}");
        }
    }

    #[test]
    fn a_blocked_id_is_refused_and_gets_back_what_it_is_given() {
        let by = || vec![header("x-id", ValueType::Text)];
        let rules = rules(vec![limit("L", by()), Limit { mode: LimitMode::Off, ..limit("Off", by()) }]);
        let block = |key: &str| Block {
            key: key.into(),
            until: Micros(30),
            bucket: key.into(),
            reason: None,
            by: String::new(),
            is_ban: false,
        };
        let blocks = Blocks::new(vec![block("L:a"), block("Off:a")], &HASH);
        let ask = |limit: &str, id: &str, mode| {
            let plan = Plan::of_named(&rules, &[charge(limit, text(id))], mode, Micros(10), Some(&blocks)).unwrap();
            (plan.charges.len(), plan.denials.first().map(|refused| (refused.enforced, refused.reason)))
        };
        let refused = (0, Some((true, DenialReason::Blocked(Micros(20)))));
        assert_eq!((ask("L", "a", Mode::Spend), ask("L", "a", Mode::Check)), (refused, refused));
        for mode in [Mode::SpendOnly, Mode::Refund, Mode::Reset] {
            assert_eq!(ask("L", "a", mode), (1, None), "{mode:?}");
        }
        assert_eq!((ask("L", "b", Mode::Spend), ask("Off", "a", Mode::Spend)), ((1, None), (0, None)));
    }

    /// limitd's `configOverride` inherits `fixed_window`.
    #[test]
    fn numbers_of_a_call_refill_as_those_of_the_limit() {
        let open =
            Limit { per_call: true, algorithm: Algorithm::FixedWindow(Aligned::Clock), ..limit("Open", Vec::new()) };
        let rules = rules(vec![open]);
        let ask = |numbers: Numbers| {
            let numbers = CallNumbers { window: Some(numbers), ..CallNumbers::default() };
            let charge = NamedCharge { numbers: Some(numbers), ..charge("Open", GivenId::Absent) };
            Plan::of_named(&rules, &[charge], Mode::Spend, Micros(0), None).map(|plan| plan.charges[0].numbers.clone())
        };
        let minute = 60_000_000_000;
        let windows = Numbers::fixed_window(9, 3, minute, Aligned::Clock).unwrap();
        assert_eq!(ask(Numbers::new(9, 3, minute).unwrap()), Ok(windows.clone()));
        assert_eq!(ask(windows.clone()), Ok(windows));
        assert_eq!(ask(Numbers::fixed(5).unwrap()), Ok(Numbers::fixed(5).unwrap()));
        let error = ask(Numbers::new(1, 1, 1_500).unwrap()).unwrap_err();
        assert_eq!((error.member, error.reason.contains("microseconds")), (ChargeMember::Numbers, true));
    }

    #[test]
    fn mistakes_say_which_charge_and_what_of_it() {
        let rules = rules(vec![limit("Logins", vec![header("x-id", ValueType::Text)])]);
        let good = || charge("Logins", text("a"));
        let window = Some(Numbers::fixed(1).unwrap());
        let numbers = Some(CallNumbers { window, ..CallNumbers::default() });
        for (second, member, part) in [
            (charge("Login", text("a")), ChargeMember::Limit, "no limit `Login`"),
            (charge("logins", text("a")), ChargeMember::Limit, "did you mean `Logins`?"),
            (charge("Logins", list(&[""])), ChargeMember::Id(Some(0)), "empty"),
            (good(), ChargeMember::Id(None), "has two charges for this id"),
            (NamedCharge { numbers, ..charge("Logins", text("b")) }, ChargeMember::Numbers, "per_call"),
        ] {
            let error = Plan::of_named(&rules, &[good(), second], Mode::Spend, Micros(0), None).unwrap_err();
            assert_eq!((error.charge, error.member), (1, member), "{error}");
            assert!(error.reason.contains(part), "{error}");
        }
    }

    #[test]
    fn a_call_cannot_change_the_period_of_a_log() {
        let log = |count, seconds: u64| Numbers::sliding_log(count, seconds * 1_000_000_000).unwrap();
        let allowance = Allowance::Windows([log(5, 60)].into());
        let log = Limit { per_call: true, algorithm: Algorithm::SlidingLog, allowance, ..limit("Log", Vec::new()) };
        let rules = rules(vec![log]);
        let ask = |count, seconds: u64| {
            let numbers = Numbers::new(count, count, seconds * 1_000_000_000).unwrap();
            let numbers = CallNumbers { window: Some(numbers), ..CallNumbers::default() };
            let charge = NamedCharge { numbers: Some(numbers), ..charge("Log", GivenId::Absent) };
            let plan = Plan::of_named(&rules, &[charge], Mode::Spend, Micros(0), None);
            plan.map(|plan| plan.charges[0].numbers.burst()).map_err(|error| error.reason)
        };
        assert_eq!(ask(9, 60), Ok(9));
        let reason = "Log is a `sliding_log`, so a call can change its count, but not its period";
        assert_eq!(ask(9, 59), Err(reason.to_owned()));
    }

    #[test]
    fn a_plan_does_what_is_asked() {
        let shut = Limit { allowance: Allowance::Deny, ..limit("Shut", Vec::new()) };
        let candidates = vec![Candidate { name: None, allowance: burst(1), enforce_for: 0 }];
        let rules = rules(vec![shut, Limit { candidates, ..limit("L", Vec::new()) }]);
        let both = [charge("Shut", GivenId::Absent), charge("L", GivenId::Absent)];
        let headers = Headers::new();
        let request = sample(&headers);
        let check = |mode, cost, expected| {
            let by_name = both.clone().map(|charge| NamedCharge { cost, ..charge });
            let mut of_request = Plan::default();
            of_request.charge_request(&rules, &request, &Intent { mode, cost, can_probe: false }, None).unwrap();
            for plan in [Plan::of_named(&rules, &by_name, mode, Micros(0), None).unwrap(), of_request] {
                let modes: Vec<Mode> = plan.charges.iter().map(|charge| charge.mode).collect();
                assert_eq!((&modes[..], plan.charges[0].cost, plan.denials.len()), expected);
            }
        };
        check(Mode::Spend, None, (&[Mode::Spend, Mode::Spend][..], 1, 1));
        // A check counts nothing, and so decides no candidate.
        check(Mode::Check, Some(4), (&[Mode::Check], 4, 1));
        check(Mode::Refund, Some(2), (&[Mode::Refund, Mode::Refund], 2, 0));
    }
}
