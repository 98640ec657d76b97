//! Memory has neither queues nor scripts.

use crate::support::binary;
use crate::support::eventually;
use crate::support::weir::Weir;

const QUEUE: &str = "limits:\n  Jobs: { algorithm: queue, capacity: 2, fields: { path: path } }\n";

#[test]
fn weir_does_not_start_with_a_queue_in_memory_and_says_why() {
    let serve = binary::fails_to_serve(QUEUE, &[]);
    assert_eq!(serve.code, Some(1), "{}", serve.err);
    assert!(serve.err.contains("`Jobs` needs Redis") && serve.err.contains("limits.yaml:2:22"), "{}", serve.err);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("limits.yaml"), QUEUE).unwrap();
    let check = binary::run_in(folder.path(), &["check", "limits.yaml"]);
    assert_eq!(check.code, Some(0), "a check knows no store: {}", check.err);
}

#[test]
fn a_reload_with_a_queue_in_memory_changes_nothing() {
    let weir = Weir::serve("limits: { L: { by: global, burst: 1000 } }", &[]);
    std::fs::write(weir.limits_file(), QUEUE).unwrap();
    weir.signal("HUP");
    weir.until_logged("`Jobs` needs Redis");
    eventually("the admin listener says so", || {
        let ready = weir.admin("/readyz");
        if ready.text().contains("needs Redis") { Ok(()) } else { Err(ready) }
    });
    assert!(weir.get("/", &[]).header("ratelimit").unwrap().starts_with("\"L\";r=999"));
}
