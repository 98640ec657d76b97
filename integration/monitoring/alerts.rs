//! The alert files: promtool's checks, severities and links to the runbook.

use regex::Regex;

use super::prometheus::promtool;
use super::{chart, read};

/// The rules without `for:`, and with a short memory for states of the store. The rules' own tests cover both with their clock; these
/// tests have no time to wait.
pub(super) fn impatient() -> String {
    let rules = read("alerts/weir.yaml");
    let at_once = Regex::new(r"(?m)^( +for:).*$").unwrap().replace_all(&rules, "$1 0s").into_owned();
    assert_eq!(at_once.matches("[2m]").count(), 1, "the window of WeirStoreUnavailable");
    at_once.replace("[2m]", "[10s]")
}

fn names() -> Vec<String> {
    let rules = read("alerts/weir.yaml");
    Regex::new(r"(?m)^ +- alert: (\w+)$").unwrap().captures_iter(&rules).map(|found| found[1].to_owned()).collect()
}

#[test]
fn the_rules_are_what_prometheus_takes() {
    let said = promtool(&["check", "rules", "--lint-fatal", chart("alerts/weir.yaml").to_str().unwrap()]);
    assert!(said.contains(&format!("{} rules found", names().len())), "{said}");
}

#[test]
fn each_alert_fires_on_its_fault_and_is_quiet_without_it() {
    let said = promtool(&["test", "rules", chart("alerts/weir_test.yaml").to_str().unwrap()]);
    assert!(said.contains("SUCCESS"), "{said}");
    // Each test is about one alert and ends with its expectation.
    let tests = read("alerts/weir_test.yaml");
    let of = |name: &str, expected: &str| {
        let one = Regex::new(&format!(r"alertname: {name}\n +exp_alerts:{expected}\n")).unwrap();
        one.is_match(&tests)
    };
    for name in names() {
        assert!(of(&name, ""), "no test shows {name} fire");
        assert!(of(&name, r" \[\]"), "no test shows {name} quiet");
    }
}

#[test]
fn each_alert_says_how_bad_it_is_and_where_to_read_what_to_do() {
    let (rules, runbook) = (read("alerts/weir.yaml"), include_str!("../../docs/runbook.md"));
    let alerts: Vec<&str> = rules.split("- alert: ").skip(1).collect();
    for (name, alert) in names().iter().zip(&alerts) {
        for needed in ["severity: ", "summary: ", "description: "] {
            assert!(alert.contains(needed), "{name} has no {needed}");
        }
        let page = format!("runbook_url: docs/runbook.md#{}\n", name.to_lowercase());
        assert!(alert.contains(&page), "{name} does not say {page}");
        assert!(runbook.contains(&format!("\n## {name}\n")), "{name} is not in the runbook");
    }
    let sections: Vec<&str> = runbook.lines().filter_map(|line| line.strip_prefix("## Weir")).collect();
    assert_eq!(sections.len(), alerts.len(), "the runbook has sections for alerts that are none: {sections:?}");
}
