//! TOML as a tree of values, for other limiters' files.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::node::{Key, Node, Value};
use super::problem::{Findings, Place, ReadResult};

/// Reads a text. The error is the first mistake.
pub(super) fn tree(text: &str, findings: &Findings) -> ReadResult<Node> {
    let builder = Builder { text, findings };
    let table = DeTable::parse(text).map_err(|error| {
        let place = builder.place(error.span().map_or(0, |span| span.start));
        findings.error(place, error.message(), "write it as in the TOML specification")
    })?;
    let start = table.span().start;
    Ok(builder.table(table.get_ref(), start))
}

struct Builder<'t> {
    text: &'t str,
    findings: &'t Findings,
}

impl Builder<'_> {
    fn place(&self, offset: usize) -> Place {
        let before = self.text.get(..offset).unwrap_or_default();
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Place { line: number(before.matches('\n').count() + 1), column: number(column), width: 1 }
    }

    fn table(&self, table: &DeTable<'_>, start: usize) -> Node {
        let entries = table.iter().map(|(key, value)| {
            let findings = self.findings.clone();
            (Key { text: key.get_ref().to_string(), place: self.place(key.span().start), findings }, self.value(value))
        });
        self.node(Value::Map(entries.collect()), start)
    }

    fn value(&self, value: &Spanned<DeValue<'_>>) -> Node {
        let start = value.span().start;
        let scalar = |text: String, plain| self.node(Value::Scalar { text, plain }, start);
        match value.get_ref() {
            DeValue::Table(table) => self.table(table, start),
            DeValue::Array(items) => self.node(Value::List(items.iter().map(|item| self.value(item)).collect()), start),
            DeValue::String(text) => scalar(text.to_string(), false),
            DeValue::Integer(number) => scalar(number.as_str().to_owned(), true),
            DeValue::Float(number) => scalar(number.as_str().to_owned(), true),
            DeValue::Boolean(truth) => scalar(truth.to_string(), true),
            DeValue::Datetime(datetime) => scalar(datetime.to_string(), false),
        }
    }

    fn node(&self, value: Value, start: usize) -> Node {
        Node { place: self.place(start), value, findings: self.findings.clone() }
    }
}
