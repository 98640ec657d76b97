//! Memory keeps neither queues nor scripts.

use std::process::Command;

use crate::support::eventually;
use crate::support::weir::Weir;

const QUEUE: &str = "limits:\n  Jobs: { algorithm: queue, capacity: 2, fields: { path: path } }\n";

#[test]
fn weir_does_not_start_with_a_queue_in_memory_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let limits = folder.path().join("limits.yaml");
    std::fs::write(&limits, QUEUE).unwrap();
    let run = |arguments: &[&str]| {
        let output = Command::new("timeout")
            .args(["10", env!("CARGO_BIN_EXE_weir")])
            .args(arguments)
            .current_dir(folder.path())
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = run(&["serve", "--upstream", "echo", "--proxy", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("`Jobs` needs Redis") && said.contains("limits.yaml:2:22"), "{said}");
    assert_eq!(run(&["check", "limits.yaml"]).0, Some(0), "a check knows no store");
}

#[test]
fn a_reload_with_a_queue_in_memory_changes_nothing() {
    let weir = Weir::serve("limits: { L: { by: global, burst: 1000 } }", &[]);
    std::fs::write(weir.limits_file(), QUEUE).unwrap();
    weir.signal("HUP");
    weir.until_logged("`Jobs` needs Redis");
    eventually("the admin door says so", || {
        let ready = weir.admin("/readyz");
        if ready.text().contains("needs Redis") { Ok(()) } else { Err(ready) }
    });
    assert!(weir.get("/", &[]).field("ratelimit").unwrap().starts_with("\"L\";r=999"));
}
