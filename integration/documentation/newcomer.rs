//! A newcomer's first steps, as a script.

use std::process::Command;

use super::page::root;
use crate::support::binary;
use crate::support::process::succeed;

#[test]
fn a_newcomer_gets_from_a_mistake_to_a_higher_limit() {
    let mut script = Command::new("timeout");
    script.args(["--kill-after=5", "900", "integration/documentation/newcomer.sh", binary::PATH]).current_dir(root());
    let printed = succeed(&mut script);
    assert!(printed.contains("== That was it."), "{printed}");
}
