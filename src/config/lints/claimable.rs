//! `ban-of-others` and `chosen-number`: what clients can claim about themselves, where it gets others banned or themselves more.

use super::super::problem::Place;
use super::{Lint, Subject};
use crate::engine::limit::request_numbers::RequestNumbers;
use crate::engine::request::part::Part;

/// Returns the lints, with their messages and advice.
pub(super) fn find(subject: &Subject<'_>) -> Vec<(Lint, Place, String, &'static str)> {
    let limit = subject.limit;
    let free = |part: &&Part| part.is_free();
    let banned = limit.by.iter().map(|by| &by.part).find(free).filter(|_| limit.ban.is_some());
    let of_ban = banned.map(|part| {
        let message = format!("clients can choose the {part}, and so have the ids of others banned");
        let advice = "ban by `ip`, by a claim, or by `credentials`";
        (Lint::BanOfOthers, subject.places.of("ban"), message, advice)
    });
    let sources = limit.request_numbers.as_deref().map(RequestNumbers::sources);
    let of_numbers = sources.into_iter().flatten().filter(|(_, source)| source.part.is_free()).map(|(key, source)| {
        let message = format!("clients can send the {}, and so choose their own limit", source.part);
        let advice = "write a `claim`, or have only trusted proxies send the header (`--drop-headers`)";
        (Lint::ChosenNumber, subject.places.of(key), message, advice)
    });
    of_ban.into_iter().chain(of_numbers).collect()
}
