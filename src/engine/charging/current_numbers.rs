//! The current numbers of a bucket that was charged under older rules, for its settlement.

use std::net::IpAddr;

use crate::engine::algorithms::charge::{Bucket, Charge};
use crate::engine::algorithms::micros::Micros;
use crate::engine::charging::plan::Plan;
use crate::engine::charging::terms::Terms;
use crate::engine::limit::Limit;
use crate::engine::limit::key::fingerprint_of;
use crate::engine::limit::overrides::OverrideLookup;
use crate::engine::limit::rules::Rules;
use crate::engine::request::part::Part;
use crate::message::address;
use crate::message::percent::decode;

/// Returns the charge with the numbers that these rules have for its bucket; `older` is its limit in the rules that
/// made the charge. Unchanged if these rules do not have the bucket, because then nobody else uses it.
///
/// The id is parsed from the key. Overrides by network see only the address in it, and those by `regex` see the hash of
/// a long part.
#[must_use]
pub fn renumbered(rules: &Rules, charge: Charge, older: &Limit, now: Micros) -> Charge {
    in_force(rules, &charge, older, now).unwrap_or(charge)
}

fn in_force(rules: &Rules, charge: &Charge, older: &Limit, now: Micros) -> Option<Charge> {
    // Keys have the short name, which stays when a limit is renamed.
    let same = |(_, limit): &(u32, &Limit)| limit.short == older.short && limit.by == older.by;
    let (place, limit) = (0..).zip(rules.limits()).find(same)?;
    let hash = rules.fingerprinter;
    // The algorithm and the window follow after `#`, which is escaped in ids.
    let plain = charge.bucket.key.split('#').next()?;
    let id = plain.strip_prefix(limit.short.as_str())?;
    let mut end = limit.short.len();
    let (mut prefixes, mut texts, mut client) = (Vec::new(), Vec::new(), None);
    for (part, encoded) in limit.by.iter().zip(id.split(':').skip(1)) {
        end += 1 + encoded.len();
        prefixes.push(fingerprint_of(plain.get(..end)?, &hash));
        let text = decode(encoded);
        if matches!(part.part, Part::Ip { .. }) {
            client = client.or_else(|| address_of(&text));
        }
        texts.push(text);
    }
    let text = || texts.join(":");
    let id = OverrideLookup { prefixes: &prefixes, client, text: &text, now };
    // What a bucket has used stays under its tag, whatever these rules have for the limit.
    let Bucket { tag, .. } = charge.bucket;
    let bucket = Bucket { tag, ..Bucket::new(plain, fingerprint_of(plain, &hash)) };
    let mut plan = Plan::default();
    Terms::of(rules, place, limit, bucket, &id, None).charge(&mut plan, charge.cost, charge.mode);
    let current = plan.charges.into_iter().find(|current| current.bucket == charge.bucket)?;
    Some(Charge { origin: charge.origin, dated: charge.dated, ..current })
}

