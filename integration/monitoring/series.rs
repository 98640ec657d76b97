//! A process' series: their number depends on the rules and not on clients, and bounds are among them.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::support::weir::Weir;

/// The series of a page without their values.
fn series(weir: &Weir) -> BTreeSet<String> {
    let page = weir.admin("/metrics");
    let lines = page.text().lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect()
}

#[test]
fn overrides_and_ids_make_no_series() {
    let limits = "limits:\n  Ids: { by: { header: x-id }, burst: 1, count: 1, period: 1h }\n\
         \x20 Paths: { by: [path, method, host], burst: 1, mode: shadow }\n";
    let flags = ["--max-keys", "1000", "--workers", "2"];
    let without = Weir::serve(limits, &flags);
    without.get("/", &[("x-id", "account-0")]);
    let mut rules = format!("{limits}overrides:\n");
    for number in 0..5_000 {
        writeln!(rules, "  Ids:account-{number}: {{ burst: 2, count: 2, period: 1h }}").unwrap();
    }
    let weir = Weir::serve(&rules, &flags);
    weir.get("/", &[("x-id", "account-0")]);
    let before = series(&weir);
    let more: Vec<String> = before.difference(&series(&without)).cloned().collect();
    assert!(before.len() < 700 && more.is_empty(), "{} series, of overrides {more:?}", before.len());
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

#[test]
fn what_may_grow_is_shown_beside_what_it_may_grow_to() {
    let flags = ["--workers", "2", "--max-keys", "1000", "--max-connections", "77"];
    let weir = Weir::serve("limits: { Ids: { by: { header: x-id }, burst: 5 } }", &flags);
    weir.get("/", &[("x-id", "a")]);
    for (metric, expected) in [
        ("weir_workers", 2),
        ("weir_keys", 1),
        ("weir_keys_max", 1_000),
        ("weir_http_connections_max", 77),
        ("weir_store_connections", 2),
    ] {
        assert_eq!(weir.metric(&format!("{metric} ")), expected, "{metric}");
    }
    let resident = weir.metric("process_resident_memory_bytes");
    assert!(resident.abs_diff(weir.resident() * 1024) < 64 << 20, "{resident}");
    assert!(weir.metric("weir_memory_limit_bytes") > resident);
    let (open, most) = (weir.metric("process_open_fds"), weir.metric("process_max_fds"));
    let seen = std::fs::read_dir(format!("/proc/{}/fd", weir.id())).unwrap().count() as u64;
    assert!(open.abs_diff(seen) < 8 && most > open, "{open} of {most}, and {seen} are seen");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!(now - weir.metric("process_start_time_seconds") < 3_600);
    // Less than a second, but not zero.
    let page = weir.admin("/metrics");
    let cpu = page.text().lines().find_map(|line| line.strip_prefix("process_cpu_seconds_total "));
    assert!(cpu.unwrap().parse::<f64>().unwrap() > 0.0, "{cpu:?}");
}
