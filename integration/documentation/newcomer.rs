//! The path of a newcomer, as a script that people can follow.

use std::process::{Command, Stdio};

use super::page::root;

#[test]
fn a_newcomer_gets_from_a_mistake_to_a_higher_limit() {
    let run = Command::new("timeout")
        .args(["--kill-after=5", "100", "integration/documentation/newcomer.sh", env!("CARGO_BIN_EXE_weir")])
        .current_dir(root())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success() && said.contains("== That was it."), "{}:\n{said}", run.status);
}
