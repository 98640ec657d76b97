//! The limits in force.

use http::StatusCode;
use serde_json::{Value, json};

use super::Admin;
use super::buckets::json_reply;
use super::change::Rejection;
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
        match view.rules().find(name) {
            Ok((_, limit)) => json_reply(&rules_json::limit(limit)),
            Err(reason) => Rejection::new(StatusCode::NOT_FOUND, reason).reply(),
        }
    }
}
