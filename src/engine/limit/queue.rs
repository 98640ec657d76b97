//! `algorithm: queue`: the fields of an entry, and what follows for the request.

use crate::engine::algorithms::queue::{EntryTooLong, LONGEST_ENTRY, QueueEntry, Storage};
use crate::engine::request::Request;
use crate::engine::request::part::TypedPart;
use crate::engine::text::quote::quoted;

/// An entry for a queue that is too large.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin} must be {wanted}, got `{value}`")]
pub struct InvalidInput {
    /// The queue.
    pub origin: String,
    pub wanted: &'static str,
    /// Cut to a readable length.
    pub value: String,
}

/// `algorithm: queue`, beside the numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    pub storage: Storage,
    pub then: FollowUp,
    /// The fields of an entry by name, 1 to 16. Names have letters, digits, `_`, `.` and `-`.
    pub fields: Vec<(String, TypedPart)>,
}

/// `then:`, for a request whose entry was added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FollowUp {
    /// It is answered with 202.
    #[default]
    Accept,
    /// It is forwarded with the id of the entry.
    Forward,
}

impl Queue {
    /// The entry of a request. Missing and malformed fields are empty, so that all entries have the same fields.
    pub fn entry(&self, limit: &str, request: &Request<'_>) -> Result<QueueEntry, InvalidInput> {
        let value = |part: &TypedPart| part.of(request).unwrap_or_default();
        let entry = QueueEntry::of(self.fields.iter().map(|(name, part)| (name.as_str(), value(part))));
        entry.map_err(|EntryTooLong(bytes)| InvalidInput {
            origin: format!("the queue entry of {limit}"),
            wanted: "at most 8192 bytes",
            value: format!("{bytes} bytes"),
        })
    }

    /// The entry of a charge by name. Fields that are not given are empty.
    pub fn entry_of(&self, given: &[(String, String)]) -> Result<QueueEntry, String> {
        if let Some((unknown, _)) = given.iter().find(|(name, _)| !self.fields.iter().any(|(known, _)| known == name)) {
            let known: Vec<&str> = self.fields.iter().map(|(name, _)| name.as_str()).collect();
            return Err(format!("unknown field {}; the fields are {}", quoted(unknown), known.join(", ")));
        }
        let value = |name: &str| given.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value.as_str());
        let entry = QueueEntry::of(self.fields.iter().map(|(name, _)| (name.as_str(), value(name))));
        entry.map_err(|EntryTooLong(bytes)| {
            format!("an entry may have at most {LONGEST_ENTRY} bytes, this one has {bytes}")
        })
    }
}

const _: () = assert!(LONGEST_ENTRY == 8192, "the message says so");

#[cfg(test)]
mod tests {
    use http::header::HeaderName;

    use super::*;
    use crate::engine::request::part::Part;
    use crate::engine::request::sample;
    use crate::engine::request::value_type::ValueType;
    use crate::message::headers::Headers;

    fn queue() -> Queue {
        let part = |source| TypedPart::new(source, ValueType::Text);
        let user = part(Part::Header(HeaderName::from_static("x-user")));
        let fields = vec![("user".to_owned(), user), ("path".to_owned(), part(Part::Path))];
        Queue { storage: Storage::Stream, then: FollowUp::Accept, fields }
    }

    #[track_caller]
    fn check(user: Option<&str>, path: &str, expected: Result<&str, usize>) {
        let headers: Headers = user.map(|user| ("x-user", user)).into_iter().collect();
        let entry = queue().entry("Jobs", &Request { path, ..sample(&headers) });
        let entry = entry.as_ref().map(QueueEntry::as_str).map_err(|error| error.value.clone());
        assert_eq!(entry, expected.map_err(|bytes| format!("{bytes} bytes")));
    }

    #[test]
    fn no_value_makes_a_pair_or_a_word_of_its_own() {
        check(Some("alice"), "/a", Ok("user=alice,path=/a"));
        check(Some("a b,user=eve 1 spend"), "/%41", Ok("user=a%20b%2Cuser%3Deve%201%20spend,path=/%2541"));
        check(Some("{}:*\"\\#"), "/ü\r\n", Ok("user=%7B%7D%3A%2A%22%5C%23,path=/%C3%BC%0D%0A"));
    }

    #[test]
    fn what_a_request_lacks_is_empty_and_entries_have_a_bound() {
        check(None, "/a", Ok("user=,path=/a"));
        check(None, &format!("/{}", "a".repeat(LONGEST_ENTRY - 9)), Ok(&format!("user=,path=/{}", "a".repeat(8183))));
        check(None, &format!("/{}", "a".repeat(LONGEST_ENTRY)), Err(LONGEST_ENTRY + 9));
    }

    #[test]
    fn values_are_given_by_name() {
        let given = |fields: &[(&str, &str)]| {
            let fields: Vec<_> = fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            queue().entry_of(&fields).map(|entry| entry.as_str().to_owned())
        };
        assert_eq!(given(&[("path", "/b"), ("user", "bob")]), Ok("user=bob,path=/b".into()));
        assert_eq!(given(&[]), Ok("user=,path=".into()));
        assert_eq!(given(&[("who", "bob")]), Err("unknown field `who`; the fields are user, path".into()));
        assert!(given(&[("user", &"a".repeat(9_000))]).unwrap_err().contains("has 9008"));
    }
}
