//! `geo`: values by the address of the client.

use ipnet::IpNet;

use super::super::scope::{Condition, Scope, Test};
use super::grammar::Directive;
use super::key::Case;

/// The cases of a `geo`: networks with a value, less those inside them that have another.
pub(super) fn cases(geo: &Directive) -> Result<Vec<Case>, String> {
    let words = ["default", "ranges", "delete", "proxy", "proxy_recursive", "include"];
    if let Some(word) = geo.block.iter().find(|entry| words[1..].contains(&entry.name.as_str())) {
        return Err(format!("`{}` in the `geo` of `{}`", word.name, geo.arguments.join(" ")));
    }
    if geo.arguments.len() > 1 && geo.argument(0) != "$remote_addr" {
        return Err(format!("a `geo` of `{}`", geo.argument(0)));
    }
    let networks: Vec<(&Directive, IpNet)> =
        geo.block.iter().filter_map(|entry| Some((entry, network(&entry.name)?))).collect();
    let default = geo.block.iter().find(|entry| entry.name == "default").map_or("", |entry| entry.argument(0));
    let test = |network: &IpNet| Test::Network(*network);
    let mut cases = vec![(default, Condition::except(networks.iter().map(|(_, network)| test(network))))];
    for (entry, network) in &networks {
        let inner = networks.iter().filter(|(_, inner)| inner != network && network.contains(inner));
        let not = inner.map(|(_, inner)| test(inner)).collect();
        cases.push((entry.argument(0), Condition { any: vec![test(network)], not }));
    }
    // Networks with the same value become one case, if none of them has exceptions.
    let mut joined: Vec<(&str, Condition)> = Vec::new();
    for (value, condition) in cases {
        let same = joined
            .iter_mut()
            .skip(1)
            .find(|(other, known)| *other == value && known.not.is_empty() && condition.not.is_empty());
        match same {
            Some((_, known)) => known.any.extend(condition.any),
            None => joined.push((value, condition)),
        }
    }
    let case = |(value, networks): (&str, Condition)| Case {
        scope: Some(Scope { networks, ..Scope::default() }),
        ..Case::text(value)
    };
    Ok(joined.into_iter().map(case).collect())
}

fn network(text: &str) -> Option<IpNet> {
    if let Test::Network(network) = Test::network(text) { Some(network) } else { None }
}
