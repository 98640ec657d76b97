//! The words of a charge, which the script reads from an argument of a call.
//!
//! They are text because most requests of a call have the same, and the script reads a text once. Instructions of Redis 7.0 for a
//! request's words, as text and packed by `struct`: 64 equal ones in a call 1,700 and 7,300, 64 different ones 16,400 and 7,300,
//! one alone 18,100 and 9,300, of 176,000 for the call. `cmsgpack` takes 16,300, 16,600 and 20,800. Not repeating equal texts
//! would save 200 to 1,000 of the 63,000 of a request.

use std::fmt::Write;

use crate::engine::algorithms::algorithm::Algorithm;
use crate::engine::algorithms::charge::{Charge, Elevated, Input, Mode, Role, Slot};
use crate::engine::algorithms::delay::Delay;
use crate::engine::algorithms::lease::{EndedLease, LeaseAsk, LeaseWish};
use crate::engine::algorithms::micros::{EXACT, Micros};
use crate::engine::algorithms::reservation::Reservation;
use crate::engine::algorithms::sliding_window;
use crate::engine::algorithms::windows::Windows;

/// More than the words of a charge take, without its input and without a calendar of many windows.
const USUAL_WORDS: usize = 256;

/// Adds the words of one of a request's charges, made at `now` by this machine's clock.
pub(super) fn push(words: &mut String, charge: &Charge, charges: &[Charge], now: Micros) {
    push_number(words, charge.numbers.burst(), ' ');
    push_numbers(words, charge, now);
    push_number(words, charge.cost, ' ');
    words.push_str(word(charge.mode));
    push_role(words, charge, charges);
    if charge.is_told() {
        words.push('~');
    } else if let Some(Micros(taken)) = charge.taken() {
        words.push('~');
        words.push_str(itoa::Buffer::new().format(taken.min(EXACT - 1)));
    }
    if charge.changed > Micros(0) {
        words.push('@');
        words.push_str(itoa::Buffer::new().format(charge.changed.0.min(EXACT - 1)));
    }
    if let Some(Delay { most, patience }) = charge.delay() {
        let _ = write!(words, "={}:{}", patience.0, most.0);
    }
    match charge.reservation() {
        Some(Reservation::Reserve(id, span)) => drop(write!(words, "!{id}:{}", span.0)),
        Some(Reservation::Commit(id)) => drop(write!(words, "!{id}")),
        None => {}
    }
    if let Some(LeaseAsk { wish, ended }) = charge.lease_ask() {
        if let Some(LeaseWish { terms, demand }) = wish {
            let _ = write!(words, "+{}:{}:{demand}", terms.tokens, terms.span);
        }
        if let Some(EndedLease { granted, left, until }) = ended {
            let _ = write!(words, "-{granted}:{left}:{}", until.0);
        }
    }
}

/// Adds the role of a charge among all of its request, and its group, where they decide whether it takes its cost.
fn push_role(words: &mut String, charge: &Charge, charges: &[Charge]) {
    let role = match (charge.mode, charge.origin.role) {
        (Mode::SpendUpTo | Mode::Refund | Mode::Reset, _) => return,
        (_, Role::Candidate(place)) => Some(char::from(b'c' + place)),
        (_, Role::Strike) => Some('b'),
        (_, Role::Shadow) => Some('s'),
        (Mode::SpendOnly, Role::Enforced) if charges.len() > 1 => Some('s'),
        (Mode::SpendOnly, Role::Enforced) => return,
        (_, Role::Enforced) if charges.iter().any(|charge| charge.origin.is_beside()) => None,
        (_, Role::Enforced) => return,
    };
    words.push('/');
    words.extend(role);
    words.push_str(itoa::Buffer::new().format(charge.origin.group));
}

fn push_number(words: &mut String, number: u64, end: char) {
    words.push_str(itoa::Buffer::new().format(number));
    words.push(end);
}

