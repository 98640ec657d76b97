//! The metrics and labels in queries. Prometheus does not report a misspelt name; it has no data.

use regex::Regex;

/// Labels with other values than Weir's: Prometheus' own, and the limits' names.
const FREE: [&str; 3] = ["job", "instance", "limit"];

/// Looks up every metric, label and value of a query in processes' metrics.
#[track_caller]
pub(super) fn check(query: &str, pages: &str) {
    let used = Regex::new(r"\b((?:weir|process)_[a-z_]+)(?:\{([^}]*)\})?").unwrap();
    let matcher = Regex::new(r#"(\w+)(?:=~|=)"([^"]*)""#).unwrap();
    for metric in used.captures_iter(query) {
        let shown: Vec<&str> = pages.lines().filter(|line| is_of(line, &metric[1])).collect();
        assert!(!shown.is_empty(), "no process shows {}, which is asked for in {query}", &metric[1]);
        let matchers = metric.get(2).map_or("", |labels| labels.as_str());
        for found in matcher.captures_iter(matchers).filter(|found| !FREE.contains(&&found[1])) {
            for value in found[2].split('|') {
                let pair = format!("{}=\"{value}\"", &found[1]);
                assert!(shown.iter().any(|line| line.contains(&pair)), "{} never has {pair}: {query}", &metric[1]);
            }
        }
    }
    let grouped = Regex::new(r"\b(?:by|without|on) \(([^)]*)\)").unwrap();
    for label in
        grouped.captures_iter(query).flat_map(|found| found[1].split(", ").map(str::to_owned).collect::<Vec<_>>())
    {
        // Kubernetes' service discovery adds `pod`.
        let is_known = FREE.contains(&label.as_str()) || label == "pod" || pages.contains(&format!("{label}=\""));
        assert!(is_known, "no metric has the label {label}, which is asked for in {query}");
    }
}

fn is_of(line: &str, metric: &str) -> bool {
    line.strip_prefix(metric).is_some_and(|rest| rest.starts_with(['{', ' ']))
}

#[test]
fn what_no_process_shows_is_found_out() {
    let page = "weir_decisions_total{limit=\"A\",result=\"denied\"} 1\nweir_keys 3\n";
    check("sum by (limit) (weir_decisions_total{job=~\"x\", result=~\"denied\"}) / weir_keys", page);
    for wrong in [
        "weir_decisions",
        "weir_key",
        "weir_decisions_total{result=\"denied|passed\"}",
        "weir_decisions_total{results=\"denied\"}",
        "sum by (results) (weir_keys)",
    ] {
        assert!(std::panic::catch_unwind(|| check(wrong, page)).is_err(), "{wrong}");
    }
}
