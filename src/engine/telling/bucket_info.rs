//! The bucket that an operator names, `Name:id`, as far as the rules know it.

use crate::engine::algorithms::charge::{Charge, Mode};
use crate::engine::algorithms::micros::Micros;
use crate::engine::charging::plan::Plan;
use crate::engine::charging::terms::Terms;
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::ids::{self, Id, meant};
use crate::engine::limit::named_id::{CanonicalPart, NamedIdentity, canonical_part, split_first};
use crate::engine::limit::overrides::{OverrideLookup, OverrideOrigin};
use crate::engine::limit::rules::Rules;
use crate::engine::limit::warning::claims;
use crate::engine::limit::{Cost, Limit, LimitMode};
use crate::engine::request::part::{Part, TypedPart};
use crate::engine::text::quote::quoted;

/// A bucket as the rules know it.
#[derive(Debug)]
pub struct BucketInfo<'r> {
    pub limit: &'r Limit,
    /// The canonical id, as overrides write it.
    pub id: String,
    /// The key of the bucket, or its prefix if parts are missing.
    pub key: String,
    /// The number of parts missing at the end of the id.
    pub missing: usize,
    pub allowance: &'r Allowance,
    /// The origin of the override that gives the allowance, if one does.
    pub given_by: Option<&'r OverrideOrigin>,
    /// True if the limit has overrides, for this id or others.
    has_overrides: bool,
    /// True if the limit is enforced for this id.
    pub enforced: bool,
    /// The cost of a request; 1 if the request gives it.
    pub cost: u64,
    /// A check of cost 0 for each window, and for those of the candidate; empty if the id has no bucket.
    pub plan: Plan,
    /// Forget the strikes and bans of the id, if it has a bucket and the limit bans.
    pub forget_bans: Vec<Charge>,
    /// Forget the warnings of the id, if it has a bucket and the limit warns.
    pub forget_warnings: Vec<Charge>,
}

/// A name that is not a bucket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BucketInfoError {
    #[error("{0}")]
    Limit(String),
    #[error("{0}")]
    Id(String),
}

/// The name of the limit in `Name:id`.
pub fn limit_of(bucket: &str) -> &str {
    bucket.split_once(':').map_or(bucket, |(name, _)| name)
}

impl BucketInfo<'_> {
    /// `Name:id`, or the name alone of a limit without ids.
    pub fn name(&self) -> String {
        if self.limit.by.is_empty() { self.limit.name.clone() } else { format!("{}:{}", self.limit.name, self.id) }
    }

    /// Returns true if the limit counts for any id.
    pub fn is_in_use(&self) -> bool {
        let applies = self.limit.allowance != Allowance::Disabled || self.has_overrides;
        self.limit.mode != LimitMode::Off && (applies || self.limit.per_call)
    }
}

fn forget_warnings(limit: &Limit, plan: &Plan) -> Vec<Charge> {
    let Some(warn_at) = &limit.warn_at else { return Vec::new() };
    let claims = plan.charges.iter().filter_map(|charge| claims(warn_at.shares(), &charge.bucket, &charge.numbers));
    claims.flatten().map(|claim| Charge { cost: 0, mode: Mode::Reset, ..claim }).collect()
}

impl<'r> BucketInfo<'r> {
    /// Finds the bucket `Name:id`. The id is written as in overrides; an address may also be in the form of a request. An
    /// id without its last parts stands for all buckets with that prefix.
    pub fn find(rules: &'r Rules, bucket: &str, now: Micros) -> Result<Self, BucketInfoError> {
        let (place, limit, id) = split_bucket(rules, bucket).map_err(BucketInfoError::Limit)?;
        let parts = parts(&limit.by, id).map_err(|reason| {
            BucketInfoError::Id(format!("invalid id {} for {}: {reason}", quoted(id.unwrap_or("")), limit.name))
        })?;
        let missing = limit.by.len() - parts.len();
        let identified = NamedIdentity::of_parts(rules, limit, &parts);
        let text = || identified.text.clone();
        let id = OverrideLookup { prefixes: &identified.prefixes, client: identified.client, text: &text, now };
        let key = identified.bucket.key.clone();
        let terms = Terms::of(rules, place, limit, identified.bucket, &id, None);
        let Terms { allowance, enforced, .. } = terms;
        let given_by = terms.given.map(|given| &given.origin);
        let forget_bans = if missing == 0 { terms.forget_bans() } else { Vec::new() };
        let mut plan = Plan::default();
        // Only the script knows the state of its bucket.
        if missing == 0 && limit.script.is_none() {
            terms.inspect(&mut plan);
            if plan.add_input(0, limit, |queue| queue.entry_of(&[]), None).is_err() {
                plan = Plan::default();
            }
        }
        let forget_warnings = forget_warnings(limit, &plan);
        let cost = if let Cost::Fixed(cost) = limit.cost { cost } else { limit.cost_fallback.default };
        let id = written(&limit.by, &parts);
        let has_overrides = rules.has_overrides(place, limit);
        Ok(Self {
            limit,
            id,
            key,
            missing,
            allowance,
            given_by,
            has_overrides,
            enforced,
            cost,
            plan,
            forget_bans,
            forget_warnings,
        })
    }
}