/// Adds the two words that say how tokens come back.
fn push_numbers(words: &mut String, charge: &Charge, now: Micros) {
    let numbers = &charge.numbers;
    let algorithm = numbers.algorithm();
    if algorithm.keeps_level() {
        push_number(words, numbers.weight(), ' ');
        return match (charge.elevated(), numbers.windows()) {
            (Some(elevated), _) => push_elevated(words, charge, elevated),
            (None, Some(windows)) => push_windows(words, charge, windows, now),
            (None, None) => push_number(words, numbers.drain(), ' '),
        };
    }
    push_number(words, numbers.burst(), ' ');
    words.push_str(algorithm.name());
    words.push(':');
    match (algorithm, charge.input.as_deref()) {
        (Algorithm::SlidingWindow { count_denied }, _) => {
            push_number(words, numbers.span(), ':');
            words.push_str(itoa::Buffer::new().format(sliding_window::tick(numbers.burst(), numbers.span())));
            words.push_str(if count_denied { ":count_denied" } else { "" });
        }
        (Algorithm::Concurrency, _) => {
            push_number(words, numbers.span(), ':');
            if let Some(Slot(name)) = charge.slot() {
                let _ = write!(words, "{name:032x}");
            }
        }
        (Algorithm::Queue, Some(Input::Queue(work))) => {
            words.push_str(work.storage.word());
            words.push(':');
            push_number(words, numbers.span(), ':');
            words.push_str(match (&work.given_back, charge.mode) {
                (Some(id), Mode::Refund) => id.as_str(),
                (None, Mode::Refund) => "",
                _ => work.entry.as_str(),
            });
        }
        (Algorithm::Script, Some(Input::Script(run))) => {
            words.push_str(&run.source.name);
            words.push(':');
            words.push_str(&run.arguments);
        }
        _ => words.push_str(itoa::Buffer::new().format(numbers.span())),
    }
    words.push(' ');
}

/// Adds the word of elevated numbers.
fn push_elevated(words: &mut String, charge: &Charge, elevated: &Elevated) {
    let Elevated { numbers, span, activations_per_month, quota: _ } = elevated;
    words.push_str("elevated:");
    for number in [charge.numbers.drain(), numbers.burst(), numbers.token(), numbers.drain(), *span] {
        push_number(words, number, ':');
    }
    words.push_str(itoa::Buffer::new().format(*activations_per_month));
    if let Some((tag, name)) = charge.quota() {
        let _ = write!(words, ":{tag}:{name}");
    }
    words.push(' ');
}

/// The end of the key of a charge's quota. No limit's name begins so. On a single server, where all keys have one hash tag, it tells
/// quotas of different tags apart.
pub(super) fn quota_key(charge: &Charge) -> Option<String> {
    charge.quota().map(|(tag, name)| format!("!quota:{tag}:{name}"))
}

/// Adds the word of windows. Those of a calendar around `now` are listed: the server knows no time zones, but its clock decides,
/// and may be some windows ahead of ours or behind.
fn push_windows(words: &mut String, charge: &Charge, windows: Windows<'_>, now: Micros) {
    match windows {
        Windows::First(period) => {
            words.push_str("first:");
            push_number(words, period, ' ');
        }
        Windows::Clock(period) => {
            words.push_str("clock:");
            push_number(words, period, ' ');
        }
        Windows::Calendar(calendar) => {
            let ahead = charge.delay().map_or(0, |delay| delay.windows(windows));
            let (current, fill) = (calendar.number(now), charge.numbers.windows_to_fill() + ahead);
            let first = current.saturating_sub(fill);
            words.push_str(calendar.name());
            words.push(':');
            push_number(words, first, ':');
            for number in first..=current + 1 + fill {
                let end = if number > current + fill { ' ' } else { ',' };
                push_number(words, calendar.start(number).0, end);
            }
        }
    }
}

/// Returns whether a charge lacks the input of its algorithm. Its words would be invalid, and with them the whole call.
pub(in super::super) fn lacks_input(charge: &Charge) -> bool {
    match charge.numbers.algorithm() {
        Algorithm::Queue => !matches!(charge.input.as_deref(), Some(Input::Queue(_))),
        Algorithm::Script => !matches!(charge.input.as_deref(), Some(Input::Script(_))),
        _ => false,
    }
}

/// Returns about the most bytes of a charge's words.
pub(super) fn longest(charge: &Charge) -> usize {
    let input = match charge.input.as_deref() {
        Some(Input::Queue(work)) => work.entry.as_str().len(),
        Some(Input::Script(run)) => run.arguments.len(),
        _ => 0,
    };
    USUAL_WORDS + input
}

const fn word(mode: Mode) -> &'static str {
    match mode {
        Mode::Spend => "spend",
        Mode::Check => "check",
        Mode::Look => "look",
        Mode::SpendOnly => "spend_only",
        Mode::SpendUpTo => "spend_up_to",
        Mode::Refund => "refund",
        Mode::Reset => "reset",
    }
}
