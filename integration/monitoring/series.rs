//! How many series a process shows is decided by its rules and not by its clients.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::support::weir::Weir;

/// The series that a page has, without their values.
fn series(weir: &Weir) -> BTreeSet<String> {
    let page = weir.admin("/metrics");
    let lines = page.text().lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect()
}

#[test]
fn overrides_and_ids_make_no_series() {
    let mut rules = String::from(
        "limits:\n  Ids: { by: { header: x-id }, burst: 1, count: 1, period: 1h }\n\
         \x20 Paths: { by: [path, method, host], burst: 1, mode: shadow }\n\
         overrides:\n",
    );
    for number in 0..5_000 {
        writeln!(rules, "  Ids:account-{number}: {{ burst: 2, count: 2, period: 1h }}").unwrap();
    }
    let weir = Weir::serve(&rules, &["--max-keys", "1000", "--workers", "2"]);
    weir.get("/", &[("x-id", "account-0")]);
    let before = series(&weir);
    assert!(before.len() < 500, "{} series", before.len());
    let long = "x".repeat(3_000);
    let mut client = weir.connect();
    for number in 0..2_000 {
        let hostile = ["\"},job=\"y", "a\\nb", "%00%ff", "{}", "Ids:1", long.as_str()][number % 6];
        let id = format!("{hostile}{number}");
        let path = format!("/{number}?limit=%22{number}");
        client.get_with(&path, &[("x-id", &id)]);
    }
    weir.get("/", &[("x-id", "account-1")]);
    weir.get("/", &[("x-id", "account-1")]);
    weir.get("/", &[("x-id", "account-1")]);
    let after = series(&weir);
    assert_eq!(after.difference(&before).collect::<Vec<_>>(), Vec::<&String>::new());
    assert!(weir.metric("weir_decisions_total{limit=\"Ids\",result=\"denied\"}") > 0);
    assert!(weir.metric("weir_keys_overflowed_total") > 0, "more ids than the table holds came");
}
