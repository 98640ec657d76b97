//! What an override may say, and what it is told.

use super::check;

#[test]
fn overrides_say_what_would_be_right() {
    let limits = "
limits:
  Ip: { by: ip, count: 10, period: 1s }
  Range: { by: ip/48 }
  Account: { by: { header: x-id, as: integer }, count: 10, period: 1s }
  Pair: { by: [{ header: x-id, as: integer }, ip], count: 10, period: 1s, cost: 5 }
  All: { by: global, count: 10, period: 1s }
  Window: { by: ip, algorithm: fixed_window, count: 10, period: 1s }
overrides:
  Range:2001:db8::/48: { count: 1, period: 1s }
";
    for (overrides, expected) in [
        ("Ip:10.0.0.1: { count: 20, period: 1s, comment: x, until: 2027-01-01 }", ""),
        ("Ip:10.0.0.1: { unlimited: true }", ""),
        ("Ip:10.0.0.1: {}", "sets no numbers"),
        ("Ip:10.0.0.1:\n", "has no numbers"),
        ("Ip:10.0.0.1: 5", "an override must be a map"),
        ("Ip:10.0.0.1: { unlimited: false }", "sets no numbers"),
        ("Ip:10.0.0.1: { count: 20 }", "without `period`"),
        ("Ip:10.0.0.1: { count: 20, period: 1s, fixed_window: true }", "needs `algorithm: fixed_window`"),
        ("Window:10.0.0.1: { count: 20, period: 1s, fixed_window: false }", ""),
        ("Window:10.0.0.1: { count: 20, period: month, fixed_window: false }", "cannot come back evenly"),
        ("Window:10.0.0.1: { fixed_window: false }", "sets no numbers"),
        ("Ip:300.0.0.1: { count: 20 }", "not a valid IP address"),
        ("Ip:10.0.0.1: { count: 20, period: 1s, until: soon }", "neither a date nor"),
        ("Ip:10.0.0.1: { count: 20, period: 1s, until: 2020-01-01 }", "warning: this override has expired"),
        ("Ip:10.0.0.1: { deny: true, elevated: {} }", "cannot be combined"),
        ("Ip:10.0.0.2: { deny: true, when: x }", "not supported by this version"),
        ("Ip:10.0.0.1: { deny: true, ids: [10.0.0.2] }", "cannot be combined with an id in the key"),
        ("Ip: { deny: true, cidr: 10.0.0.0/8 }", ""),
        ("Ip: { deny: true, cidr: [10.0.0.0/8, 10.0.0.0/8] }", "duplicate override"),
        ("Ip: { deny: true, cidr: 10.0.0.1/8 }", "write 10.0.0.0/8"),
        ("Ip: { deny: true, regex: \"^10[.]\" }", ""),
        ("Ip: { deny: true, regex: \"[\" }", "invalid regular expression"),
        ("All: { deny: true, regex: x }", "has no ids to match"),
        ("All:x: { deny: true }", "by: global"),
        ("Ip: { deny: true, ids: [] }", "the list is empty"),
        ("Ip: { deny: true, ids: 10.0.0.1 }", "write `ids: [...]`"),
        ("Ip: { deny: true, ids: [{ comment: x }] }", "needs `id`"),
        ("Ip: { deny: true, ids: [{ id: 10.0.0.1, coment: x }] }", "did you mean `comment`?"),
        ("Ip: { deny: true, ids: [10.0.0.1], cidr: 10.0.0.0/8 }", "cannot be combined with `ids`, `regex` or `cidr`"),
        ("Ip: { deny: true }", "has no id"),
        ("ip:10.0.0.1: { deny: true }", "did you mean `Ip`?"),
        ("\":x\": { deny: true }", "before the colon"),
        ("\"Ip:\": { deny: true }", "the id is empty"),
        ("overrides: { Ip:10.0.0.1: { deny: true } }", "without this key"),
        ("- Ip:\n  deny: true\n  ids: [10.0.0.1]\n", "indent it further"),
        ("- [Ip]", "found a list"),
        ("- {}", "is empty"),
        ("- Ip:10.0.0.1: { deny: true }", ""),
        ("", "the file is empty"),
        ("# nothing\n", "the file is empty"),
        ("~", "found nothing"),
        ("Ip:10.0.0.1: { deny: true }\n---\nIp:10.0.0.2: { deny: true }\n", "a second YAML document"),
        ("Account: { deny: true, ids: [1234, \"5678\"] }", ""),
        ("Account: { deny: true, ids: [007] }", "write 7"),
        ("Account:1.5: { deny: true }", "not an unsigned 64-bit integer"),
        ("Pair:7:::1: { count: 20, period: 1s }", ""),
        ("Pair:7: { count: 20, period: 1s }", ""),
        ("Pair:7:10.0.0.1: { count: 4, period: 1s }", "warning: the limit's cost exceeds this burst of 4"),
        ("Range:2001:db8::1: { deny: true }", "write the range, 2001:db8::/48"),
        ("Ip:2001:db8::1: { deny: true }", ""),
    ] {
        let expected: Vec<&str> = Some(expected).filter(|part| !part.is_empty()).into_iter().collect();
        check(limits, &[overrides], &expected);
    }
}
