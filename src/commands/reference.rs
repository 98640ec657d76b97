//! The page on the command line, docs/command-line.md: the commands and flags as the binary knows them.

use std::fmt::Write;

use clap::{Arg, Command, CommandFactory};

use super::Cli;

const START: &str = "\
# Command line

All commands, with their flags. A flag overrides its environment variable, which overrides the file of `--config`. Made from the
binary's own help; `weir man` has the same as manual pages, and `weir completions` completes it in a shell.

Exit codes: 0 is success; 1 means that the input is wrong, such as a rules file, a failed test, or a change that makes a limit
stricter; 2 is a wrong command line; 3 means that Weir could not start, or that a running Weir could not be reached; 141 means that the
reader of the output has closed it.

Help and results have colors on a terminal, and none in a pipe or a file. `NO_COLOR=1` turns them off, `CLICOLOR_FORCE=1` on.
";

fn page() -> String {
    let mut page = START.to_owned();
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    for one in command.get_subcommands() {
        section(&mut page, one, "weir", 2);
    }
    page
}

fn section(page: &mut String, command: &Command, parent: &str, depth: usize) {
    let name = format!("{parent} {}", command.get_name());
    let about = command.get_long_about().or_else(|| command.get_about());
    let _ = write!(page, "\n{} `{name}`\n\n{}\n", "#".repeat(depth), sentence(about.map(ToString::to_string)));
    let mut shown: Vec<&Arg> = command.get_arguments().filter(|flag| !flag.is_hide_set()).collect();
    shown.retain(|flag| !matches!(flag.get_id().as_str(), "help" | "version"));
    let (places, flags): (Vec<&Arg>, Vec<&Arg>) = shown.into_iter().partition(|flag| flag.is_positional());
    if !places.is_empty() {
        page.push_str("\n| argument | |\n|---|---|\n");
    }
    for place in places {
        let names = place.get_value_names().into_iter().flatten().map(|name| format!("`{name}`"));
        let _ = writeln!(page, "| {} | {} |", names.collect::<Vec<_>>().join(" "), meaning(place));
    }
    let mut headings: Vec<Option<&str>> = Vec::new();
    for flag in &flags {
        if !headings.contains(&flag.get_help_heading()) {
            headings.push(flag.get_help_heading());
        }
    }
    for heading in headings {
        if let Some(heading) = heading {
            let _ = write!(page, "\n{} {heading}\n", "#".repeat(depth + 1));
        }
        page.push_str("\n| flag | variable | default | |\n|---|---|---|---|\n");
        for flag in flags.iter().filter(|flag| flag.get_help_heading() == heading) {
            row(page, flag);
        }
    }
    for one in command.get_subcommands() {
        section(page, one, &name, depth + 1);
    }
}

fn row(page: &mut String, flag: &Arg) {
    let value = if flag.get_action().takes_values() {
        flag.get_value_names().and_then(<[_]>::first).map(|name| format!(" {name}"))
    } else {
        None
    };
    let variable = flag.get_env().map(|name| format!("`{}`", name.to_string_lossy())).unwrap_or_default();
    let defaults = flag.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy()));
    let _ = writeln!(
        page,
        "| `--{}{}` | {variable} | {} | {} |",
        flag.get_long().unwrap_or_default(),
        value.unwrap_or_default(),
        defaults.collect::<Vec<_>>().join(", "),
        meaning(flag)
    );
}

fn meaning(flag: &Arg) -> String {
    let text = sentence(flag.get_long_help().or_else(|| flag.get_help()).map(ToString::to_string));
    let values = flag.get_possible_values();
    let is_boolean = values.iter().all(|value| matches!(value.get_name(), "true" | "false"));
    let values = values.iter().map(|value| {
        let help = value.get_help().map(|help| format!(" ({help})")).unwrap_or_default();
        format!("`{}`{help}", value.get_name())
    });
    let values = if is_boolean { String::new() } else { format!(" One of {}.", values.collect::<Vec<_>>().join(", ")) };
    (text + &values).replace('|', "\\|").replace('\n', " ").replace('<', "&lt;")
}

/// A text of the help, which ends without a full stop.
fn sentence(text: Option<String>) -> String {
    let text = text.unwrap_or_default();
    if text.is_empty() || text.ends_with(['.', ':']) { text } else { text + "." }
}

#[test]
fn the_page_on_the_command_line_is_as_the_binary_is() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/command-line.md");
    if std::env::var_os("WEIR_WRITE_PAGES").is_some() {
        std::fs::write(path, page()).unwrap();
    }
    let there = std::fs::read_to_string(path).unwrap_or_default();
    let help = "docs/command-line.md is stale: WEIR_WRITE_PAGES=1 cargo test --lib the_page_on_the_command_line";
    assert!(there == page(), "{help}");
}
