//! `cases:` of a test: rows of values, each of which runs the steps with them in the place of `$name`.

use super::super::mapping::all;
use super::super::node::{Key, Node, Value};
use super::super::problem::ReadResult;

/// The rows of one test.
const MOST_CASES: usize = 1_000;

/// A row: what tells it from the others, and the steps with its values.
pub(super) struct Case {
    pub(super) name: String,
    pub(super) steps: Node,
}

/// Reads the rows, and puts the values of each into the steps.
pub(super) fn read(cases: &Node, steps: &Node) -> ReadResult<Vec<Case>> {
    const HELP: &str = "write rows such as `- { path: /a, verdict: deny }`, and `$path` in the steps";
    let rows = cases.list("`cases`", HELP)?;
    cases.check_count("`cases`", rows.len(), "rows", MOST_CASES)?;
    let Some(first) = rows.first() else { return Ok(Vec::new()) };
    let names: Vec<&str> = first.map("a row of `cases`", HELP)?.iter().map(|(key, _)| key.text.as_str()).collect();
    all(rows.iter().map(|row| {
        let values = row.map("a row of `cases`", HELP)?;
        if values.len() != names.len() || values.iter().any(|(key, _)| !names.contains(&key.text.as_str())) {
            let names = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            return Err(row.error("the row has other names than the first one", format!("each row has {names}")));
        }
        if let Some((key, _)) = values.iter().find(|(key, _)| !is_used(steps, &key.text)) {
            let message = format!("no step has `${}`", key.text);
            return Err(key.error(message, "write it in the place of a value, or remove the name"));
        }
        let shown = |(key, value): &(Key, Node)| match &value.value {
            Value::Scalar { text, .. } => format!("{}: {text}", key.text),
            _ => format!("{}: ...", key.text),
        };
        let name = values.iter().map(shown).collect::<Vec<_>>().join(", ");
        Ok(Case { name, steps: replaced(steps, values) })
    }))
}

/// Returns the names after `$` in a text, with their places.
fn names(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.match_indices('$').map(|(place, _)| {
        let rest = &text[place + 1..];
        let end = rest.find(|character: char| !character.is_ascii_alphanumeric() && character != '_');
        (place, &rest[..end.unwrap_or(rest.len())])
    })
}

fn is_used(node: &Node, name: &str) -> bool {
    match &node.value {
        Value::Scalar { text, .. } => names(text).any(|(_, found)| found == name),
        Value::Map(entries) => entries.iter().any(|(_, value)| is_used(value, name)),
        Value::List(items) => items.iter().any(|item| is_used(item, name)),
    }
}

/// Puts values in the place of their names. A scalar that is only a name becomes the value, which may be a map.
fn replaced(node: &Node, values: &[(Key, Node)]) -> Node {
    let value_of = |name: &str| values.iter().find(|(key, _)| key.text == name).map(|(_, value)| value);
    let value = match &node.value {
        Value::Scalar { text, plain } => {
            if let Some(value) = text.strip_prefix('$').and_then(value_of) {
                return Node { place: node.place, ..value.clone() };
            }
            let (mut filled, mut end) = (String::new(), 0);
            for (place, name) in names(text) {
                if let Some(Node { value: Value::Scalar { text: value, .. }, .. }) = value_of(name) {
                    filled.push_str(&text[end..place]);
                    filled.push_str(value);
                    end = place + 1 + name.len();
                }
            }
            filled.push_str(&text[end..]);
            Value::Scalar { text: filled, plain: *plain }
        }
        Value::Map(entries) => {
            Value::Map(entries.iter().map(|(key, value)| (key.clone(), replaced(value, values))).collect())
        }
        Value::List(items) => Value::List(items.iter().map(|item| replaced(item, values)).collect()),
    };
    Node { value, ..node.clone() }
}
