//! Ctrl-C ends a simulation with the report so far.

use std::io::Write;
use std::process::Stdio;

use super::directory;
use crate::support::binary::command;
use crate::support::eventually;

#[test]
fn ctrl_c_prints_what_was_decided_so_far() {
    let directory = directory("limits:\n  PerIp: { by: ip, burst: 1, count: 1, period: 24h }\n", "");
    let lines = |seconds: std::ops::Range<u32>| {
        let line = |second: u32| {
            let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
            format!(
                "192.0.2.1 - - [22/Nov/2026:{hour:02}:{minute:02}:{second:02} +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"a\"\n"
            )
        };
        seconds.map(line).collect::<String>()
    };
    let mut simulation = command(&["simulate", "-", "--denied", "denied.csv"]);
    let piped =
        simulation.current_dir(directory.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(lines(0..20_000).as_bytes()).unwrap();
    let denied = directory.path().join("denied.csv");
    eventually("requests are decided", || match std::fs::metadata(&denied) {
        Ok(found) if found.len() > 0 => Ok(()),
        found => Err(format!("{found:?}")),
    });
    let id = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    // The reader waits for the pipe, and sees the end when it has read more.
    let _ = input.write_all(lines(20_000..40_000).as_bytes());
    drop(input);
    let done = child.wait_with_output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert_eq!(done.status.code(), Some(1), "{out}{err}");
    assert!(out.contains(" would be denied") && err.contains("error: stopped by Ctrl-C"), "{out}{err}");
    assert!(out.lines().count() > 3 && !out.starts_with("40,000 of 40,000"), "{out}");
}
