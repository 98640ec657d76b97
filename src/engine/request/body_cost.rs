//! Costs in the bodies of responses.

use std::fmt;

use crate::engine::algorithms::micros::EXACT;
use crate::engine::request::token_usage::{TokenCount, TokenWeights, Usage, UsageCount};
use crate::message::event_stream::{EventPart, EventStream};
use crate::message::headers::Headers;
use crate::message::json_lookup::{JsonLookup, LookupError};
use crate::message::json_pointer::JsonPointer;

/// The place of a cost in a response's body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodyCost {
    /// The value at a pointer.
    Json(JsonPointer),
    /// The tokens that the API of a model has used, by their weights, if they differ.
    Usage(Usage, Option<TokenWeights>),
}

impl BodyCost {
    /// Returns the searches in a document, and the numbers in what they find.
    fn parts(&self) -> (Vec<JsonLookup>, Vec<Summand>) {
        match self {
            Self::Json(pointer) => {
                (vec![JsonLookup::new(pointer.clone())], vec![Summand::new(TokenCount::Total, Vec::new())])
            }
            Self::Usage(usage, weights) => {
                let pointer = |place: &&str| JsonPointer::parse(place).ok();
                let counts = usage.counts(weights.is_some());
                let summand = |(counted, places): &UsageCount| {
                    Summand::new(*counted, places.iter().filter_map(pointer).collect())
                };
                (usage.places().into_iter().map(JsonLookup::of_object).collect(), counts.map(summand).collect())
            }
        }
    }

    const fn weights(&self) -> TokenWeights {
        match self {
            Self::Usage(_, Some(weights)) => *weights,
            Self::Usage(_, None) | Self::Json(_) => TokenWeights::EQUAL,
        }
    }
}

impl fmt::Display for BodyCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(pointer) => write!(f, "json {pointer}"),
            Self::Usage(usage, None) => write!(f, "usage {}", usage.label()),
            Self::Usage(usage, Some(weights)) => write!(f, "usage {}: {weights}", usage.label()),
        }
    }
}

/// The forms of bodies that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyForm {
    Json,
    Events,
}

/// Why a body is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnreadBody {
    /// It has a `content-encoding`.
    Encoded,
    /// It is neither JSON nor an event stream.
    OtherType,
}

impl BodyForm {
    /// The form of a message's body, by its headers.
    pub fn of(headers: &Headers) -> Result<Self, UnreadBody> {
        if headers.all("content-encoding").any(|coding| !coding.trim_ascii().eq_ignore_ascii_case(b"identity")) {
            return Err(UnreadBody::Encoded);
        }
        let given = headers.get("content-type").unwrap_or_default();
        let end = memchr::memchr(b';', given).unwrap_or(given.len());
        let name = given.get(..end).unwrap_or_default().trim_ascii().to_ascii_lowercase();
        match name.as_slice() {
            b"application/json" => Ok(Self::Json),
            b"text/event-stream" => Ok(Self::Events),
            name if name.ends_with(b"+json") => Ok(Self::Json),
            _ => Err(UnreadBody::OtherType),
        }
    }
}

/// Reads a cost out of a body that comes in parts. Its memory does not grow with the body.
#[derive(Debug)]
pub struct CostReader {
    stream: Option<EventStream>,
    document: DocumentReader,
    weights: TokenWeights,
}

/// Reads numbers out of documents that come in parts.
#[derive(Debug)]
struct DocumentReader {
    lookups: Vec<JsonLookup>,
    summands: Vec<Summand>,
}

/// A number that adds to a cost.
#[derive(Debug)]
struct Summand {
    counted: TokenCount,
    /// Its places in what is found, which is the number itself if this is empty.
    places: Vec<JsonPointer>,
    /// The value that came last.
    last: Option<Result<String, LookupError>>,
}

impl CostReader {
    pub fn new(cost: &BodyCost, form: BodyForm) -> Self {
        let stream = (form == BodyForm::Events).then(EventStream::default);
        let (lookups, summands) = cost.parts();
        Self { stream, document: DocumentReader { lookups, summands }, weights: cost.weights() }
    }

    /// Reads on.
    pub fn push(&mut self, bytes: &[u8]) {
        let document = &mut self.document;
        match &mut self.stream {
            None => document.take(EventPart::Data(bytes)),
            Some(stream) => stream.push(bytes, |part| document.take(part)),
        }
    }

    /// Returns the cost that the body has reported, now that it has ended or was left. JSON that was cut off has none.
    pub fn finish(&mut self) -> Option<String> {
        let document = &mut self.document;
        match &mut self.stream {
            None => document.take(EventPart::End),
            Some(stream) => stream.finish(|part| document.take(part)),
        }
        let mut counts = Vec::new();
        for summand in &mut self.document.summands {
            let Some(value) = summand.last.take() else { continue };
            let Ok(text) = value else { return Some("several values".to_owned()) };
            match text.parse::<u64>().ok().filter(|count| *count < EXACT) {
                Some(count) => counts.push((summand.counted, count)),
                None => return Some(text),
            }
        }
        if counts.is_empty() {
            return None;
        }
        Some(self.weights.cost(&counts).map_or_else(str::to_owned, |cost| cost.to_string()))
    }
}

