//! The first lines of the log: what a person who starts Weir wants to know, and nothing else.

use serde_json::Value;

use crate::support::weir::Weir;

const LIMITS: &str = "\
limits:
  A: { by: ip, count: 1, period: 1h }
  B: { by: global, count: 9, period: 1h }
overrides:
  A:10.0.0.1: { unlimited: true }
";

const NOTE: &str = "ids in the log are hashes";

#[test]
fn a_start_names_the_rules_the_listeners_and_the_live_page() {
    let weir = Weir::serve(LIMITS, &["--check", "127.0.0.1:0", "--workers", "1"]);
    weir.until_logged("live page");
    let log = weir.log();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |line: &Value| (line["fields"]["message"].clone(), line["fields"]["listener"].clone());
    let expected = ["proxy", "check", "admin"].map(|listener| ("listening".into(), listener.into()));
    assert_eq!(lines.len(), 5, "{log}");
    assert_eq!(lines[1..4].iter().map(of).collect::<Vec<_>>(), expected, "{log}");
    let (rules, page) = (&lines[0]["fields"], &lines[4]["fields"]);
    assert_eq!(
        (&rules["message"], &rules["limits"], &rules["overrides"]),
        (&"rules are in force".into(), &2.into(), &1.into())
    );
    assert!(rules["file"].as_str().unwrap().ends_with("limits.yaml"), "{log}");
    assert_eq!((&page["message"], &page["url"]), (&"live page".into(), &format!("http://{}/", weir.admin).into()));
}

/// People who try Weir would not know what a hash is.
#[test]
fn the_first_hash_says_how_to_see_ids() {
    for (ids, expected) in [("hash", 1), ("clear", 0), ("none", 0)] {
        let weir = Weir::serve(LIMITS, &["--log-ids", ids, "--log-denials", "1000/1ms"]);
        for status in [200, 429, 429, 429] {
            assert_eq!(weir.get("/", &[]).status(), status);
        }
        weir.until_logged("request denied");
        let log = weir.log();
        assert_eq!(log.matches(NOTE).count(), expected, "{ids}: {log}");
        let note = log.find(NOTE).unwrap_or_default();
        assert!(note < log.find("request denied").unwrap(), "{ids}: {log}");
    }
}