/// Splits a bucket's name into the limit, its index and the id. Names may contain colons in some files, so the longest
/// matching name wins.
fn split_bucket<'r, 'b>(rules: &'r Rules, bucket: &'b str) -> Result<(u32, &'r Limit, Option<&'b str>), String> {
    let fits = |(place, limit): (u32, &'r Limit)| {
        let rest = bucket.strip_prefix(limit.name.as_str())?;
        match rest.strip_prefix(':') {
            None if rest.is_empty() => Some((place, limit, None)),
            None => None,
            Some(id) => Some((place, limit, Some(id))),
        }
    };
    let found = (0..).zip(rules.limits()).filter_map(fits).max_by_key(|(_, limit, _)| limit.name.len());
    found.ok_or_else(|| rules.unknown(limit_of(bucket)))
}

fn parts<'a>(by: &[TypedPart], id: Option<&'a str>) -> Result<Vec<CanonicalPart<'a>>, String> {
    match (by, id) {
        ([], None) => Ok(Vec::new()),
        ([], Some(_)) => Err("the limit is `by: global`: it has one bucket and no ids".to_owned()),
        (_, None | Some("")) => Err("it is missing; write `Name:id`".to_owned()),
        // `2001:db8::/64` is what a limit by ip/64 calls an id itself.
        ([only], Some(text)) if matches!(only.part, Part::Ip { .. }) && text.contains('/') => {
            Id::parse(by, text)?;
            let (address, _) = text.split_once('/').unwrap_or((text, ""));
            Ok(vec![canonical_part(only, address.into())?])
        }
        ([only], Some(text)) => Ok(vec![canonical_part(only, meant(only, text))?]),
        (several, Some(text)) => split_first(several, text),
    }
}