impl DocumentReader {
    fn take(&mut self, part: EventPart<'_>) {
        for lookup in &mut self.lookups {
            match part {
                EventPart::Data(bytes) => lookup.push(bytes),
                EventPart::End => {
                    let found = lookup.finish();
                    self.summands.iter_mut().for_each(|summand| summand.read(&found));
                }
            }
        }
    }
}

impl Summand {
    const fn new(counted: TokenCount, places: Vec<JsonPointer>) -> Self {
        Self { counted, places, last: None }
    }

    /// Reads the number out of what was found in a document.
    fn read(&mut self, found: &Result<Option<String>, LookupError>) {
        let value = match found {
            Ok(Some(text)) if !self.places.is_empty() => {
                let mut places = self.places.iter();
                places.find_map(|place| JsonLookup::find(place, text.as_bytes()).transpose())
            }
            other => other.clone().transpose(),
        };
        match value {
            // Not every event is JSON, such as the `[DONE]` at the end.
            None | Some(Err(LookupError::Invalid)) => {}
            value => self.last = value,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::engine::request::token_usage::TokenKind;

    /// Reads a body whole, and split at every byte.
    #[track_caller]
    fn check(cost: &BodyCost, form: BodyForm, body: &str, expected: Option<&str>) {
        for split in 0..=body.len() {
            let (first, second) = body.as_bytes().split_at(split);
            let mut reader = CostReader::new(cost, form);
            reader.push(first);
            reader.push(second);
            assert_eq!(reader.finish().as_deref(), expected, "{cost} of {body:?} at {split}");
        }
    }

    const OPENAI: BodyCost = BodyCost::Usage(Usage::OpenAi, None);
    const ANTHROPIC: BodyCost = BodyCost::Usage(Usage::Anthropic, None);
    const GEMINI: BodyCost = BodyCost::Usage(Usage::Gemini, None);

    #[test]
    fn the_known_apis_tell_their_tokens_in_one_document() {
        let json = |cost: &BodyCost, body: &str, expected| check(cost, BodyForm::Json, body, expected);
        json(
            &OPENAI,
            r#"{"choices":[{"message":{"content":"{\"usage\":1}"}}],"usage":{"total_tokens":25}}"#,
            Some("25"),
        );
        json(&OPENAI, r#"{"object":"response","usage":{"input_tokens":5,"total_tokens":7}}"#, Some("7"));
        json(&ANTHROPIC, r#"{"type":"message","usage":{"input_tokens":10,"output_tokens":32}}"#, Some("42"));
        json(
            &ANTHROPIC,
            r#"{"usage":{"input_tokens":5,"cache_creation_input_tokens":200,"cache_read_input_tokens":95,"output_tokens":32,
                "cache_creation":{"ephemeral_5m_input_tokens":200,"ephemeral_1h_input_tokens":0}}}"#,
            Some("332"),
        );
        json(&ANTHROPIC, r#"{"usage":{"input_tokens":5,"cache_read_input_tokens":null,"output_tokens":1}}"#, Some("6"));
        json(
            &OPENAI,
            r#"{"usage":{"prompt_tokens":10,"completion_tokens":20,"total_tokens":30,
            "prompt_tokens_details":{"cached_tokens":8},"completion_tokens_details":{"reasoning_tokens":15}}}"#,
            Some("30"),
        );
        json(
            &GEMINI,
            r#"{"usageMetadata":{"promptTokenCount":5,"cachedContentTokenCount":3,"candidatesTokenCount":4,
            "thoughtsTokenCount":6,"totalTokenCount":15}}"#,
            Some("15"),
        );
        json(&GEMINI, r#"{"candidates":[],"usageMetadata":{"totalTokenCount":9}}"#, Some("9"));
        json(
            &GEMINI,
            r#"[{"usageMetadata":{"totalTokenCount":9}},{"usageMetadata":{"totalTokenCount":12}}]"#,
            Some("12"),
        );
        for cost in [OPENAI, ANTHROPIC, GEMINI] {
            json(&cost, r#"{"error":{"message":"no"}}"#, None);
            json(&cost, r#"{"usage":{"total_tokens":25"#, None);
            json(&cost, "", None);
        }
        json(&OPENAI, r#"{"usage":{"total_tokens":1.5}}"#, Some("1.5"));
        json(&OPENAI, r#"{"usage":{"total_tokens":25.0}}"#, Some("25"));
        json(&OPENAI, r#"{"usage":{"total_tokens":1,"total_tokens":2}}"#, Some("several values"));
    }

    #[test]
    fn the_known_apis_tell_their_tokens_in_streams() {
        let events = |cost: &BodyCost, body: &str, expected| {
            check(cost, BodyForm::Events, body, expected);
            check(cost, BodyForm::Events, &body.replace('\n', "\r\n"), expected);
        };
        let openai = "data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}],\"usage\":null}\n\n\
                      data: {\"choices\":[],\"usage\":{\"total_tokens\":25}}\n\ndata: [DONE]\n\n";
        events(&OPENAI, openai, Some("25"));
        events(&OPENAI, "data: {\"choices\":[],\"usage\":null}\n\ndata: [DONE]\n\n", None);
        let responses = "event: response.created\ndata: {\"response\":{\"usage\":null}}\n\n\
                         event: response.completed\ndata: {\"response\":{\"usage\":{\"total_tokens\":8}}}\n\n";
        events(&OPENAI, responses, Some("8"));
        let anthropic = "event: message_start\n\
                         data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":25,\"output_tokens\":1}}}\n\n\
                         event: ping\ndata: {\"type\":\"ping\"}\n\n\
                         event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":15}}\n\n\
                         event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
        events(&ANTHROPIC, anthropic, Some("40"));
        let cached = "event: message_start\n\
                      data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":5,\
                      \"cache_creation_input_tokens\":200,\"cache_read_input_tokens\":95,\"output_tokens\":1}}}\n\n\
                      event: message_delta\n\
                      data: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":15}}\n\n";
        events(&ANTHROPIC, cached, Some("315"));
        // Newer versions repeat all counts, added up.
        let repeated = cached.replace(
            "\"usage\":{\"output_tokens\":15}",
            "\"usage\":{\"input_tokens\":7,\
                      \"cache_creation_input_tokens\":200,\"cache_read_input_tokens\":96,\"output_tokens\":15}",
        );
        events(&ANTHROPIC, &repeated, Some("318"));
        let (before, _) = anthropic.split_once("event: message_delta").unwrap();
        events(&ANTHROPIC, before, Some("26"));
        let gemini = "data: {\"usageMetadata\":{\"totalTokenCount\":9}}\n\ndata: {\"usageMetadata\":{\n\
                      data: \"totalTokenCount\":12}}\n\n";
        events(&GEMINI, gemini, Some("12"));
    }

    /// The costs are worked out by hand. The proxy is tested with the same bodies.
    #[test]
    fn tokens_cost_by_their_kind() {
        let written = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let cases = include_str!("../../../integration/cases/token_costs.jsonl");
        for case in cases.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
            let usage = Usage::ALL.into_iter().find(|usage| usage.label() == case["usage"]).unwrap();
            let weight = |kind: TokenKind| Some(format!("{:.0}", case["weights"][kind.label()].as_f64()? * 1000.0));
            let weights = TokenWeights::new(|kind| weight(kind)?.parse().ok());
            let cost = BodyCost::Usage(usage, case["weights"].is_object().then_some(weights));
            let (form, body) = match case["events"].as_array() {
                Some(events) => {
                    let events: Vec<_> = events.iter().map(|event| format!("data: {}\n\n", written(event))).collect();
                    (BodyForm::Events, events.concat())
                }
                None => (BodyForm::Json, written(&case["body"])),
            };
            let mut reader = CostReader::new(&cost, form);
            body.as_bytes().chunks(7).for_each(|part| reader.push(part));
            let told = reader.finish();
            let cost = match told.as_ref().map(|told| told.parse::<u64>()) {
                Some(Ok(cost)) if cost < EXACT => Value::from(cost),
                Some(_) => Value::from("unreadable"),
                None => Value::from("absent"),
            };
            assert_eq!(cost, case["cost"], "{case}: {told:?}");
        }
    }

    #[test]
    fn the_places_of_all_counts_are_pointers() {
        for usage in Usage::ALL {
            for (_, places) in usage.counts(true) {
                places.iter().for_each(|place| assert_eq!(JsonPointer::parse(place).unwrap().as_str(), *place));
            }
        }
    }

    #[test]
    fn only_plain_json_and_event_streams_are_read() {
        let form = |headers: &[(&'static str, &str)]| BodyForm::of(&headers.iter().copied().collect());
        for name in ["application/json", "Application/JSON; charset=utf-8", "application/problem+json"] {
            assert_eq!(form(&[("content-type", name)]), Ok(BodyForm::Json), "{name}");
        }
        assert_eq!(form(&[("content-type", "text/event-stream; charset=utf-8")]), Ok(BodyForm::Events));
        assert_eq!(form(&[("content-type", "text/plain")]), Err(UnreadBody::OtherType));
        assert_eq!(form(&[]), Err(UnreadBody::OtherType));
        for (coding, expected) in [("gzip", Err(UnreadBody::Encoded)), ("identity", Ok(BodyForm::Json))] {
            let headers = [("content-type", "application/json"), ("content-encoding", coding)];
            assert_eq!(form(&headers), expected, "{coding}");
        }
    }
}
