//! The limits in force.

use serde_json::{Value, json};

use super::Admin;
use super::buckets::json_reply;
use super::change::Rejection;
use crate::engine::limit::rules::Rules;
use crate::engine::text::quote::quoted;
use crate::engine::text::suggest::nearest;
use crate::listeners::rules_json;
use crate::message::reply::Reply;

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
}

pub(super) fn unknown_limit(rules: &Rules, name: &str) -> Rejection {
    let known = rules.limits().iter().map(|limit| limit.name.as_str());
    let help = nearest(name, known).map(|known| format!("; did you mean `{known}`?")).unwrap_or_default();
    Rejection::new(http::StatusCode::NOT_FOUND, format!("there is no limit {}{help}", quoted(name)))
}
