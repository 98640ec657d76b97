//! Runs every `console` block of every page and compares the output with the page.
//!
//! The blocks of a page are one shell session, in an empty directory: what a reader needs is on the page. It gets the files
//! of the repository to which the page links above the first console, at their paths, and the blocks whose title is a file.
//! A line that starts with `$ ` is a command, which continues after a `\` and on lines that start with `> `. Its output
//! follows. `...` stands for any text in a line, or for any lines if it is alone on one; times and durations match each
//! other. A command without output on the page must succeed.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use regex::Regex;
use tempfile::TempDir;

use super::links;
use super::page::{Page, pages, root};
use crate::support::binary;
use crate::support::process::free_port;

/// The ports on the pages: listeners, the application, Redis.
const PORTS: [u16; 9] = [8080, 8443, 9001, 9002, 9003, 9090, 9091, 3000, 6379];

/// The timeout of a page in seconds, for a busy machine and all pages at once.
const PATIENCE: &str = "900";

/// Marks the start of a command's output. No text contains it.
const MARK: char = '\u{1e}';

/// A command on a page and its output.
struct Step {
    place: String,
    command: String,
    /// `None` if the page does not show the output.
    expected: Option<String>,
}

#[test]
fn the_consoles_of_the_pages_do_what_they_show() {
    let has_console = |page: &Page| page.blocks().iter().any(|block| block.language == "console");
    let pages: Vec<_> = pages().into_iter().filter(has_console).collect();
    assert!(pages.iter().any(|page| page.path == "README.md"), "README.md has consoles");
    let wrong: Vec<_> = std::thread::scope(|scope| {
        let runs: Vec<_> = pages.iter().map(|page| scope.spawn(|| run(page))).collect();
        runs.into_iter().flat_map(|run| run.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The commands of a page, and those that write its files.
fn steps(page: &Page) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for block in page.blocks() {
        let place = page.place(&block);
        if let Some(file) = block.file {
            let command = format!("cat >{file} <<'END OF FILE'\n{}END OF FILE", block.text);
            steps.push(Step { place, command, expected: None });
            continue;
        }
        if block.language != "console" {
            continue;
        }
        if let Some(wait) = &block.wait {
            let command = format!("until {wait}; do sleep 0.05; done");
            steps.push(Step { place: place.clone(), command, expected: None });
        }
        let first = steps.len();
        let mut goes_on = false;
        for line in block.text.lines() {
            let command = line.strip_prefix("$ ");
            if let Some(command) = command {
                steps.push(Step { place: place.clone(), command: command.to_owned(), expected: None });
            } else {
                assert!(steps.len() > first, "{place}: a console begins with a command, `$ ...`");
                let step = steps.last_mut().unwrap();
                if goes_on || line.starts_with("> ") {
                    let line = line.strip_prefix("> ").unwrap_or(line);
                    let _ = write!(step.command, "\n{line}");
                } else {
                    let expected = step.expected.get_or_insert_default();
                    let _ = writeln!(expected, "{line}");
                }
            }
            goes_on = line.ends_with('\\') && (goes_on || command.is_some() || line.starts_with("> "));
        }
    }
    steps
}

/// Runs a page and returns the differences.
fn run(page: &Page) -> Vec<String> {
    let (steps, directory, ports) = (steps(page), directory(page), PORTS.map(|_| free_port()));
    let here =
        |text: &str| PORTS.iter().zip(&ports).fold(text.to_owned(), |text, (from, to)| renamed(&text, *from, *to));
    let mut script = format!("source {}\n", root().join("integration/documentation/prelude.sh").display());
    for (number, step) in steps.iter().enumerate() {
        let _ = writeln!(script, "printf '\\n{MARK}{number}\\n'\n{}\nprintf '\\n{MARK}%s\\n' $?", here(&step.command));
    }
    fs::write(directory.path().join(".session"), script).unwrap();
    let printed = session(directory.path(), &ports);
    let there = PORTS.iter().zip(&ports).fold(printed, |text, (from, to)| renamed(&text, *to, *from));

    let mut parts = there.split(MARK).skip(1);
    let mut wrong = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let (Some(part), Some(status)) = (parts.next(), parts.next()) else {
            wrong.push(format!("{}: `{}` did not end:\n{there}", step.place, step.command));
            break;
        };
        let printed = part.strip_prefix(&format!("{number}\n")).unwrap().trim_end();
        let difference = match &step.expected {
            None if status.trim() == "0" => None,
            None => Some(format!("failed:\n{printed}")),
            Some(expected) if pattern(expected).is_match(&(steady(printed) + "\n")) => None,
            Some(expected) => Some(format!("printed\n{printed}\n--- and not\n{}", expected.trim_end())),
        };
        wrong.extend(difference.map(|said| format!("{}: `{}` {said}", step.place, step.command)));
    }
    wrong
}

/// Runs a session's script and returns its output.
fn session(directory: &Path, ports: &[u16]) -> String {
    let port = |named: u16| ports[PORTS.iter().position(|port| *port == named).unwrap()];
    let path = format!("{}:{}", directory.join("bin").display(), std::env::var("PATH").unwrap());
    // Output goes to a file: a process that is left over would keep a pipe open.
    let printed = directory.join(".printed");
    let file = fs::File::create(&printed).unwrap();
    Command::new("timeout")
        .args(["--kill-after=5", PATIENCE, "bash", ".session"])
        .current_dir(directory)
        .env_clear()
        .envs([("PATH", path.as_str()), ("LC_ALL", "C.UTF-8"), ("TERM", "dumb")])
        .envs([("WEIR_WORKERS", "1"), ("WEIR_STORE_TIMEOUT", "1m")])
        .env("WEIR_PROXY", format!("127.0.0.1:{}", port(8080)))
        .env("WEIR_ADMIN", format!("127.0.0.1:{}", port(9090)))
        .env("REDIS_PORT", port(6379).to_string())
        .stdin(Stdio::null())
        .stdout(file.try_clone().unwrap())
        .stderr(file)
        .status()
        .unwrap();
    String::from_utf8_lossy(&fs::read(&printed).unwrap()).replace("\r\n", "\n")
}

/// The directory of a page's session.
fn directory(page: &Page) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let inside = |name: &str| directory.path().join(name);
    fs::create_dir(inside("bin")).unwrap();
    symlink(binary::PATH, inside("bin/weir")).unwrap();
    let first = page.blocks().iter().find(|block| block.language == "console").unwrap().line;
    for linked in links::targets_above(page, first).filter(|path| !path.starts_with("docs")) {
        let (from, to) = (root().join(&linked), directory.path().join(&linked));
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        if from.is_dir() && !to.exists() {
            symlink(from, to).unwrap();
        } else if from.is_file() && !to.exists() {
            // A copy, which a page may change.
            fs::copy(from, to).unwrap();
        }
    }
    directory
}

/// Replaces a port where it stands as a number of its own, and all addresses with loopback.
fn renamed(text: &str, from: u16, to: u16) -> String {
    let port = Regex::new(&format!(r"\b(?:0\.0\.0\.0:)?{from}\b")).unwrap();
    port.replace_all(
        text,
        |found: &regex::Captures<'_>| {
            if found[0].contains(':') { format!("127.0.0.1:{to}") } else { to.to_string() }
        },
    )
    .into_owned()
}

