//! The limits and the overrides in force.

use serde_json::{Value, json};

use super::Admin;
use super::buckets::json_reply;
use super::change::Rejection;
use crate::engine::rules::quote::quoted;
use crate::engine::rules::rule_set::Rules;
use crate::engine::rules::suggest::nearest;
use crate::listeners::rules_json;
use crate::message::percent::decode;
use crate::message::reply::Reply;

/// Overrides in one answer.
const DEFAULT_PAGE: usize = 100;
const MAX_PAGE: usize = 10_000;

/// The query of `/overrides`.
#[derive(Default)]
struct Wanted {
    limit: Option<String>,
    after: usize,
    n: Option<usize>,
}

impl Admin {
    pub(super) fn limits(&self) -> Reply {
        let view = self.operator.view();
        let limits: Vec<Value> = view.rules().limits().iter().map(rules_json::limit).collect();
        json_reply(&json!({ "limits": limits }))
    }

    pub(super) fn limit(&self, name: &str) -> Reply {
        let view = self.operator.view();
        let rules = view.rules();
        match rules.limits().iter().find(|limit| limit.name == name) {
            Some(limit) => json_reply(&rules_json::limit(limit)),
            None => unknown_limit(rules, name).reply(),
        }
    }

    pub(super) fn overrides(&self, query: Option<&str>) -> Reply {
        let view = self.operator.view();
        match Wanted::parse(query.unwrap_or_default()).and_then(|wanted| self.list_overrides(view.rules(), &wanted)) {
            Ok(page) => json_reply(&page),
            Err(rejection) => rejection.reply(),
        }
    }

    fn list_overrides(&self, rules: &Rules, wanted: &Wanted) -> Result<Value, Rejection> {
        let now = self.operator.now();
        let is_wanted = |name: &str| wanted.limit.as_ref().is_none_or(|wanted| wanted == name);
        if let Some(name) = &wanted.limit
            && !rules.limits().iter().any(|limit| limit.name == *name)
        {
            return Err(unknown_limit(rules, name));
        }
        let all = rules.limits().iter().filter(|limit| is_wanted(&limit.name));
        let all = all.flat_map(|limit| limit.overrides.list().iter().map(move |given| (limit, given)));
        let in_force = all.filter(|(_, given)| given.until.is_none_or(|until| until > now));
        let count = wanted.n.unwrap_or(DEFAULT_PAGE);
        let mut page = in_force.skip(wanted.after).peekable();
        let overrides: Vec<Value> =
            page.by_ref().take(count).map(|(limit, given)| rules_json::given(rules, limit, given)).collect();
        let next = page.peek().is_some().then(|| wanted.after + overrides.len());
        Ok(json!({ "overrides": overrides, "next": next }))
    }
}

fn unknown_limit(rules: &Rules, name: &str) -> Rejection {
    let known = rules.limits().iter().map(|limit| limit.name.as_str());
    let help = nearest(name, known).map(|known| format!("; did you mean `{known}`?")).unwrap_or_default();
    Rejection::new(http::StatusCode::NOT_FOUND, format!("there is no limit {}{help}", quoted(name)))
}

impl Wanted {
    fn parse(query: &str) -> Result<Self, Rejection> {
        let mut wanted = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decode(value);
            let number = |least, most| {
                let wrong = || Rejection::bad(format!("`{key}` must be a whole number from {least} to {most}"));
                value.parse().ok().filter(|number| (least..=most).contains(number)).ok_or_else(wrong)
            };
            match key {
                "limit" => wanted.limit = Some(value.into_owned()),
                "after" => wanted.after = number(0, usize::MAX)?,
                "n" => wanted.n = Some(number(1, MAX_PAGE)?),
                _ => {
                    let key = quoted(key);
                    return Err(Rejection::bad(format!("unknown parameter {key}; expected `limit`, `n`, `after`")));
                }
            }
        }
        Ok(wanted)
    }
}
