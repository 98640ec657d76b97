//! The pages on the command line: the commands and flags as the binary knows them. docs/command-line.md lists the commands, and
//! docs/command-line/ has a page for each.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use clap::{Arg, Command, CommandFactory};

use super::Cli;
use crate::config::schema_page::compare_or_write;

const START: &str = "\
# Command line

All commands, with their flags. A flag overrides its environment variable, which overrides the file of `--config`. Made from the
binary's own help; `weir man` has the same as manual pages, and `weir completions` completes it in a shell.

Exit codes: 0 is success; 1 means that the input is wrong, such as a rules file, a failed test, or a change that makes a limit
stricter; 2 is a wrong command line; 3 means that Weir could not start, or that a running Weir could not be reached; 141 means that the
reader of the output has closed it.

Help and results have colors on a terminal, and none in a pipe or a file. `NO_COLOR=1` turns them off, `CLICOLOR_FORCE=1` on.
";

/// The pages for flags of `weir serve`: their file, their title, and the headings of the help that they have. Flags of other headings are
/// on the page of the command.
const SUBJECTS: [(&str, &str, &[&str]); 4] = [
    ("serve-listeners", "listeners", &["Listeners", "gRPC listener", "Admin listener", "TLS of the other listeners"]),
    (
        "serve-clients",
        "clients",
        &[
            "Trusted headers",
            "Client limits and timeouts",
            "Client HTTP/2 connections",
            "Client TLS and PROXY protocol",
        ],
    ),
    ("serve-upstreams", "upstreams", &["Upstreams"]),
    ("serve-rules-and-store", "rules and store", &["Rules", "Management server", "Store", "Delay"]),
];

/// The texts of all pages by their files in docs/.
fn pages() -> BTreeMap<String, String> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut index = START.to_owned();
    index.push_str("\n| command | |\n|---|---|\n");
    let mut pages = BTreeMap::new();
    for one in command.get_subcommands() {
        let name = one.get_name();
        let _ = writeln!(
            index,
            "| [`weir {name}`](command-line/{name}.md) | {} |",
            sentence(one.get_about().map(ToString::to_string))
        );
        let subjects: &[_] = if name == "serve" { &SUBJECTS } else { &[] };
        pages.insert(format!("command-line/{name}.md"), page(one, subjects));
        for (file, title, headings) in subjects {
            let mut page = format!("# `weir {name}`: {title}\n\nFlags of [`weir {name}`]({name}.md).\n");
            tables(&mut page, one, 2, |heading| headings.contains(&heading), |_| true);
            pages.insert(format!("command-line/{file}.md"), page);
        }
    }
    pages.insert("command-line.md".to_owned(), index);
    pages
}

/// The page of a command.
fn page(command: &Command, subjects: &[(&str, &str, &[&str])]) -> String {
    let name = format!("weir {}", command.get_name());
    let mut page = format!("# `{name}`\n\n{}\n", about(command));
    for (number, (file, _, headings)) in subjects.iter().enumerate() {
        let line = if number == 0 { "\n" } else { "" };
        let _ = writeln!(page, "{line}- [{}]({file}.md)", headings.join(", "));
    }
    let is_elsewhere = |heading: &str| subjects.iter().any(|(_, _, headings)| headings.contains(&heading));
    tables(&mut page, command, 2, |heading| !is_elsewhere(heading), |_| true);
    for one in command.get_subcommands() {
        let _ = write!(page, "\n## `{name} {}`\n\n{}\n", one.get_name(), about(one));
        // The flags that all commands of the page share are at its top.
        tables(&mut page, one, 3, |_| true, |flag| !flag.is_global_set());
    }
    page
}

fn about(command: &Command) -> String {
    sentence(command.get_long_about().or_else(|| command.get_about()).map(ToString::to_string))
}

