//! Costs in the bodies of responses.

use std::fmt;

use crate::engine::algorithms::micros::EXACT;
use crate::message::event_stream::{EventPart, EventStream};
use crate::message::headers::Headers;
use crate::message::json_lookup::{JsonLookup, LookupError};
use crate::message::json_pointer::JsonPointer;

/// The place of a cost in a response's body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodyCost {
    /// The value at a pointer.
    Json(JsonPointer),
    /// The tokens that the API of a model has used.
    Usage(Usage),
}

label! {
    /// The APIs whose responses have the tokens used.
    pub enum Usage {
        OpenAi = "openai",
        Anthropic = "anthropic",
        Gemini = "gemini",
    }
}

/// The counts that make up a usage of Anthropic's API.
const ANTHROPIC_TOKENS: [&str; 4] =
    ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens"];

impl BodyCost {
    /// The pointers whose values are added. Of the pointers of one summand, the value that comes last counts.
    fn summands(&self) -> Vec<Vec<JsonPointer>> {
        let keys = |names: [&str; 2]| JsonPointer::of_keys(names);
        match self {
            Self::Json(pointer) => vec![vec![pointer.clone()]],
            // The second is of the last event of a streamed response of the Responses API.
            Self::Usage(Usage::OpenAi) => {
                vec![vec![keys(["usage", "total_tokens"]), JsonPointer::of_keys(["response", "usage", "total_tokens"])]]
            }
            // Tokens written to and read from the cache are beside `input_tokens`. A stream has all of them in `message_start`, and
            // the output so far in each `message_delta`.
            Self::Usage(Usage::Anthropic) => ANTHROPIC_TOKENS
                .map(|name| vec![keys(["usage", name]), JsonPointer::of_keys(["message", "usage", name])])
                .into(),
            // Without `alt=sse`, a streamed response is an array.
            Self::Usage(Usage::Gemini) => {
                let total = keys(["usageMetadata", "totalTokenCount"]);
                vec![vec![total.clone(), total.in_each_element()]]
            }
        }
    }
}

impl fmt::Display for BodyCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(pointer) => write!(f, "json {pointer}"),
            Self::Usage(usage) => write!(f, "usage {}", usage.label()),
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
    summands: Vec<Summand>,
}

#[derive(Debug, Default)]
struct Summand {
    lookups: Vec<JsonLookup>,
    /// The value that came last.
    last: Option<Result<String, LookupError>>,
}

impl CostReader {
    pub fn new(cost: &BodyCost, form: BodyForm) -> Self {
        let stream = (form == BodyForm::Events).then(EventStream::default);
        let summand = |pointers: Vec<JsonPointer>| Summand {
            lookups: pointers.into_iter().map(JsonLookup::new).collect(),
            last: None,
        };
        Self { stream, summands: cost.summands().into_iter().map(summand).collect() }
    }

    /// Reads on.
    pub fn push(&mut self, bytes: &[u8]) {
        let summands = &mut self.summands;
        match &mut self.stream {
            None => summands.iter_mut().for_each(|summand| summand.push(bytes)),
            Some(stream) => stream.push(bytes, |part| take(summands, part)),
        }
    }

    /// Returns what the body has told of the cost, now that it has ended or was left. JSON that was cut off tells none.
    pub fn finish(&mut self) -> Option<String> {
        let summands = &mut self.summands;
        match &mut self.stream {
            None => summands.iter_mut().for_each(Summand::end_document),
            Some(stream) => stream.finish(|part| take(summands, part)),
        }
        let mut values = summands.iter_mut().filter_map(|summand| summand.last.take()).peekable();
        values.peek()?;
        let mut sum: u64 = 0;
        for value in values {
            let Ok(text) = value else { return Some("several values".to_owned()) };
            match text.parse::<u64>().ok().filter(|number| *number < EXACT) {
                Some(number) => sum = sum.saturating_add(number),
                None => return Some(text),
            }
        }
        Some(sum.to_string())
    }
}

fn take(summands: &mut [Summand], part: EventPart<'_>) {
    for summand in summands {
        match part {
            EventPart::Data(bytes) => summand.push(bytes),
            EventPart::End => summand.end_document(),
        }
    }
}

impl Summand {
    fn push(&mut self, bytes: &[u8]) {
        self.lookups.iter_mut().for_each(|lookup| lookup.push(bytes));
    }

    fn end_document(&mut self) {
        for lookup in &mut self.lookups {
            match lookup.finish() {
                Ok(Some(value)) => self.last = Some(Ok(value)),
                Err(LookupError::Unusable) => self.last = Some(Err(LookupError::Unusable)),
                // Not every event is JSON, such as the `[DONE]` at the end.
                Ok(None) | Err(LookupError::Invalid) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    const OPENAI: BodyCost = BodyCost::Usage(Usage::OpenAi);
    const ANTHROPIC: BodyCost = BodyCost::Usage(Usage::Anthropic);
    const GEMINI: BodyCost = BodyCost::Usage(Usage::Gemini);

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
