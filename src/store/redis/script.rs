//! The call of the script: its keys, its arguments, its reply.
//!
//! The script is `lua/decide.lua` with the algorithms in it that it includes. Each of their files runs alone as well.

use std::fmt::Write;
use std::sync::LazyLock;

use redis::{Cmd, Script, Value};

use super::user_scripts::{self, Scripts};
use super::{describe, detail};
use crate::engine::algorithms::charge::{Charge, Decision, Decisions, Mode, Outcome};
use crate::engine::algorithms::details::{Elevated, Slot, Terms};
use crate::engine::algorithms::numbers::{EXACT, Micros, Numbers};
use crate::engine::algorithms::refill::{Kind, Windows};
use crate::engine::algorithms::sliding_window;

/// The script, and the files that it includes.
const DECIDE: &str = include_str!("../../../lua/decide.lua");
const FILES: [(&str, &str); 8] = [
    ("gcra.lua", include_str!("../../../lua/gcra.lua")),
    ("fixed_window.lua", include_str!("../../../lua/fixed_window.lua")),
    ("sliding_log.lua", include_str!("../../../lua/sliding_log.lua")),
    ("sliding_window.lua", include_str!("../../../lua/sliding_window.lua")),
    ("concurrency.lua", include_str!("../../../lua/concurrency.lua")),
    ("queue.lua", include_str!("../../../lua/queue.lua")),
    ("script.lua", include_str!("../../../lua/script.lua")),
    ("elevated.lua", include_str!("../../../lua/elevated.lua")),
];

pub(super) static SOURCE: LazyLock<String> = LazyLock::new(assembled);

/// The script with what it includes. Comments need not go to the server.
fn assembled() -> String {
    let mut source = String::with_capacity(32 * 1024);
    for line in DECIDE.lines() {
        match line.trim_start().strip_prefix("-- include ") {
            Some(name) => {
                let file = FILES.iter().find(|(file, _)| *file == name).map_or("", |(_, text)| text);
                let shared =
                    file.lines().skip_while(|line| *line != "-- Shared").take_while(|line| *line != "-- Alone");
                shared.for_each(|line| push_code(&mut source, line));
            }
            None => push_code(&mut source, line),
        }
    }
    source
}

fn push_code(source: &mut String, line: &str) {
    let code = line.trim_start();
    if !code.is_empty() && !code.starts_with("--") {
        source.push_str(code);
        source.push('\n');
    }
}

/// A script without its comments.
pub(super) fn without_comments(script: &str) -> String {
    let mut source = String::with_capacity(script.len());
    script.lines().for_each(|line| push_code(&mut source, line));
    source
}

/// The SHA-1 under which a server keeps the script. Computed once: hashing the source takes longer than a decision.
static HASH: LazyLock<String> = LazyLock::new(|| Script::new(&SOURCE).get_hash().to_owned());

/// The beginning of a bucket's key.
///
/// The hash tag `{0}` is the same for all, so that a Redis Cluster would keep the keys of any call in one slot, as a
/// script requires. The text of a client never makes a tag: `Bucket::key` is percent-encoded, braces included.
const KEY_PREFIX: &str = "weir:{0}:";

/// What the command has beside keys and requests, in bytes; a longer number only makes the buffer grow.
const BYTES_PER_CALL: usize = 128;

/// Four numbers of at most 20 digits, the longest mode and two more numbers, and a blank after each.
const LONGEST_WORDS: usize = 4 * 21 + "spend_up_to~@".len() + 2 * 20 + 1;

/// The name of a slot: 128 bits in hexadecimal digits.
const SLOT_NAME: usize = 32;
/// What elevated numbers add: a word and five numbers.
const LONGEST_ELEVATED: usize = "elevated:".len() + 5 * 21;

/// How the script is named in the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// By its hash: what every call tries.
    Hash,
    /// By its source: what a server that lost its scripts is sent. EVAL also caches the script, and unlike SCRIPT LOAD
    /// it is decided by the node that has the keys and by the ACL rule that the call needs anyway.
    Source,
}

/// The requests of one call, as the script reads them: texts in one buffer rather than one allocation each.
#[derive(Debug, Default)]
pub(super) struct Requests {
    keys: Texts,
    words: Texts,
    /// The burst of each charge: the one part of its decision that the script does not repeat.
    bursts: Vec<u64>,
    /// The bursts that hold while elevated numbers are on, by the number of the charge.
    elevated: Vec<(usize, u64)>,
    /// The number of charges of each request.
    counts: Vec<usize>,
    /// What the requests run of the user's.
    scripts: Scripts,
}