/// Replaces times and measured durations with one word each.
fn steady(text: &str) -> String {
    [
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "TIME"),
        (r"\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}", "TIME"),
        (r"_ms(.?):\d+\.\d+", "_ms$1:N"),
    ]
    .iter()
    .fold(text.to_owned(), |text, (varying, word)| Regex::new(varying).unwrap().replace_all(&text, *word).into_owned())
}

/// A pattern for output as a page shows it, up to its last line's end.
fn pattern(expected: &str) -> Regex {
    let mut pattern = String::from(r"\A");
    for line in steady(expected.trim_end()).lines() {
        if line.trim() == "..." {
            pattern.push_str(r"(?:.*\n)*");
        } else {
            pattern.push_str(&line.split("...").map(regex::escape).collect::<Vec<_>>().join(".*"));
            pattern.push_str(r"\n");
        }
    }
    Regex::new(&(pattern + r"\z")).unwrap()
}

#[test]
fn what_a_console_shows_is_matched_line_by_line() {
    let check = |expected: &str, printed: &str, is_same: bool| {
        assert_eq!(pattern(expected).is_match(&(steady(printed) + "\n")), is_same, "{expected:?} and {printed:?}");
    };
    check("one\ntwo", "one\ntwo", true);
    check("one", "one\ntwo", false);
    check("one\n...", "one\ntwo\nthree", true);
    check("one\n...\nthree", "one\nthree", true);
    check("one\n...\nthree", "one\ntwo", false);
    check("200 ... 429 ...", "200 200 429 429", true);
    check("200 ... 429 ...", "200 200\n429 429", false);
    check("at 2026-11-21T05:47:29.065Z", "at 2027-01-02T03:04:05Z", true);
    check("a+b (c)", "a+b (c)", true);
}
