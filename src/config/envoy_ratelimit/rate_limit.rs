//! Reads `rate_limit`.

use super::super::mapping::{Mapping, all};
use super::super::node::Node;
use super::super::problem::{ReadResult, quoted};
use super::super::suggest::did_you_mean;
use crate::engine::limit::descriptors::{DescriptorRule, PerUnit, RateUnit};

const KEYS: [&str; 5] = ["unit", "requests_per_unit", "unlimited", "name", "replaces"];

/// The longest name, which goes into headers and metadata. In bytes.
const LONGEST_NAME: usize = 256;

pub(super) fn read(node: &Node) -> ReadResult<DescriptorRule> {
    let map = Mapping::sparse(node, "`rate_limit`", &KEYS)?;
    let name = map.read("name", name);
    let unlimited = map.read("unlimited", Node::truth);
    let unit = map.read("unit", unit);
    let requests = map.read("requests_per_unit", requests);
    let replaces = map.read("replaces", replaces);
    let name = name?.unwrap_or_default();
    if let (Ok(Some(replaces)), Some((_, node))) = (&replaces, map.get("replaces"))
        && replaces.contains(&name)
    {
        let message = format!("{} replaces itself", quoted(&name));
        return Err(node.error(message, "name the limits that this one replaces"));
    }
    let (unit, requests, replaces) = (unit?, requests?, replaces?.unwrap_or_default());
    let rule = DescriptorRule { name, replaces, ..DescriptorRule::default() };
    if unlimited?.unwrap_or(false) {
        return match map.first(&["unit", "requests_per_unit"]) {
            None => Ok(rule),
            Some((key, _)) => {
                let message = format!("`unlimited: true` and `{}` cannot be combined", key.text);
                Err(key.error(message, "remove one of them"))
            }
        };
    }
    let help = format!("add one of {}, or `unlimited: true`", RateUnit::ALL.map(|(name, _)| name).join(", "));
    map.need("unit", &help)?;
    map.need("requests_per_unit", "add it; 0, which denies every request, must be explicit")?;
    let per_unit = unit.zip(requests).map(|(unit, requests)| PerUnit { requests, unit });
    Ok(DescriptorRule { per_unit, ..rule })
}

fn unit(node: &Node) -> ReadResult<RateUnit> {
    let given = node.text()?;
    let known = RateUnit::ALL.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(given));
    known.map(|(_, unit)| unit).ok_or_else(|| {
        let help = did_you_mean(given, RateUnit::ALL.map(|(name, _)| name));
        node.error(format!("unknown unit {}", quoted(given)), help)
    })
}

fn requests(node: &Node) -> ReadResult<u32> {
    u32::try_from(node.whole()?).map_err(|_| {
        let help = format!("the largest number is {}; write `unlimited: true` for no limit", u32::MAX);
        node.error("`requests_per_unit` is too large", help)
    })
}

/// Reads a name that Envoy can write: `X-RateLimit-Limit` has it in quotes, unescaped.
fn name(node: &Node) -> ReadResult<String> {
    let name = node.text()?;
    let plain = |byte: u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
    if name.len() <= LONGEST_NAME && name.bytes().all(plain) {
        return Ok(name.to_owned());
    }
    let help =
        format!("use at most {LONGEST_NAME} ASCII characters other than `\"` and `\\`, which Envoy does not escape");
    Err(node.error(format!("{} would break a header", quoted(name)), help))
}

fn replaces(node: &Node) -> ReadResult<Vec<String>> {
    let items = node.list("`replaces`", "write `replaces: [{ name: NAME }]`")?;
    let help = "write `{ name: NAME }`";
    all(items.iter().map(|item| {
        let map = Mapping::sparse(item, "an item of `replaces`", &["name"])?;
        match map.need("name", help)?.text()? {
            "" => Err(item.error("an item of `replaces` needs `name`", help)),
            name => Ok(name.to_owned()),
        }
    }))
}
