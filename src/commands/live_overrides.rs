//! `weir override`: sets, shows and deletes live overrides of a running Weir, through its admin listener.

use std::io::Write;

use http::{Method, StatusCode};
use serde_json::{Map, Value, json};

use super::admin_client_flags::{AdminClientArgs, failure};
use super::exit::{ExitCode, Failure};
use super::print::{detail, in_parentheses};
use super::runtime::block_on;
use super::values::checked_duration;
use crate::listeners::admin::client::{JsonPage, segment_path};
use crate::message::lossless::shown;

/// Sets, shows and deletes live overrides of a running Weir, which precede those of its files
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    action: Action,

    #[command(flatten)]
    listener: AdminClientArgs,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// Set the override of an id, or of all ids that start with it, or replace it
    Set {
        #[command(flatten)]
        bucket: Bucket,
        /// The numbers as in the rules file, `count=40 period=1s`; or `unlimited`; or `deny`
        #[arg(value_name = "NUMBERS", required = true)]
        numbers: Vec<String>,
        /// The end: a date (until the end of that day in UTC) or a time such as 2026-12-31T18:00:00Z
        #[arg(long, value_name = "TIME", conflicts_with = "span")]
        until: Option<String>,
        /// Duration from now
        #[arg(long = "for", id = "span", value_name = "DURATION", value_parser = checked_duration)]
        span: Option<String>,
        /// A comment, for operators
        #[arg(long, value_name = "TEXT")]
        comment: Option<String>,
        /// Print the admin listener's JSON response
        #[arg(long)]
        json: bool,
    },
    /// Show the live override of an id
    Get {
        #[command(flatten)]
        bucket: Bucket,
        /// Print the admin listener's JSON response
        #[arg(long)]
        json: bool,
    },
    /// List the live overrides
    List {
        /// Only those of this limit
        #[arg(value_name = "LIMIT")]
        limit: Option<String>,
        /// The output: `text`; `json`, the admin listener's response; or `yaml`, for `overrides:` in the rules file
        #[arg(long, value_name = "FORMAT", default_value = "text")]
        format: Format,
    },
    /// Delete the live override of an id
    Delete {
        #[command(flatten)]
        bucket: Bucket,
        /// Print the admin listener's JSON response
        #[arg(long)]
        json: bool,
    },
}

#[derive(clap::Args, Debug)]
struct Bucket {
    /// The limit and the id, as in the keys of overrides
    #[arg(value_name = "NAME:ID")]
    name: String,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Text,
    Json,
    Yaml,
}

/// Calls the admin listener and prints its response.
pub fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> Result<ExitCode, Failure> {
    let client = args.listener.client()?;
    let (method, path, body) = args.action.request().map_err(Failure::usage)?;
    let answer = block_on(client.ask(method, &path, body.as_ref())).map_err(Failure::could_not_start)?;
    let JsonPage { status, body } = answer.map_err(Failure::could_not_start)?;
    if status != StatusCode::OK {
        return Err(failure(status, &body));
    }
    let is_json = match &args.action {
        Action::Set { json, .. } | Action::Get { json, .. } | Action::Delete { json, .. } => *json,
        Action::List { format, .. } => *format == Format::Json,
    };
    if is_json {
        writeln!(out, "{body}")?;
    } else if let Some(list) = body["overrides"].as_array() {
        let is_yaml = matches!(&args.action, Action::List { format: Format::Yaml, .. });
        write!(out, "{}", if is_yaml { yaml(list) } else { describe_all(list) })?;
    } else {
        let deleted = if matches!(&args.action, Action::Delete { .. }) { "deleted " } else { "" };
        write!(out, "{deleted}{}", describe(&body))?;
    }
    for warning in body["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        writeln!(err, "warning: {warning}")?;
    }
    if body["kept"] == "process" && matches!(args.action, Action::Set { .. }) {
        writeln!(
            err,
            "warning: it is lost when this Weir stops; start it with `--live-overrides FILE`, or with Redis"
        )?;
    }
    Ok(ExitCode::Success)
}

impl Action {
    /// The request to the admin listener.
    fn request(&self) -> Result<(Method, String, Option<Value>), String> {
        Ok(match self {
            Self::Set { bucket, numbers, until, span, comment, .. } => {
                let mut body = members(numbers)?;
                let texts = [("until", until), ("for", span), ("comment", comment)];
                for (key, text) in texts.into_iter().filter_map(|(key, text)| Some((key, text.as_ref()?))) {
                    if body.insert(key.to_owned(), json!(text)).is_some() {
                        return Err(format!("`{key}` is given twice"));
                    }
                }
                (Method::PUT, segment_path("/overrides/", &bucket.name, ""), Some(Value::Object(body)))
            }
            Self::Get { bucket, .. } => (Method::GET, segment_path("/overrides/", &bucket.name, ""), None),
            Self::Delete { bucket, .. } => (Method::DELETE, segment_path("/overrides/", &bucket.name, ""), None),
            Self::List { limit, .. } => {
                let of = limit.as_ref().map(|limit| segment_path("&limit=", limit, "")).unwrap_or_default();
                (Method::GET, format!("/overrides?source=live&n=10000{of}"), None)
            }
        })
    }
}