/// The inverse of [`parts`].
fn written(by: &[TypedPart], parts: &[CanonicalPart<'_>]) -> String {
    let written = by.iter().zip(parts).map(|(typed, part)| match part.address {
        Some(_) => part.text.clone(),
        None => ids::written(typed, &part.text, by.len() > 1).into(),
    });
    written.collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use http::header::HeaderName;

    use super::*;
    use crate::engine::algorithms::numbers::Numbers;
    use crate::engine::limit::fingerprint::Fingerprinter;
    use crate::engine::limit::overrides::Override;
    use crate::engine::request::value_type::ValueType;

    const HASH: Fingerprinter = Fingerprinter::new((3, 4));

    fn header(name: &'static str, form: ValueType) -> TypedPart {
        TypedPart::new(Part::Header(HeaderName::from_static(name)), form)
    }

    fn ip(ipv6_prefix: u8) -> TypedPart {
        TypedPart::new(Part::Ip { ipv6_prefix }, ValueType::Text)
    }

    fn windows(burst: u64) -> Allowance {
        Allowance::Windows([Numbers::fixed(burst).unwrap()].into())
    }

    fn limit(name: &str, by: Vec<TypedPart>) -> Limit {
        Limit { by, allowance: windows(10), ..Limit::new(name) }
    }

    fn rules() -> Rules {
        let mut accounts =
            limit("Accounts", vec![header("x-account", ValueType::Integer), header("x-zone", ValueType::Text)]);
        for (id, allowance) in [("7", windows(50)), ("8", Allowance::Unlimited)] {
            let id = Id::parse(&accounts.by, id).unwrap();
            let origin = OverrideOrigin { line: 3, ..OverrideOrigin::default() };
            let given = Override { allowance, until: None, origin };
            accounts.overrides.add_id(id.parts.len(), id.fingerprint("Accounts", &HASH), given).unwrap();
        }
        let limits = vec![
            limit("PerAddress", vec![ip(64)]),
            accounts,
            limit("All", Vec::new()),
            limit("api/a:b", vec![header("x-id", ValueType::Text)]),
            limit("api/a", vec![header("x-id", ValueType::Text)]),
        ];
        Rules::new(limits, HASH, Micros(0), Vec::new())
    }

    #[test]
    fn buckets_are_found_by_their_names() {
        let rules = rules();
        for (bucket, name, key, missing, burst) in [
            ("PerAddress:192.0.2.1", "PerAddress:192.0.2.1", "PerAddress:192.0.2.1", 0, Some(10)),
            ("PerAddress:2001:db8::7", "PerAddress:2001:db8::/64", "PerAddress:2001%3Adb8%3A%3A/64", 0, Some(10)),
            ("PerAddress:2001:DB8::/64", "PerAddress:2001:db8::/64", "PerAddress:2001%3Adb8%3A%3A/64", 0, Some(10)),
            ("Accounts:7:a", "Accounts:7:a", "Accounts:7:a", 0, Some(50)),
            ("Accounts:9:a%3Ab", "Accounts:9:a%3Ab", "Accounts:9:a%3Ab", 0, Some(10)),
            ("Accounts:9:a:b", "Accounts:9:a%3Ab", "Accounts:9:a%3Ab", 0, Some(10)),
            ("Accounts:9", "Accounts:9", "Accounts:9", 1, None),
            ("Accounts:8:x", "Accounts:8:x", "Accounts:8:x", 0, None),
            ("All", "All", "All", 0, Some(10)),
            ("api/a:b:c", "api/a:b:c", "api/a:b:c", 0, Some(10)),
            ("api/a:caf%E9", "api/a:caf%E9", "api/a:caf%E9", 0, Some(10)),
            ("api/a:caf%25E9", "api/a:caf%25E9", "api/a:caf%25E9", 0, Some(10)),
            ("Accounts:9:%E9%3A", "Accounts:9:%E9%3A", "Accounts:9:%E9%3A", 0, Some(10)),
            ("api/a:100%", "api/a:100%", "api/a:100%25", 0, Some(10)),
            ("api/a:c", "api/a:c", "api/a:c", 0, Some(10)),
        ] {
            let found = BucketInfo::find(&rules, bucket, Micros(0)).unwrap_or_else(|error| panic!("{bucket}: {error}"));
            let numbers = found.plan.charges.first().map(|charge| charge.numbers.burst());
            assert_eq!(
                (found.name().as_str(), found.key.as_str(), found.missing, numbers),
                (name, key, missing, burst),
                "{bucket}"
            );
            assert_eq!(
                BucketInfo::find(&rules, name, Micros(0)).unwrap().key,
                key,
                "{bucket}: its own name leads elsewhere"
            );
            assert_eq!(
                found.given_by.map(|origin| origin.line),
                (key.contains(":7:") || key.contains(":8:")).then_some(3)
            );
        }
    }

    #[test]
    fn what_is_no_bucket_says_what_would_be_one() {
        let rules = rules();
        for (bucket, part) in [
            ("PerAdress:192.0.2.1", "there is no limit `PerAdress`; did you mean `PerAddress`?"),
            ("peraddress:192.0.2.1", "did you mean `PerAddress`?"),
            ("Zzz", "there is no limit `Zzz`"),
            ("", "there is no limit ``"),
            ("PerAddress", "it is missing; write `Name:id`"),
            ("PerAddress:", "it is missing"),
            ("PerAddress:x", "invalid id `x` for PerAddress: `x` is not a valid IP address"),
            ("PerAddress:2001:db8::/48", "the mask is `/48`"),
            ("Accounts:x:y", "integer"),
            ("All:x", "by: global"),
        ] {
            let error = BucketInfo::find(&rules, bucket, Micros(0)).expect_err(bucket).to_string();
            assert!(error.contains(part), "{bucket}: {error}");
        }
    }
}
