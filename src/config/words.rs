//! The words of other rate limiters for what Weir's keys set, for the help with unknown keys.

use super::suggest::did_you_mean;

/// Returns help for an unknown key of a map that has the `known` ones.
pub(super) fn help(given: &str, known: &[&str]) -> String {
    of_others(given, known).map_or_else(|| did_you_mean(given, known.iter().copied()), str::to_owned)
}

/// Returns help for a word of another rate limiter.
fn of_others(given: &str, known: &[&str]) -> Option<&'static str> {
    let given: String =
        given.chars().filter(char::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase()).collect();
    let is_meant = |(key, words, _): &&(&str, &str, &str)| {
        known.contains(key) && words.split_ascii_whitespace().any(|word| word == given)
    };
    WORDS.iter().find(is_meant).map(|(.., help)| *help)
}

/// Weir's key, others' words without `_`, `-` and capitals, and the help.
const WORDS: [(&str, &str, &str); 20] = [
    (
        "count",
        "limit max maxrequests requests requestsperunit quota average permits points hits refillrate fillrate amount",
        "Weir's word is `count`, per `period`; for requests in flight it is `capacity`",
    ),
    ("rates", "rate ratelimit", "write `count: 10` and `period: 1s` for 10 per second"),
    ("for", "duration lasts length ttl", "Weir's word is `for`: how long, such as 5m"),
    (
        "period",
        "window windowsize windowseconds windowms timewindow interval per unit duration seconds timeframe ttl \
         refillinterval fillinterval perinterval",
        "Weir's word is `period`: a duration such as 1s, 1m or 1d; for what is counted, it is `by`",
    ),
    (
        "burst",
        "burstsize burstcapacity maxburst burstlimit bucketsize maxtokens size",
        "Weir's word is `burst`: how many requests, or tokens, at once; it defaults to `count`",
    ),
    (
        "algorithm",
        "leakybucket tokenbucket slidingwindow fixedwindow strategy type limiter",
        "Weir's word is `algorithm`, and its default `gcra` is a leaky bucket, or token bucket",
    ),
    (
        "by",
        "key keys keyby groupby limitby ip perip byip identifier dimension dimensions characteristics client remoteaddress",
        "Weir's word is `by`, such as `by: ip` or `by: { header: x-api-key }`",
    ),
    (
        "mode",
        "dryrun shadow shadowmode logonly reportonly",
        "write `mode: shadow`: the limit counts and reports, and denies nothing",
    ),
    ("mode", "enabled disabled enable disable active", "remove it, or write `mode: off` to switch the limit off"),
    (
        "on_store_error",
        "failopen failclosed failuremode failuremodedeny failuremodeallow onerror onfailure",
        "write `on_store_error: allow` to fail open, `deny` to fail closed, or `local` to count in memory meanwhile",
    ),
    (
        "deny_with",
        "status statuscode code error errormessage message response responsecode rejectedcode body",
        "write it into `deny_with`, such as `deny_with: { status: 503 }`",
    ),
    ("match", "path paths route url uri", "write it into `match`, such as `match: { path: /v1/** }`"),
    (
        "match",
        "method methods host hosts cidr domain descriptor claims conditions",
        "write it into `match`, such as `match: { methods: [POST] }`",
    ),
    ("deny", "block blocked reject", "write `deny: true`; `weir bucket block` blocks one id for a time"),
    (
        "unlimited",
        "whitelist allowlist exempt exclude skip",
        "write an override with `unlimited: true` for each of these ids, or `exempt` at the top of the file",
    ),
    ("header", "missing malformed", "it is a key of the limit, for all components: write `missing: deny` beside `by`"),
    ("cost", "weight hitsaddend increment", "Weir's word is `cost`: the tokens that a request takes"),
    (
        "exempt",
        "allowlist whitelist safelist exempts exemptions exceptions bypass",
        "Weir's word is `exempt`, such as `exempt: [{ match: { cidr: 192.0.2.0/24 } }]`",
    ),
    ("limits", "ratelimits rules policies ratelimit", "Weir's word is `limits`"),
    (
        "limits",
        "domain descriptors",
        "this is a file of envoyproxy/ratelimit: read it with `--envoy-ratelimit-config`, or convert it with `weir import`",
    ),
];

#[cfg(test)]
mod tests {
    use super::super::limit;
    use super::*;

    #[test]
    fn words_of_others_lead_to_weirs() {
        for (given, part) in [
            ("limit", "`count`"),
            ("requests_per_unit", "`count`"),
            ("rate", "`count: 10`"),
            ("window", "`period`"),
            ("interval", "`period`"),
            ("unit", "`period`"),
            ("burst_size", "`burst`"),
            ("leaky_bucket", "`algorithm`"),
            ("dry-run", "`mode: shadow`"),
            ("shadowMode", "`mode: shadow`"),
            ("fail_open", "`on_store_error: allow`"),
            ("key", "`by: ip`"),
            ("path", "`match`"),
            ("status_code", "`deny_with`"),
        ] {
            assert!(of_others(given, &limit::KEYS).is_some_and(|help| help.contains(part)), "{given}");
        }
        assert_eq!(of_others("limit", &["name"]), None);
    }

    /// A word that is also a key would never be unknown.
    #[test]
    fn no_word_of_others_is_a_key_of_a_limit() {
        for (key, words, text) in WORDS.iter().filter(|(key, ..)| !["for", "limits", "header", "exempt"].contains(key))
        {
            assert!(limit::KEYS.contains(key), "{key}");
            for word in words.split_ascii_whitespace() {
                let plain = |known: &&&str| known.replace('_', "") == word;
                assert_eq!(limit::KEYS.iter().find(plain), None, "{key}");
                assert_eq!(of_others(word, &limit::KEYS), Some(*text), "{word} is in two rows");
            }
        }
    }
}