/// The arguments of a command, and a table of flags for each heading of the help.
fn tables(
    page: &mut String,
    command: &Command,
    depth: usize,
    has_heading: impl Fn(&str) -> bool,
    has_flag: impl Fn(&Arg) -> bool,
) {
    let mut shown: Vec<&Arg> = command.get_arguments().filter(|flag| !flag.is_hide_set() && has_flag(flag)).collect();
    shown.retain(|flag| !matches!(flag.get_id().as_str(), "help" | "version"));
    let (places, flags): (Vec<&Arg>, Vec<&Arg>) = shown.into_iter().partition(|flag| flag.is_positional());
    if !places.is_empty() {
        page.push_str("\n| argument | |\n|---|---|\n");
    }
    for place in places {
        let names = place.get_value_names().into_iter().flatten().map(|name| format!("`{name}`"));
        let _ = writeln!(page, "| {} | {} |", names.collect::<Vec<_>>().join(" "), meaning(place));
    }
    let mut headings: Vec<&str> = Vec::new();
    for heading in flags.iter().map(|flag| flag.get_help_heading().unwrap_or_default()) {
        if !headings.contains(&heading) && has_heading(heading) {
            headings.push(heading);
        }
    }
    for heading in headings {
        if !heading.is_empty() {
            let _ = write!(page, "\n{} {heading}\n", "#".repeat(depth));
        }
        page.push_str("\n| flag and variable | default | |\n|---|---|---|\n");
        for flag in flags.iter().filter(|flag| flag.get_help_heading().unwrap_or_default() == heading) {
            row(page, flag);
        }
    }
}

fn row(page: &mut String, flag: &Arg) {
    let value = if flag.get_action().takes_values() {
        flag.get_value_names().and_then(<[_]>::first).map(|name| format!(" {name}"))
    } else {
        None
    };
    let variable = flag.get_env().map(|name| format!("<br>`{}`", name.to_string_lossy())).unwrap_or_default();
    let defaults = flag.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy()));
    let _ = writeln!(
        page,
        "| `--{}{}`{variable} | {} | {} |",
        flag.get_long().unwrap_or_default(),
        value.unwrap_or_default().replace('|', "\\|"),
        defaults.collect::<Vec<_>>().join(", "),
        meaning(flag)
    );
}

fn meaning(flag: &Arg) -> String {
    let text = sentence(flag.get_long_help().or_else(|| flag.get_help()).map(ToString::to_string));
    let values = flag.get_possible_values();
    let is_boolean = values.is_empty() || values.iter().any(|value| value.get_name() == "true");
    let values = values.iter().map(|value| {
        let help = value.get_help().map(|help| format!(" ({help})")).unwrap_or_default();
        format!("`{}`{help}", value.get_name())
    });
    let values = if is_boolean { String::new() } else { format!(" One of {}.", values.collect::<Vec<_>>().join(", ")) };
    (text + &values).trim_start().replace('|', "\\|").replace('\n', " ").replace('<', "&lt;")
}

/// A text of the help, which ends without a full stop.
fn sentence(text: Option<String>) -> String {
    let text = text.unwrap_or_default();
    if text.is_empty() || text.ends_with(['.', ':']) { text } else { text + "." }
}

#[test]
fn the_pages_on_the_command_line_are_as_the_binary_is() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let pages = pages();
    for (file, page) in &pages {
        compare_or_write(file, None, page, "the_pages_on_the_command_line");
    }
    for entry in fs::read_dir(docs.join("command-line")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(pages.contains_key(&format!("command-line/{name}")), "docs/command-line/{name} is of no command");
    }
}

#[test]
fn each_flag_of_serve_is_on_one_page() {
    let text: String = pages().into_iter().filter(|(file, _)| file.contains("serve")).map(|(_, page)| page).collect();
    let flags = super::schema::settable();
    for name in flags.iter().filter_map(Arg::get_long) {
        let is_its_row = |line: &&str| ["`", " "].iter().any(|end| line.starts_with(&format!("| `--{name}{end}")));
        assert_eq!(text.lines().filter(is_its_row).count(), 1, "--{name}");
    }
}