/// Texts, one after the other.
#[derive(Debug, Default)]
struct Texts {
    text: String,
    /// Where each of them ends.
    ends: Vec<usize>,
}

/// What became of each request of a call, an error in the server's words, and how many keys held text that is no bucket.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) answers: Vec<Result<Decisions, String>>,
    pub(super) corrupt: u64,
}

/// Ties a reply to its call: the script echoes it. Otherwise a reply lost or duplicated on the way would shift all later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallNumber(pub(super) u64);

impl CallNumber {
    /// As it is sent.
    pub(super) fn text(self) -> String {
        format!("#{:x}", self.0)
    }
}

/// A reply that is not an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BadReply {
    /// It belongs to another call.
    Foreign(String),
    /// It belongs to this call and is malformed.
    Nonsense(String),
}

impl Texts {
    fn push(&mut self, text: &str) {
        self.text.push_str(text);
        self.end();
    }

    fn end(&mut self) {
        self.ends.push(self.text.len());
    }

    fn iter(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.text[start..*end])
    }
}

impl Requests {
    /// No requests yet; all of them will run these scripts.
    pub(super) fn with(scripts: Scripts) -> Self {
        Self { scripts, ..Self::default() }
    }

    /// Whether a request with these charges runs the same scripts as the others.
    pub(super) fn runs_as(&self, charges: &[Charge]) -> bool {
        let has_script = charges.iter().any(|charge| charge.numbers.is_script());
        if has_script { self.scripts == user_scripts::of(charges) } else { self.scripts.is_empty() }
    }

    /// Adds a request with these charges, which asks at `now` by the clock of this machine.
    pub(super) fn push(&mut self, charges: &[Charge], now: Micros) {
        for (place, charge) in charges.iter().enumerate() {
            let Charge { bucket, numbers, cost, mode, .. } = charge;
            self.keys.text.push_str(KEY_PREFIX);
            self.keys.text.push_str(&bucket.key);
            self.keys.end();
            let words = &mut self.words.text;
            if place > 0 {
                words.push(' ');
            }
            push_number(words, numbers.burst(), ' ');
            push_numbers(words, charge, now);
            push_number(words, *cost, ' ');
            words.push_str(word(*mode));
            if let Some(Micros(ago)) = charge.taken_ago() {
                words.push('~');
                words.push_str(itoa::Buffer::new().format(ago.min(EXACT - 1)));
            }
            if charge.changed > Micros(0) {
                words.push('@');
                words.push_str(itoa::Buffer::new().format(charge.changed.0.min(EXACT - 1)));
            }
            if let Some(elevated) = charge.elevated() {
                self.elevated.push((self.bursts.len(), elevated.numbers.burst()));
            }
            self.bursts.push(numbers.burst());
        }
        self.words.end();
        self.counts.push(charges.len());
    }

    /// The charges of all requests.
    pub(super) fn charges(&self) -> usize {
        self.bursts.len()
    }

    /// The length of all texts.
    pub(super) fn bytes(&self) -> usize {
        self.keys.text.len() + self.words.text.len()
    }

    /// By how much these charges make it longer at most.
    pub(super) fn bytes_of(charges: &[Charge]) -> usize {
        let keys: usize = charges.iter().map(|charge| KEY_PREFIX.len() + charge.bucket.key.len()).sum();
        keys + charges.iter().map(longest_words).sum::<usize>()
    }

    /// The command that decides them; `now` is `None` for the server's clock.
    pub(super) fn command(&self, form: Form, now: Option<Micros>, effective_from: Micros, number: CallNumber) -> Cmd {
        let own = (!self.scripts.is_empty()).then(|| user_scripts::assembled(&SOURCE, &self.scripts));
        let (name, script) = match (form, own.as_deref()) {
            (Form::Hash, None) => ("EVALSHA", HASH.as_str()),
            (Form::Hash, Some(own)) => ("EVALSHA", own.hash.as_str()),
            (Form::Source, None) => ("EVAL", SOURCE.as_str()),
            (Form::Source, Some(own)) => ("EVAL", own.source.as_str()),
        };
        let arguments = 6 + self.charges() + self.counts.len();
        let mut command = Cmd::with_capacity(arguments, BYTES_PER_CALL + script.len() + self.bytes());
        command.arg(name).arg(script).arg(self.charges());
        for key in self.keys.iter() {
            command.arg(key);
        }
        match now {
            Some(now) => command.arg(now.0),
            None => command.arg(""),
        };
        // The script reads no instant beyond 2^53, and none from there on can be before a `now` that it can read.
        command.arg(effective_from.0.min(EXACT - 1));
        for words in self.words.iter() {
            command.arg(words);
        }
        command.arg(number.text());
        command
    }

