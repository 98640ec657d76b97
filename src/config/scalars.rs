//! Reads single values: text, numbers, truth values and words.

use super::problem::{Findings, Reported, quoted};
use super::suggest::did_you_mean;
use super::yaml::{Node, Value};
use crate::engine::algorithms::micros::EXACT;

/// Reads text, plain or quoted: YAML's types are ignored.
pub(crate) fn text<'n>(node: &'n Node, findings: &mut Findings) -> Result<&'n str, Reported> {
    match &node.value {
        Value::Scalar { .. } if node.is_null() => {
            Err(findings.error(node.place, "missing value", "add one; quote the texts `null` and `~`"))
        }
        Value::Scalar { text, .. } => Ok(text),
        _ => {
            let message = format!("expected text, found {}", node.kind());
            Err(findings.error(node.place, message, "write a single value"))
        }
    }
}

/// Reads `true` or `false`.
pub(crate) fn truth(node: &Node, findings: &mut Findings) -> Result<bool, Reported> {
    let help = match &node.value {
        Value::Scalar { text, plain } => match (text.as_str(), plain) {
            // The spellings of the YAML 1.2 core schema.
            ("true" | "True" | "TRUE", true) => return Ok(true),
            ("false" | "False" | "FALSE", true) => return Ok(false),
            ("true" | "false", false) => "remove the quotes",
            _ => match text.to_ascii_lowercase().as_str() {
                "yes" | "y" | "on" | "1" => "write `true`",
                "no" | "n" | "off" | "0" => "write `false`",
                _ => "write `true` or `false`",
            },
        },
        _ => "write `true` or `false`",
    };
    Err(findings.error(node.place, "expected `true` or `false`", help))
}

/// Reads a whole number from 0 to [`EXACT`] - 1.
pub(crate) fn whole(node: &Node, findings: &mut Findings) -> Result<u64, Reported> {
    let Value::Scalar { text, plain } = &node.value else {
        let message = format!("expected a whole number, found {}", node.kind());
        return Err(findings.error(node.place, message, "write digits, such as 20"));
    };
    match number(text, *plain) {
        Ok(number) => Ok(number),
        Err((why, help)) => Err(findings.error(node.place, format!("{} {why}", quoted(text)), help)),
    }
}

fn number(text: &str, plain: bool) -> Result<u64, (&'static str, String)> {
    let all_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let significant = |text: &str| {
        let text = text.trim_start_matches('0');
        if text.is_empty() { "0".to_owned() } else { text.to_owned() }
    };
    if !plain {
        let help = if all_digits(text) { format!("write it without quotes, {text}") } else { String::new() };
        return Err(("is text, not a number", help));
    }
    if all_digits(text) {
        if text.len() > 1 && text.starts_with('0') {
            let help = format!("write {}; some programs read a leading zero as octal", significant(text));
            return Err(("has a leading zero", help));
        }
        return text
            .parse()
            .ok()
            .filter(|number| *number < EXACT)
            .ok_or_else(|| ("is too large", format!("the largest number is {}", EXACT - 1)));
    }
    if let Some(digits) = text.strip_prefix('-').filter(|digits| all_digits(digits)) {
        return Err(("is negative", format!("use a number of at least 0; did you mean {}?", significant(digits))));
    }
    if let Some(digits) = text.strip_prefix('+').filter(|digits| all_digits(digits)) {
        return Err(("has a sign", format!("write {}", significant(digits))));
    }
    let ungrouped = text.replace(['_', ','], "");
    if ungrouped != text && all_digits(&ungrouped) {
        return Err(("is not a whole number", format!("write {}", significant(&ungrouped))));
    }
    if let Some((digits, _)) = text.split_once('.').filter(|(digits, rest)| all_digits(digits) && all_digits(rest)) {
        return Err(("is not a whole number", format!("write {}", significant(digits))));
    }
    Err(("is not a whole number", "write digits only, such as 1000".into()))
}

/// Reads a whole number of at least 1. `help` says what to write instead of 0.
pub(crate) fn positive(
    node: &Node,
    zero: impl AsRef<str>,
    help: impl AsRef<str>,
    findings: &mut Findings,
) -> Result<u64, Reported> {
    match whole(node, findings)? {
        0 => Err(findings.error(node.place, zero, help)),
        number => Ok(number),
    }
}

/// Returns a reader for one of a few words.
pub(super) fn one_of<T: Copy>(
    choices: &'static [(&'static str, T)],
) -> impl Fn(&Node, &mut Findings) -> Result<T, Reported> {
    |node, findings| {
        let given = text(node, findings)?;
        if let Some((_, value)) = choices.iter().find(|(word, _)| *word == given) {
            return Ok(*value);
        }
        let help = did_you_mean(given, choices.iter().map(|(word, _)| *word));
        Err(findings.error(node.place, format!("unknown value {}", quoted(given)), help))
    }
}

#[cfg(test)]
mod tests {
    use super::super::problem::Report;
    use super::super::yaml::tree;
    use super::*;

    #[track_caller]
    fn check<T: PartialEq + std::fmt::Debug>(
        read: impl Fn(&Node, &mut Findings) -> Result<T, Reported>,
        text: &str,
        expected: Result<T, &str>,
    ) {
        let mut findings = Findings::new("f");
        let outcome = tree(text, &mut findings).and_then(|node| read(&node, &mut findings));
        let mut report = Report::default();
        report.add(findings, text);
        match expected {
            Ok(value) => assert_eq!(outcome, Ok(value), "{text}: {report}"),
            Err(part) => assert!(outcome.is_err() && report.to_string().contains(part), "{text}: {report}"),
        }
    }

    #[test]
    fn numbers_are_plain_digits() {
        for (text, expected) in [
            ("20", Ok(20)),
            ("0", Ok(0)),
            ("9007199254740991", Ok(EXACT - 1)),
            ("9007199254740992", Err("largest number")),
            ("9223372036854775808", Err("largest number")),
            ("010", Err("write 10")),
            ("00", Err("write 0")),
            ("-1", Err("negative")),
            ("+5", Err("write 5")),
            ("20.9", Err("write 20")),
            ("1_000", Err("write 1000")),
            ("1e3", Err("digits only")),
            ("0x10", Err("digits only")),
            ("0o10", Err("digits only")),
            ("\"20\"", Err("without quotes, 20")),
            ("ten", Err("not a whole number")),
            ("[1]", Err("found a list")),
        ] {
            check(whole, text, expected);
        }
    }

    #[test]
    fn truth_is_true_or_false() {
        for (text, expected) in [
            ("true", Ok(true)),
            ("False", Ok(false)),
            ("yes", Err("write `true`")),
            ("off", Err("write `false`")),
            ("\"true\"", Err("remove the quotes")),
            ("maybe", Err("`true` or `false`")),
            ("{}", Err("`true` or `false`")),
        ] {
            check(truth, text, expected);
        }
    }
}
