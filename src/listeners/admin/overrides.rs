//! Overrides: those of the files and the live ones, which operators set and delete here.

use http::StatusCode;
use serde_json::{Value, json};

use super::body::{comment, read_members, span};
use super::buckets::json_reply;
use super::change::{AdminRequest, Caller, MAX_SHOWN_NAME, Rejection};
use super::{Admin, AdminAnswer};
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::rules::Rules;
use crate::engine::telling::bucket_info::limit_of;
use crate::engine::text::quote::{quoted, shown};
use crate::http::simple::Incoming;
use crate::limiter::KnownOverride;
use crate::limiter::operator::NewOverride;
use crate::listeners::rules_json;
use crate::message::percent::decode;
use crate::message::reply::Reply;
use crate::telemetry::metrics::AdminWrite;

/// Overrides in one answer.
const DEFAULT_PAGE: usize = 100;
const MAX_PAGE: usize = 10_000;

/// The longest `for`: ten years. An override without an end lasts longer.
const LONGEST_SPAN: Micros = Micros(3_660 * 86_400 * 1_000_000);

/// The query of `/overrides`.
#[derive(Default)]
struct Wanted {
    limit: Option<String>,
    /// `file` or `live`.
    source: Option<String>,
    after: usize,
    n: Option<usize>,
}

impl Admin {
    pub(super) fn overrides(&self, query: Option<&str>) -> Reply {
        let view = self.operator.view();
        match Wanted::parse(query.unwrap_or_default()).and_then(|wanted| self.list_overrides(view.rules(), &wanted)) {
            Ok(page) => json_reply(&page),
            Err(rejection) => rejection.reply(),
        }
    }

    pub(super) fn live_override(&self, bucket: &str) -> Reply {
        match self.operator.live_override(bucket) {
            Ok(found) => json_reply(&rules_json::live(&found)),
            Err(error) => Rejection::from(error).reply(),
        }
    }

    pub(super) async fn change_override(&self, write: AdminWrite, bucket: &str, request: AdminRequest) -> AdminAnswer {
        let apply = async |caller: &Caller, body: Incoming| {
            let (reply, bucket, what) = if write == AdminWrite::SetOverride {
                self.set_override(bucket, body, caller).await?
            } else {
                let given = self.operator.delete_override(bucket).await?;
                (rules_json::live(&given), given.given.bucket.clone(), format!("deleted, was {}", told(&given)))
            };
            let (op, by, agent) = (write.label(), &caller.name, &caller.agent);
            let bucket = shown(&bucket, MAX_SHOWN_NAME);
            tracing::info!(op, bucket, by, agent, "a live override was changed: {what}");
            Ok(json_reply(&reply).into())
        };
        self.change(write, Some(bucket), request, apply).await
    }

    /// Returns the reply, the bucket, and a description for the log.
    async fn set_override(
        &self,
        bucket: &str,
        body: Incoming,
        caller: &Caller,
    ) -> Result<(Value, String, String), Rejection> {
        let new = read_members(body, |body, mut members| {
            let span = if body.get("for").is_none() {
                None
            } else if body.get("until").is_some() {
                body.wrong("/for", "give `for` or `until`, not both");
                None
            } else {
                Some(span(body, LONGEST_SPAN, "leave it out for an override without an end")?)
            };
            let comment = comment(body);
            members.remove("for");
            members.remove("comment");
            let numbers = Value::Object(members).to_string();
            Some(NewOverride { numbers, span, comment, by: caller.name.clone() })
        });
        let (set, warnings) = self.operator.set_override(bucket, new.await?).await?;
        let mut reply = rules_json::live(&set);
        reply["kept"] = self.operator.overrides_are_kept().into();
        reply["warnings"] = warnings.into();
        Ok((reply, set.given.bucket.clone(), told(&set)))
    }

    fn list_overrides(&self, rules: &Rules, wanted: &Wanted) -> Result<Value, Rejection> {
        let now = self.operator.now();
        let is_wanted = |name: &str| wanted.limit.as_ref().is_none_or(|wanted| wanted == name);
        let is_source = |source: &str| wanted.source.as_ref().is_none_or(|wanted| wanted == source);
        let mut live = self.operator.live_overrides();
        live.retain(|known| is_source("live") && is_wanted(limit_of(&known.given.bucket)));
        if let Some(name) = &wanted.limit
            && let Err(unknown) = rules.find(name)
            && live.is_empty()
        {
            return Err(Rejection::new(StatusCode::NOT_FOUND, unknown));
        }
        let all = rules.limits().iter().filter(|limit| is_source("file") && is_wanted(&limit.name));
        let all = all.flat_map(|limit| limit.overrides.list().iter().map(move |given| (limit, given)));
        let in_force = all.filter(|(_, given)| given.until.is_none_or(|until| until > now));
        let of_files = in_force.map(|(limit, given)| rules_json::given(rules, limit, given));
        let count = wanted.n.unwrap_or(DEFAULT_PAGE);
        let mut page = live.iter().map(rules_json::live).chain(of_files).skip(wanted.after).peekable();
        let overrides: Vec<Value> = page.by_ref().take(count).collect();
        let next = page.peek().is_some().then(|| wanted.after + overrides.len());
        Ok(json!({ "overrides": overrides, "next": next, "kept": self.operator.overrides_are_kept() }))
    }
}

/// `{"count":40,"period":"1s"} until 2026-12-01T00:00:00Z, comment: a partner`
fn told(known: &KnownOverride) -> String {
    let given = &known.given;
    let until = given.until.and_then(rules_json::timestamp).map(|until| format!(" until {until}")).unwrap_or_default();
    let comment = given.comment.as_deref().unwrap_or("none");
    format!("{}{until}, comment: {comment}", shown(&given.numbers, 400))
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
                "source" if value == "file" || value == "live" => wanted.source = Some(value.into_owned()),
                "source" => return Err(Rejection::bad("`source` must be `file` or `live`".to_owned())),
                "after" => wanted.after = number(0, usize::MAX)?,
                "n" => wanted.n = Some(number(1, MAX_PAGE)?),
                _ => {
                    let key = quoted(key);
                    let expected = "`limit`, `source`, `n`, `after`";
                    return Err(Rejection::bad(format!("unknown parameter {key}; expected {expected}")));
                }
            }
        }
        Ok(wanted)
    }
}