    /// Keeps the requests at the places that are true in `keep`.
    pub(super) fn retain(&mut self, keep: &[bool]) {
        let old = std::mem::take(self);
        self.scripts = old.scripts;
        let (mut keys, mut bursts, mut first) = (old.keys.iter(), old.bursts.iter(), 0);
        for ((count, words), keep) in old.counts.iter().zip(old.words.iter()).zip(keep) {
            let (keys, bursts) = (keys.by_ref().take(*count), bursts.by_ref().take(*count));
            if *keep {
                let elevated = old.elevated.iter().filter(|(place, _)| (first..first + count).contains(place));
                let start = self.bursts.len();
                self.elevated.extend(elevated.map(|(place, burst)| (start + place - first, *burst)));
                keys.for_each(|key| self.keys.push(key));
                self.words.push(words);
                self.bursts.extend(bursts);
                self.counts.push(*count);
            } else {
                keys.for_each(drop);
                bursts.for_each(drop);
            }
            first += count;
        }
    }

    /// What the script answered to the call of this number.
    pub(super) fn reply(&self, value: Value, number: CallNumber) -> Result<Reply, BadReply> {
        let Value::Array(mut values) = value else { return Err(BadReply::Foreign(format!("{value:?}"))) };
        let said = match values.pop_if(|value| matches!(value, Value::Array(_))) {
            Some(Value::Array(said)) => said,
            _ => Vec::new(),
        };
        match values.pop() {
            Some(Value::BulkString(echo)) if echo == number.text().as_bytes() => {}
            other => return Err(BadReply::Foreign(format!("{:?} at its end", other.unwrap_or(Value::Nil)))),
        }
        self.read(values, said).map_err(BadReply::Nonsense)
    }

    fn read(&self, values: Vec<Value>, said: Vec<Value>) -> Result<Reply, String> {
        let (length, mut values) = (values.len(), values.into_iter().peekable());
        let short = || format!("the script's reply has {length} values for {} charges", self.charges());
        let corrupt = number(&values.next().ok_or_else(short)?)?;
        let mut bursts = self.bursts.iter();
        let mut answers = Vec::with_capacity(self.counts.len());
        for count in &self.counts {
            let bursts = bursts.by_ref().take(*count);
            if let Some(Value::ServerError(error)) = values.next_if(|value| matches!(value, Value::ServerError(_))) {
                bursts.for_each(drop);
                answers.push(Err(describe(&error.into())));
                continue;
            }
            let mut next = || values.next().ok_or_else(short);
            let decisions = bursts.map(|burst| {
                Ok(Decision {
                    outcome: outcome(&next()?)?,
                    limit: *burst,
                    remaining: number(&next()?)?,
                    retry_after: span(&next()?)?,
                    reset_after: span(&next()?)?,
                })
            });
            answers.push(Ok(decisions.collect::<Result<_, String>>()?));
        }
        if values.next().is_some() {
            return Err(short());
        }
        self.add_details(said, &mut answers)?;
        Ok(Reply { answers, corrupt })
    }
}

impl Requests {
    /// Hands each request what algorithms have said of its charges, which are numbered through the call.
    fn add_details(&self, said: Vec<Value>, answers: &mut [Result<Decisions, String>]) -> Result<(), String> {
        let mut said = said.into_iter();
        while let (Some(charge), Some(detail)) = (said.next(), said.next()) {
            let (charge, detail) = (number(&charge)?, detail::read(detail)?);
            let (mut place, mut request) = (charge, 0);
            while let Some(count) = self.counts.get(request).filter(|count| place >= **count as u64) {
                place -= *count as u64;
                request += 1;
            }
            if let (Some(Ok(answer)), Ok(place)) = (answers.get_mut(request), usize::try_from(place)) {
                let burst = self.elevated.iter().find(|(of, _)| *of as u64 == charge).map(|(_, burst)| *burst);
                let is_active = detail.elevation().is_some_and(|elevation| elevation.active);
                if let Some(burst) = burst.filter(|_| is_active) {
                    answer.set_limit(place, burst);
                }
                answer.details.push((place, detail));
            }
        }
        Ok(())
    }
}