/// The address of an `ip` part, which may be a network.
fn address_of(text: &str) -> Option<IpAddr> {
    address::parse(text.split('/').next()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::algorithms::algorithm::Aligned;
    use crate::engine::algorithms::charge::Mode;
    use crate::engine::algorithms::numbers::Numbers;
    use crate::engine::limit::allowance::Allowance;
    use crate::engine::limit::fingerprint::Fingerprinter;
    use crate::engine::limit::overrides::{Override, OverrideOrigin};
    use crate::engine::request::part::TypedPart;
    use crate::engine::request::value_type::ValueType;
    use crate::engine::request::{Request, sample};
    use crate::message::headers::Headers;

    const HASH: Fingerprinter = Fingerprinter::new((3, 4));
    const HOUR: u64 = 3_600_000_000_000;

    fn even(count: u64) -> Numbers {
        Numbers::new(count, count, HOUR).unwrap()
    }

    fn rules(numbers: &[Numbers], change: impl Fn(&mut Limit)) -> Rules {
        let by = vec![
            TypedPart::new(Part::Ip { ipv6_prefix: 64 }, ValueType::Text),
            TypedPart::new(Part::Path, ValueType::Text),
        ];
        let mut limit = Limit { by, allowance: Allowance::Windows(numbers.into()), ..Limit::new("L") };
        change(&mut limit);
        limit.overrides.finish().unwrap();
        Rules::new(vec![limit], HASH, Micros(0), Vec::new())
    }

    /// A charge of a request from `client` after rules of 10 an hour have changed.
    #[track_caller]
    fn check(client: &str, newer: &Rules, expected: &[u64]) {
        let older = rules(&[even(10), even(100)], |_| {});
        let headers = Headers::new();
        let request = Request { client: client.parse().ok(), path: "/a:b/%20", ..sample(&headers) };
        let charges = Plan::of_request(&older, &request, None).unwrap().charges;
        let expected_charges = Plan::of_request(newer, &request, None).unwrap().charges;
        let found: Vec<u64> = charges
            .iter()
            .map(|charge| {
                let change = Charge { cost: 3, mode: Mode::Refund, ..charge.clone() };
                let changed = renumbered(newer, change.clone(), &older.limits()[0], Micros(1));
                assert_eq!((&changed.bucket, changed.cost, changed.mode), (&charge.bucket, 3, Mode::Refund));
                if let Some(same) = expected_charges.iter().find(|current| current.bucket == charge.bucket) {
                    assert_eq!((&changed.numbers, &changed.input), (&same.numbers, &same.input));
                }
                changed.numbers.burst()
            })
            .collect();
        assert_eq!(found, expected, "{client}");
    }

    #[test]
    fn a_change_goes_by_the_numbers_that_a_request_would_get_now() {
        let given = |burst| Override {
            allowance: Allowance::Windows([even(burst)].into()),
            until: None,
            origin: OverrideOrigin::default(),
        };
        let newer = rules(&[even(1_000), even(2_000)], |limit| {
            let key = |text: &str| fingerprint_of(text, &HASH);
            limit.overrides.add_id(1, key("L:192.0.2.7"), given(70)).unwrap();
            limit.overrides.add_id(2, key("L:192.0.2.8:/a%3Ab/%2520"), given(80)).unwrap();
            limit.overrides.add_network("198.51.100.0/24".parse().unwrap(), given(90)).unwrap();
            limit.overrides.add_regex("^203[.]0[.]113[.]1:/a:b", given(60));
        });
        check("192.0.2.1", &newer, &[1_000, 2_000]);
        // Where there is one window now, that of the other stays as it was.
        for (client, burst) in [("192.0.2.7", 70), ("192.0.2.8", 80), ("198.51.100.9", 90), ("203.0.113.1", 60)] {
            check(client, &newer, &[burst, 100]);
        }
        check("2001:db8::1", &newer, &[1_000, 2_000]);
        check("192.0.2.1", &rules(&[even(7)], |limit| limit.name = "Renamed".into()), &[7, 100]);
    }

    #[test]
    fn a_bucket_that_is_nobodys_now_is_changed_by_the_numbers_it_had() {
        let windows = Numbers::fixed_window(7, 7, HOUR, Aligned::Clock).unwrap();
        check("192.0.2.1", &rules(&[windows], |_| {}), &[7, 100]);
        check("192.0.2.1", &rules(&[Numbers::sliding_log(7, HOUR).unwrap()], |_| {}), &[10, 100]);
        check("192.0.2.1", &rules(&[even(7)], |limit| limit.short = "M".into()), &[10, 100]);
        check("192.0.2.1", &rules(&[even(7)], |limit| limit.by.truncate(1)), &[10, 100]);
        check("192.0.2.1", &rules(&[], |limit| limit.allowance = Allowance::Deny), &[10, 100]);
    }
}
