//! `--config FILE`: flags from a YAML file. A flag overrides an environment variable, which overrides the file. The routes in it
//! are checked here and read by [`super::upstream_flags`].

use std::ffi::OsString;
use std::path::Path;

use clap::CommandFactory;

use super::values::typed_flag;
use super::{Cli, route_file, schema, upstream_flags};
use crate::config::foreign::Node;
use crate::config::{self, Problem, Report, Setting};
use crate::http::{HealthCheck, Routes};

const VARIABLE: &str = "WEIR_CONFIG";

/// Adds the file's flags that are set neither on the command line nor in the environment.
///
/// The file may set any flag of `weir serve`; other commands ignore the flags that they do not have.
pub(super) fn expand(arguments: Vec<OsString>) -> Result<Vec<OsString>, Report> {
    let command = Cli::command();
    let given: Vec<&str> = arguments.iter().filter_map(|argument| argument.to_str()).collect();
    let Some(subcommand) = given.get(1).and_then(|name| command.find_subcommand(name)) else { return Ok(arguments) };
    let is_file = |argument: &clap::Arg| argument.get_long() == Some("config") && argument.get_action().takes_values();
    if !subcommand.get_arguments().any(is_file) {
        return Ok(arguments);
    }
    let Some(file) = typed_flag(&given, "config").or_else(|| std::env::var(VARIABLE).ok()) else {
        return Ok(arguments);
    };
    let source = config::read(Path::new(&file)).map_err(Report::of)?;
    let settable = schema::settable();
    let known: Vec<_> = settable.iter().filter_map(schema::known).collect();
    let reads_routes = matches!(subcommand.get_name(), "serve" | "check");
    let read = |mut routes: Routes| {
        config::settings(&source, &known, |node: &Node| {
            // Only these look at the proxy's options.
            if reads_routes {
                route_file::read(node, &HealthCheck::default(), &mut routes);
            }
        })
    };
    let settings = read(Routes::default())?;
    // `weir serve` adds the routes to those of its flags by itself.
    if subcommand.get_name() == "check" {
        read(flag_routes(&settings, &file)?)?;
    }
    let mut added = Vec::new();
    for Setting { key, values } in settings {
        let argument = subcommand.get_arguments().find(|argument| argument.get_long() == Some(&key));
        // What a command does not take from its environment, it does not take from the file either: tests must not write to the
        // store of gateways.
        let takes = |argument: &clap::Arg| argument.get_env().is_some_and(|name| std::env::var_os(name).is_none());
        if argument.is_some_and(takes) && typed_flag(&given, &key).is_none() {
            added.extend(values.into_iter().map(|value| OsString::from(format!("--{key}={value}"))));
        }
    }
    let mut arguments = arguments;
    arguments.splice(2..2, added);
    Ok(arguments)
}

/// Returns the routes of the file's `upstream`.
fn flag_routes(settings: &[Setting], file: &str) -> Result<Routes, Report> {
    let upstreams = settings.iter().filter(|setting| setting.key == "upstream");
    let values = upstreams.flat_map(|setting| &setting.values).flat_map(|value| value.split(' '));
    upstream_flags::routes(&values.map(str::to_owned).collect::<Vec<_>>()).map_err(|mistakes| {
        let problem = |mistake| Problem::of_file(file, format!("`upstream`: {mistake}"), "");
        let problems: Vec<_> = mistakes.into_iter().map(problem).collect();
        Report { errors: problems.len(), problems, warnings: 0 }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(file: &str, typed: &[&str]) -> Result<Vec<String>, Report> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weir.yaml");
        std::fs::write(&path, file).unwrap();
        let config = format!("--config={}", path.display());
        let arguments = typed.iter().copied().chain([config.as_str()]).map(OsString::from).collect();
        let expanded = expand(arguments)?;
        let shown = expanded.into_iter().map(|argument| argument.into_string().unwrap());
        Ok(shown.filter(|argument| *argument != config).collect())
    }

    #[test]
    fn the_file_gives_what_the_command_line_does_not() {
        let file = "upstream: echo\nworkers: 3\noverrides: [a.yaml, b.yaml]\n";
        let arguments = expanded(file, &["weir", "serve", "--workers", "2"]).unwrap();
        assert_eq!(
            arguments,
            ["weir", "serve", "--upstream=echo", "--overrides=a.yaml", "--overrides=b.yaml", "--workers", "2"]
        );
    }

    #[test]
    fn a_command_takes_the_flags_that_it_has() {
        let arguments = expanded("upstream: echo\nlimits: x.yaml\n", &["weir", "explain", "GET", "/"]).unwrap();
        assert_eq!(arguments, ["weir", "explain", "--limits=x.yaml", "GET", "/"]);
    }

    #[test]
    fn a_value_is_text_or_a_list_of_texts() {
        for file in ["upstream: [[echo]]", "upstream: { a: b }", "upstream:"] {
            let error = expanded(file, &["weir", "serve"]).unwrap_err().to_string();
            assert!(error.contains("expected a flag's value, found"), "{error}");
        }
    }

    #[test]
    fn a_flag_that_is_not_repeatable_has_one_value() {
        let error =
            expanded("upstream: [echo, /v1=echo]\nadmin: [a, b]\n", &["weir", "serve"]).unwrap_err().to_string();
        assert!(
            error.contains("weir.yaml:2:8") && error.contains("`--admin` takes one value, found a list"),
            "{error}"
        );
    }

    #[test]
    fn unknown_keys_are_refused() {
        let error = expanded("upstream: echo\nworker: 3\n", &["weir", "serve"]).unwrap_err().to_string();
        assert!(error.contains("weir.yaml:2:1") && error.contains("did you mean `workers`?"), "{error}");
    }
}