fn push_number(words: &mut String, number: u64, end: char) {
    words.push_str(itoa::Buffer::new().format(number));
    words.push(end);
}

/// The two words that say how the tokens of a charge come back.
fn push_numbers(words: &mut String, charge: &Charge, now: Micros) {
    let numbers = &charge.numbers;
    match numbers.refill().kind() {
        Kind::Level => {
            push_number(words, numbers.written().0, ' ');
            if let Some(elevated) = charge.elevated() {
                return push_elevated(words, numbers, elevated);
            }
            match numbers.refill().windows() {
                Some(windows) => push_windows(words, numbers, windows, now),
                None => push_number(words, numbers.drain(), ' '),
            }
        }
        Kind::Log(period) => {
            push_number(words, numbers.burst(), ' ');
            words.push_str("sliding_log:");
            push_number(words, period, ' ');
        }
        Kind::SlidingWindow(period) => {
            push_number(words, numbers.burst(), ' ');
            words.push_str("sliding_window:");
            push_number(words, period, ':');
            let counts_denied = numbers.refill().counts_denied();
            push_number(words, sliding_window::tick(numbers.burst(), period), if counts_denied { ':' } else { ' ' });
            if counts_denied {
                words.push_str("count_denied ");
            }
        }
        Kind::Slots(lease) => {
            push_number(words, numbers.burst(), ' ');
            words.push_str("concurrency:");
            push_number(words, lease, ':');
            if let Some(Terms::Slot(Slot(name))) = charge.terms.as_deref() {
                let _ = write!(words, "{name:032x}");
            }
            words.push(' ');
        }
        Kind::Queue(_) | Kind::Script => {
            push_number(words, numbers.burst(), ' ');
            push_terms(words, charge);
            words.push(' ');
        }
    }
}

/// What a queue or a script needs beside numbers. [`lacks_terms`] has seen that it is there.
fn push_terms(words: &mut String, charge: &Charge) {
    match (charge.terms.as_deref(), charge.numbers.refill().kind()) {
        (Some(Terms::Queue(work)), Kind::Queue(max_age)) => {
            words.push_str("queue:");
            words.push_str(work.storage.word());
            words.push(':');
            push_number(words, max_age, ':');
            words.push_str(match (&work.given_back, charge.mode) {
                (Some(id), Mode::Refund) => id.as_str(),
                (None, Mode::Refund) => "",
                _ => work.entry.as_str(),
            });
        }
        (Some(Terms::Script(run)), _) => {
            words.push_str("script:");
            words.push_str(run.source.name());
            words.push(':');
            words.push_str(&run.arguments);
        }
        _ => {}
    }
}

/// The elevated numbers as the script reads them.
fn push_elevated(words: &mut String, base: &Numbers, elevated: &Elevated) {
    let Elevated { numbers, span, activations_per_month } = elevated;
    words.push_str("elevated:");
    for number in [base.drain(), numbers.burst(), numbers.token(), numbers.drain(), *span] {
        push_number(words, number, ':');
    }
    push_number(words, *activations_per_month, ' ');
}

/// The windows as the script reads them. Those of a calendar around `now` are sent along: the server knows no time zone,
/// but its clock decides, which may be some windows ahead of ours or behind.
fn push_windows(words: &mut String, numbers: &Numbers, windows: Windows, now: Micros) {
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
            let (current, fill) = (calendar.number(now), numbers.windows_to_fill());
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

/// Whether a charge has not what its algorithm needs beside numbers: the words of a call could not say it, and would be
/// no words of a call for the other requests either.
pub(super) fn lacks_terms(charge: &Charge) -> bool {
    match charge.numbers.refill().kind() {
        Kind::Queue(_) => !matches!(charge.terms.as_deref(), Some(Terms::Queue(_))),
        Kind::Script => !matches!(charge.terms.as_deref(), Some(Terms::Script(_))),
        _ => false,
    }
}

/// How long the words of a charge are at most.
fn longest_words(charge: &Charge) -> usize {
    let numbers = &charge.numbers;
    let terms = match charge.terms.as_deref() {
        Some(Terms::Queue(work)) => "queue:stream:".len() + work.entry.as_str().len(),
        Some(Terms::Script(run)) => "script::".len() + run.source.name().len() + run.arguments.len(),
        _ => 0,
    };
    let elevated = if charge.elevated().is_some() { LONGEST_ELEVATED } else { 0 };
    let calendar = match numbers.refill().windows() {
        Some(Windows::Calendar(calendar)) => {
            // The windows to fill the bucket, twice, two more, and the number of the first.
            let windows = usize::try_from(2 * numbers.windows_to_fill() + 3).unwrap_or(usize::MAX);
            calendar.name().len() + 1 + 21 * windows
        }
        _ if numbers.is_slots() => "concurrency::".len() + SLOT_NAME,
        _ => "sliding_window:".len() + 21 + "count_denied ".len(),
    };
    LONGEST_WORDS + calendar + terms + elevated
}

const fn word(mode: Mode) -> &'static str {
    match mode {
        Mode::Spend => "spend",
        Mode::Check => "check",
        Mode::SpendOnly => "spend_only",
        Mode::SpendUpTo => "spend_up_to",
        Mode::Refund => "refund",
        Mode::Reset => "reset",
    }
}

