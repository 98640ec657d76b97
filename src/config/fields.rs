//! Reading the fields of a map, with complaints that say what would be right.

use super::problem::{Findings, Place, Reported, quoted};
use super::suggest::did_you_mean;
use super::yaml::{Key, Node, Value};
use crate::engine::algorithms::numbers::EXACT;

/// The field of the file format that this version does not have. It is refused by name: to accept it and to enforce
/// something else would be worse than to fail.
const NOT_YET: &str = "when";

/// The fields of one map.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'n> {
    entries: &'n [(Key, Node)],
    pub(crate) place: Place,
}

impl<'n> Fields<'n> {
    /// The fields of `node`, which should be a map with these `known` keys; `what` names it.
    pub(crate) fn of(node: &'n Node, what: &str, known: &[&str], findings: &mut Findings) -> Result<Self, Reported> {
        let fields = Self::sparse(node, what, known, findings)?;
        for (key, value) in fields.entries {
            if known.contains(&key.text.as_str()) && value.is_null() {
                findings.error(key.place, format!("{} has no value", quoted(&key.text)), "add one or remove the key");
            }
        }
        Ok(fields)
    }

    /// As [`Self::of`], for files of others in which a key without a value is as good as none.
    pub(crate) fn sparse(
        node: &'n Node,
        what: &str,
        known: &[&str],
        findings: &mut Findings,
    ) -> Result<Self, Reported> {
        let Value::Map(entries) = &node.value else {
            let message = format!("{what} must be a map, found {}", node.kind());
            return Err(findings.error(node.place, message, format!("its keys are {}", list(known))));
        };
        for (key, _) in entries.iter().filter(|(key, _)| !known.contains(&key.text.as_str())) {
            unknown(key, what, known, findings);
        }
        Ok(Self { entries, place: node.place })
    }

    /// The entry of a key; one without a value counts as absent, it has been reported.
    pub(crate) fn get(&self, name: &str) -> Option<&'n (Key, Node)> {
        self.entries.iter().find(|(key, value)| key.text == name && !value.is_null())
    }

    /// Reads the value of a key, if it is there.
    pub(crate) fn read<T>(
        &self,
        name: &str,
        findings: &mut Findings,
        read: impl FnOnce(&'n Node, &mut Findings) -> Result<T, Reported>,
    ) -> Result<Option<T>, Reported> {
        self.get(name).map(|(_, node)| read(node, findings)).transpose()
    }
}

fn unknown(key: &Key, what: &str, known: &[&str], findings: &mut Findings) {
    let shown = quoted(&key.text);
    if key.text == NOT_YET {
        let message = format!("{shown} is not supported by this version of Weir");
        findings.error(key.place, message, "remove it; it would not be enforced");
    } else if findings.is_full() {
        findings.error(key.place, "", "");
    } else {
        let help = did_you_mean(&key.text, known.iter().copied());
        findings.error(key.place, format!("unknown key {shown} in {what}"), help);
    }
}

fn list(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

/// The text of a scalar, plain or quoted: YAML's types play no part.
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

/// `true` or `false`.
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

/// A whole number from 0 to what can be counted exactly.
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

/// One of a few words.
pub(super) fn choice<T: Copy>(
    node: &Node,
    choices: &[(&'static str, T)],
    findings: &mut Findings,
) -> Result<T, Reported> {
    let given = text(node, findings)?;
    if let Some((_, value)) = choices.iter().find(|(word, _)| *word == given) {
        return Ok(*value);
    }
    let help = did_you_mean(given, choices.iter().map(|(word, _)| *word));
    Err(findings.error(node.place, format!("unknown value {}", quoted(given)), help))
}

/// A single value or a list of them, which must not be empty.
pub(super) fn one_or_more<'n>(node: &'n Node, findings: &mut Findings) -> Result<&'n [Node], Reported> {
    match &node.value {
        Value::List(items) if items.is_empty() => {
            Err(findings.error(node.place, "the list is empty", "add a value or remove the key"))
        }
        Value::List(items) => Ok(items),
        _ => Ok(std::slice::from_ref(node)),
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
