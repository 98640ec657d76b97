//! `rate_limit`: how much.

use super::super::mapping::{Mapping, all, list};
use super::super::problem::{Findings, Reported, quoted};
use super::super::scalars::{text, truth, whole};
use super::super::suggest::did_you_mean;
use super::super::yaml::Node;
use crate::engine::rules::allowance::Allowance;
use crate::engine::rules::descriptors::{DescriptorRule, PerUnit, RateUnit};

/// The fields of `rate_limit`.
const KEYS: [&str; 5] = ["unit", "requests_per_unit", "unlimited", "name", "replaces"];

/// A name goes into headers and metadata.
const LONGEST_NAME: usize = 256;

/// Reads `rate_limit`.
pub(super) fn read(node: &Node, findings: &mut Findings) -> Result<(DescriptorRule, Allowance), Reported> {
    let fields = Mapping::sparse(node, "`rate_limit`", &KEYS, findings)?;
    let name = fields.read("name", findings, name);
    let unlimited = fields.read("unlimited", findings, truth);
    let unit = fields.read("unit", findings, unit);
    let requests = fields.read("requests_per_unit", findings, requests);
    let replaces = fields.read("replaces", findings, replaces);
    let name = name?.unwrap_or_default();
    if let (Ok(Some(replaces)), Some((_, node))) = (&replaces, fields.get("replaces"))
        && replaces.contains(&name)
    {
        let message = format!("{} replaces itself", quoted(&name));
        return Err(findings.error(node.place, message, "name the limits that this one replaces"));
    }
    let (unit, requests, replaces) = (unit?, requests?, replaces?.unwrap_or_default());
    let rule = DescriptorRule { name, replaces, ..DescriptorRule::default() };
    if unlimited?.unwrap_or(false) {
        for name in ["unit", "requests_per_unit"] {
            if let Some((key, _)) = fields.get(name) {
                let message = format!("`unlimited: true` and `{name}` cannot be combined");
                return Err(findings.error(key.place, message, "remove one of them"));
            }
        }
        return Ok((rule, Allowance::Unlimited));
    }
    let Some(unit) = unit else {
        let help = format!("add one of {}, or `unlimited: true`", RateUnit::ALL.map(|(name, _)| name).join(", "));
        return Err(findings.error(fields.place, "`rate_limit` needs `unit`", help));
    };
    let Some(requests) = requests else {
        let help = "add it; 0, which denies every request, must be explicit";
        return Err(findings.error(fields.place, "`rate_limit` needs `requests_per_unit`", help));
    };
    let per_unit = PerUnit { requests, unit };
    // Only 0 has no numbers.
    let allowance = per_unit.numbers().map_or(Allowance::Deny, |numbers| Allowance::Windows([numbers].into()));
    Ok((DescriptorRule { per_unit: Some(per_unit), ..rule }, allowance))
}

fn unit(node: &Node, findings: &mut Findings) -> Result<RateUnit, Reported> {
    let given = text(node, findings)?;
    let known = RateUnit::ALL.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(given));
    known.map(|(_, unit)| unit).ok_or_else(|| {
        let help = did_you_mean(given, RateUnit::ALL.map(|(name, _)| name));
        findings.error(node.place, format!("unknown unit {}", quoted(given)), help)
    })
}

fn requests(node: &Node, findings: &mut Findings) -> Result<u32, Reported> {
    u32::try_from(whole(node, findings)?).map_err(|_| {
        let help = format!("the largest number is {}; write `unlimited: true` for no limit", u32::MAX);
        findings.error(node.place, "`requests_per_unit` is too large", help)
    })
}

/// A name as Envoy can write it: `X-RateLimit-Limit` has it in quotes and without an escape.
fn name(node: &Node, findings: &mut Findings) -> Result<String, Reported> {
    let name = text(node, findings)?;
    let plain = |byte: u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
    if name.len() > LONGEST_NAME || !name.bytes().all(plain) {
        let help = format!(
            "use at most {LONGEST_NAME} ASCII characters other than `\"` and `\\`, which Envoy does not escape"
        );
        return Err(findings.error(node.place, format!("{} would break a header", quoted(name)), help));
    }
    Ok(name.to_owned())
}

fn replaces(node: &Node, findings: &mut Findings) -> Result<Vec<String>, Reported> {
    let items = list(node, "`replaces`", "write `replaces: [{ name: NAME }]`", findings)?;
    all(items.iter().map(|item| {
        let map = Mapping::sparse(item, "an item of `replaces`", &["name"], findings)?;
        match map.read("name", findings, text)? {
            None | Some("") => {
                Err(findings.error(item.place, "an item of `replaces` needs `name`", "write `{ name: NAME }`"))
            }
            Some(name) => Ok(name.to_owned()),
        }
    }))
}