fn outcome(value: &Value) -> Result<Outcome, String> {
    match value {
        Value::Int(0) => Ok(Outcome::Allowed),
        Value::Int(1) => Ok(Outcome::Denied),
        Value::Int(2) => Ok(Outcome::Unchanged),
        other => Err(format!("the script's reply has the outcome {other:?}")),
    }
}

fn span(value: &Value) -> Result<Option<Micros>, String> {
    match value {
        Value::Int(-1) => Ok(None),
        value => number(value).map(|span| Some(Micros(span))),
    }
}

fn number(value: &Value) -> Result<u64, String> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
    .ok_or_else(|| format!("the script's reply has {value:?} for a count"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::algorithms::charge::Bucket;

    fn charge(key: &str, cost: u64, mode: Mode) -> Charge {
        let numbers = Numbers::new(20, 20, 1_000_000_000).unwrap();
        Charge::new(Bucket { key: key.into(), fingerprint: 1 }, numbers, cost, mode)
    }

    fn requests(requests: &[&[Charge]]) -> Requests {
        let mut collected = Requests::default();
        for charges in requests {
            collected.push(charges, Micros(0));
        }
        collected
    }

    fn words(form: Form, called: &[&[Charge]], now: Option<Micros>) -> Vec<String> {
        let command = requests(called).command(form, now, Micros(u64::MAX), CallNumber(0x2a));
        let text = |argument| match argument {
            redis::Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => String::from("a cursor"),
        };
        command.args_iter().map(text).collect()
    }

    #[test]
    fn a_command_names_keys_and_times_and_has_an_argument_for_each_request() {
        let (a, b) = (charge("A:1", 1, Mode::Spend), charge("B:%7B1%7D", u64::MAX, Mode::SpendOnly));
        let own = words(Form::Hash, &[&[a.clone(), b], std::slice::from_ref(&a)], None);
        let expected = "EVALSHA|#|3|weir:{0}:A:1|weir:{0}:B:%7B1%7D|weir:{0}:A:1||9007199254740991|20 50000 1 1 spend \
                        20 50000 1 18446744073709551615 spend_only|20 50000 1 1 spend|#2a";
        assert_eq!(own.join("|").replace(HASH.as_str(), "#"), expected);
        let set = words(Form::Source, &[&[a]], Some(Micros(7)));
        assert_eq!((set[0].as_str(), set[1].as_str(), set[4].as_str()), ("EVAL", SOURCE.as_str(), "7"));
    }

    /// What two requests are told, the first of one charge and the second of two: outcomes with what remains, the wait
    /// of the first, and the number of corrupt keys.
    #[track_caller]
    fn check(values: Vec<Value>, expected: Result<(&str, Option<u64>, u64), &str>) {
        let (a, b) = (charge("A:1", 1, Mode::Spend), charge("B:1", 1, Mode::Spend));
        let called = requests(&[std::slice::from_ref(&a), &[a.clone(), b]]);
        let told = called.read(values, Vec::new()).map(|reply| {
            let wait = reply.answers[0].as_ref().map_or(None, |decisions| decisions[0].retry_after);
            let answers = reply.answers.into_iter().map(|answer| match answer {
                Ok(decisions) => {
                    decisions.iter().map(|decision| format!("{:?} {}", decision.outcome, decision.remaining)).collect()
                }
                Err(error) => vec![error],
            });
            (
                answers.map(|answer| answer.join(", ")).collect::<Vec<_>>().join("; "),
                wait.map(|wait| wait.0),
                reply.corrupt,
            )
        });
        let expected = expected.map(|(answers, wait, corrupt)| (answers.to_owned(), wait, corrupt));
        assert_eq!(told, expected.map_err(String::from));
    }

    fn integers(values: &[i64]) -> Vec<Value> {
        values.iter().copied().map(Value::Int).collect()
    }

    #[test]
    fn replies_become_decisions_and_nonsense_becomes_an_error() {
        let two = [0, 0, 19, 0, 50_000, 2, 18, 0, 100_000, 1, 0, 7, 8];
        check(integers(&two), Ok(("Allowed 19; Unchanged 18, Denied 0", Some(0), 0)));
        let never = [1, 1, 0, -1, -1, 0, 1, 0, 1, 0, 1, 0, 1];
        check(integers(&never), Ok(("Denied 0; Allowed 1, Allowed 1", None, 1)));
        let wrong = |at: usize, value: i64| {
            let mut values = two;
            values[at] = value;
            integers(&values)
        };
        check(wrong(1, 3), Err("the script's reply has the outcome int(3)"));
        check(wrong(3, -2), Err("the script's reply has int(-2) for a count"));
        check(integers(&two[..12]), Err("the script's reply has 12 values for 3 charges"));
        check(integers(&[&two[..], &[0]].concat()), Err("the script's reply has 14 values for 3 charges"));
        check(Vec::new(), Err("the script's reply has 0 values for 3 charges"));
    }

    #[test]
    fn a_reply_without_the_number_of_its_call_is_another_calls() {
        let (a, b) = (charge("A:1", 1, Mode::Spend), charge("B:1", 1, Mode::Spend));
        let called = requests(&[std::slice::from_ref(&a), &[a.clone(), b]]);
        let reply = |echo: &[&str]| {
            let echo = echo.iter().map(|echo| Value::BulkString(echo.as_bytes().to_vec()));
            let values = integers(&[0, 0, 19, 0, 50_000, 2, 18, 0, 100_000, 1, 0, 7, 8]).into_iter().chain(echo);
            called.reply(Value::Array(values.collect()), CallNumber(0x2a))
        };
        assert_eq!(reply(&["#2a"]).map(|reply| reply.answers.len()), Ok(2));
        for echo in [&[][..], &["#2b"], &["#2a", "#2a"]] {
            assert!(matches!(reply(echo), Err(BadReply::Foreign(_) | BadReply::Nonsense(_))), "{echo:?}");
        }
        let pong = called.reply(Value::SimpleString("PONG".into()), CallNumber(0x2a));
        assert!(matches!(pong, Err(BadReply::Foreign(_))), "{pong:?}");
    }

    #[test]
    fn requests_that_are_left_out_leave_the_others_as_they_were() {
        let charges = ["A:1", "B:1", "C:1", "D:1"].map(|key| charge(key, 1, Mode::Spend));
        let all: [&[Charge]; 3] = [&charges[..2], &charges[2..3], &charges[3..]];
        for mask in 0..8_usize {
            let keep: Vec<bool> = (0..3).map(|place| mask >> place & 1 == 1).collect();
            let kept: Vec<&[Charge]> = all.iter().zip(&keep).filter(|(_, keep)| **keep).map(|(one, _)| *one).collect();
            let mut left = requests(&all);
            left.retain(&keep);
            let text = |requests: &Requests| {
                let command = requests.command(Form::Hash, None, Micros(0), CallNumber(1));
                (format!("{:?}", command.get_packed_command()), requests.bursts.clone(), requests.counts.clone())
            };
            assert_eq!(text(&left), text(&requests(&kept)), "{keep:?}");
        }
    }

    #[test]
    fn an_error_stands_for_all_charges_of_its_request() {
        let error = || {
            let parsed = redis::parse_redis_value(b"-WRONGTYPE no bucket\r\n").unwrap();
            assert!(matches!(parsed, Value::ServerError(_)), "{parsed:?}");
            vec![parsed]
        };
        let first = [integers(&[0]), error(), integers(&[0, 1, 0, 1, 0, 1, 0, 1])].concat();
        check(first, Ok(("WRONGTYPE no bucket; Allowed 1, Allowed 1", None, 0)));
        let second = [integers(&[0, 0, 1, 0, 1]), error()].concat();
        check(second, Ok(("Allowed 1; WRONGTYPE no bucket", Some(0), 0)));
    }
}
