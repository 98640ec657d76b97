//! Ctrl-C ends a simulation with the report so far.

use std::fs::File;
use std::io::Write;

use super::directory;
use crate::support::binary::command;
use crate::support::eventually;
use crate::support::process::Process;

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
    let [told, errors] = ["report", "errors"].map(|name| directory.path().join(name));
    let mut simulation = command(&["simulate", "-", "--denied", "denied.csv"]);
    simulation
        .current_dir(directory.path())
        .stdout(File::create(&told).unwrap())
        .stderr(File::create(&errors).unwrap());
    let (mut process, mut input) = Process::fed(&mut simulation);
    input.write_all(lines(0..20_000).as_bytes()).unwrap();
    let denied = directory.path().join("denied.csv");
    eventually("requests are decided", || match std::fs::metadata(&denied) {
        Ok(found) if found.len() > 0 => Ok(()),
        found => Err(format!("{found:?}")),
    });
    process.signal("INT");
    // The reader waits for the pipe, and sees the end when it has read more.
    let _ = input.write_all(lines(20_000..40_000).as_bytes());
    drop(input);
    let code = process.wait().code();
    let [out, err] = [told, errors].map(|file| std::fs::read_to_string(file).unwrap());
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(out.contains(" would be denied") && err.contains("error: stopped by Ctrl-C"), "{out}{err}");
    assert!(out.lines().count() > 3 && !out.starts_with("40,000 of 40,000"), "{out}");
}