/// Reads `count=40`, `unlimited` and `deny`. A value that is not JSON is text.
fn members(words: &[String]) -> Result<Map<String, Value>, String> {
    let mut members = Map::new();
    for word in words {
        let (key, value) = match word.split_once('=') {
            Some((key, value)) => (key, serde_json::from_str(value).unwrap_or_else(|_| json!(value))),
            None if word == "unlimited" || word == "deny" => (word.as_str(), json!(true)),
            None => return Err(format!("invalid number `{word}`: write `count=40 period=1s`, `unlimited` or `deny`")),
        };
        if members.insert(key.to_owned(), value).is_some() {
            return Err(format!("`{key}` is given twice"));
        }
    }
    Ok(members)
}

/// A live override, for people.
fn describe(given: &Value) -> String {
    let text = |key: &str| shown(given[key].as_str().unwrap_or_default());
    let mut page = format!("{}\n", text("override"));
    detail(&mut page, "allows", allows(given));
    detail(
        &mut page,
        "set",
        format_args!(
            "{} by {}{}",
            text("at"),
            text("by"),
            in_parentheses(given["comment"].as_str().map(shown).as_deref())
        ),
    );
    if given["until"].is_string() {
        detail(&mut page, "until", text("until"));
    }
    if given["inert"].is_string() {
        detail(&mut page, "inert", text("inert"));
    }
    page
}

fn allows(given: &Value) -> String {
    match given["allows"].as_str() {
        Some("unlimited") => "everything (unlimited)".to_owned(),
        Some("deny") => "nothing (`deny: true`)".to_owned(),
        _ => {
            let windows = given["windows"].as_array().into_iter().flatten();
            let texts: Vec<_> = windows.filter_map(|window| window["allows"].as_str()).collect();
            if texts.is_empty() { given["numbers"].to_string() } else { texts.join(" and ") }
        }
    }
}

fn describe_all(list: &[Value]) -> String {
    if list.is_empty() {
        return "there are no live overrides\n".to_owned();
    }
    list.iter().map(describe).collect()
}

/// The overrides as a rules file has them below `overrides:`. JSON is YAML.
fn yaml(list: &[Value]) -> String {
    if list.is_empty() {
        return "{}\n".to_owned();
    }
    let line = |given: &Value| {
        let numbers = given["numbers"].as_object().into_iter().flatten();
        let numbers = numbers.map(|(key, value)| (key.as_str(), value));
        let others =
            ["until", "comment"].into_iter().map(|key| (key, &given[key])).filter(|(_, value)| value.is_string());
        let members: Vec<_> = numbers.chain(others).map(|(key, value)| format!("{key}: {value}")).collect();
        format!("{}: {{ {} }}\n", given["override"], members.join(", "))
    };
    list.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_words() {
        let words = |text: &str| members(&text.split(' ').map(str::to_owned).collect::<Vec<_>>());
        for (text, expected) in [
            ("count=40 period=1s", json!({"count": 40, "period": "1s"})),
            ("unlimited", json!({"unlimited": true})),
            ("deny", json!({"deny": true})),
            (r#"rates=[{"count":1,"period":"1s"}]"#, json!({"rates": [{"count": 1, "period": "1s"}]})),
        ] {
            assert_eq!(words(text).map(Value::Object), Ok(expected));
        }
        for (text, expected) in [("40", "invalid number `40`"), ("count=1 count=2", "`count` is given twice")] {
            assert!(words(text).unwrap_err().contains(expected), "{text}");
        }
    }

    #[test]
    fn control_characters_are_escaped() {
        let given = json!({"override": "L:a\x1b[2J\nL:b", "allows": "deny", "by": "a\rb", "at": "t", "comment": "c\u{9b}d",
            "until": null, "inert": null});
        let text = "L:a%1B[2J%0AL:b\n  allows    nothing (`deny: true`)\n  set       t by a%0Db (c%C2%9Bd)\n";
        assert_eq!(describe(&given), text);
    }

    #[test]
    fn a_list_is_for_people_or_for_a_rules_file() {
        let given = json!({"override": "L:a \"b\"", "allows": "windows", "windows": [{"allows": "burst 4, 4 per 1s"}],
            "numbers": {"count": 4, "period": "1s"}, "by": "alice", "at": "2026-11-21T06:00:00Z",
            "until": "2026-12-31T00:00:00Z", "comment": "a partner", "inert": null});
        let text = "\
L:a \"b\"
  allows    burst 4, 4 per 1s
  set       2026-11-21T06:00:00Z by alice (a partner)
  until     2026-12-31T00:00:00Z
";
        assert_eq!(describe_all(std::slice::from_ref(&given)), text);
        let line = "\"L:a \\\"b\\\"\": { count: 4, period: \"1s\", until: \"2026-12-31T00:00:00Z\", comment: \"a partner\" }\n";
        assert_eq!(yaml(&[given]), line);
        assert_eq!((yaml(&[]).as_str(), describe_all(&[]).as_str()), ("{}\n", "there are no live overrides\n"));
    }
}
