//! The call of `lua/gcra.lua`: its keys, its arguments, its reply.

use std::sync::LazyLock;

use redis::{Cmd, Script, Value};

use crate::engine::charge::{Charge, Decision, Mode, Outcome};
use crate::engine::numbers::{EXACT, Micros};
use crate::store::Batch;

const SOURCE: &str = include_str!("../../../lua/gcra.lua");

/// The SHA-1 under which a server keeps the script. Computed once: hashing the source takes longer than a decision.
static HASH: LazyLock<String> = LazyLock::new(|| Script::new(SOURCE).get_hash().to_owned());

/// What a key, a hash or a handful of numbers need in the command, in bytes; a longer key only makes the buffer grow.
const BYTES_PER_CHARGE: usize = 128;

/// Integers of the reply for each charge.
const ANSWER: usize = 4;

/// How the script is named in the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// By its hash: what every call tries.
    Hash,
    /// By its source: what a server that lost its scripts is sent. EVAL also caches the script, and unlike SCRIPT LOAD
    /// it is decided by the node that has the keys and by the ACL rule that the call needs anyway.
    Source,
}

/// Decisions, and how many keys held text that is no bucket.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) decisions: Vec<Decision>,
    pub(super) corrupt: u64,
}

/// The key of a bucket.
///
/// The hash tag `{0}` is the same for all, so that a Redis Cluster would keep the keys of any call in one slot, as a
/// script requires. The text of a client never makes a tag: `Bucket::key` is percent-encoded, braces included.
fn key(bucket: &str) -> String {
    const PREFIX: &str = "weir:{0}:";
    let mut key = String::with_capacity(PREFIX.len() + bucket.len());
    key.push_str(PREFIX);
    key.push_str(bucket);
    key
}

/// The command that decides a batch; `now` is `None` for the server's clock.
pub(super) fn command(form: Form, batch: &Batch<'_>, now: Option<Micros>) -> Cmd {
    let charges = batch.charges;
    let (name, script) = match form {
        Form::Hash => ("EVALSHA", HASH.as_str()),
        Form::Source => ("EVAL", SOURCE),
    };
    let bytes = name.len() + script.len() + BYTES_PER_CHARGE * (1 + charges.len());
    let mut command = Cmd::with_capacity(5 + 6 * charges.len(), bytes);
    command.arg(name).arg(script).arg(charges.len());
    for charge in charges {
        command.arg(key(&charge.bucket.key));
    }
    match now {
        Some(now) => command.arg(now.0),
        None => command.arg(""),
    };
    // The script reads no instant beyond 2^53, and none from there on can be before a `now` that it can read.
    command.arg(batch.effective_from.0.min(EXACT - 1));
    for Charge { numbers, cost, mode, .. } in charges {
        command.arg(numbers.burst()).arg(numbers.token()).arg(numbers.drain()).arg(*cost).arg(word(*mode));
    }
    command
}

/// What the script answered; an error says what the reply was instead.
pub(super) fn reply(value: &Value, charges: &[Charge]) -> Result<Reply, String> {
    let Value::Array(values) = value else {
        return Err(format!("the script's reply is no array but {value:?}"));
    };
    if values.len() != 1 + ANSWER * charges.len() {
        return Err(format!("the script's reply has {} values for {} charges", values.len(), charges.len()));
    }
    let corrupt = number(&values[0])?;
    let decisions = charges.iter().zip(values[1..].chunks_exact(ANSWER)).map(|(charge, answer)| {
        Ok(Decision {
            outcome: outcome(&answer[0])?,
            limit: charge.numbers.burst(),
            remaining: number(&answer[1])?,
            retry_after: span(&answer[2])?,
            reset_after: span(&answer[3])?,
        })
    });
    Ok(Reply { decisions: decisions.collect::<Result<_, String>>()?, corrupt })
}

const fn word(mode: Mode) -> &'static str {
    match mode {
        Mode::Spend => "spend",
        Mode::Check => "check",
        Mode::SpendOnly => "spend_only",
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
    use crate::engine::charge::Bucket;
    use crate::engine::numbers::Numbers;

    fn charge(key: &str, cost: u64, mode: Mode) -> Charge {
        let numbers = Numbers::new(20, 20, 1_000_000_000).unwrap();
        Charge { bucket: Bucket { key: key.into(), fingerprint: 1 }, numbers, cost, mode }
    }

    fn words(form: Form, charges: &[Charge], now: Option<Micros>) -> Vec<String> {
        let batch = Batch { charges, effective_from: Micros(u64::MAX), now: Micros(0) };
        let command = command(form, &batch, now);
        let text = |argument| match argument {
            redis::Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => String::from("a cursor"),
        };
        command.args_iter().map(text).collect()
    }

    #[test]
    fn a_command_names_keys_times_and_five_words_a_charge() {
        let charges = [charge("A:1", 1, Mode::Spend), charge("B:%7B1%7D", u64::MAX, Mode::SpendOnly)];
        let own = words(Form::Hash, &charges, None);
        let expected = "EVALSHA # 2 weir:{0}:A:1 weir:{0}:B:%7B1%7D  9007199254740991 20 50000 1 1 spend \
                        20 50000 1 18446744073709551615 spend_only";
        assert_eq!(own.join(" ").replace(HASH.as_str(), "#"), expected);
        let set = words(Form::Source, &charges[..1], Some(Micros(7)));
        assert_eq!((set[0].as_str(), set[1].as_str(), set[4].as_str()), ("EVAL", SOURCE, "7"));
    }

    #[track_caller]
    fn check(values: &[i64], expected: Result<(Outcome, u64, Option<u64>, u64), &str>) {
        let charges = [charge("A:1", 1, Mode::Spend)];
        let value = Value::Array(values.iter().copied().map(Value::Int).collect());
        let answer = reply(&value, &charges).map(|reply| {
            let [decision] = reply.decisions[..] else { panic!("one charge, one decision") };
            (decision.outcome, decision.remaining, decision.retry_after.map(|wait| wait.0), reply.corrupt)
        });
        assert_eq!(answer, expected.map_err(String::from));
    }

    #[test]
    fn replies_become_decisions_and_nonsense_becomes_an_error() {
        check(&[0, 0, 19, 0, 50_000], Ok((Outcome::Allowed, 19, Some(0), 0)));
        check(&[1, 1, 0, -1, -1], Ok((Outcome::Denied, 0, None, 1)));
        check(&[0, 2, 0, 0, 0], Ok((Outcome::Unchanged, 0, Some(0), 0)));
        check(&[0, 3, 0, 0, 0], Err("the script's reply has the outcome int(3)"));
        check(&[0, 0, -2, 0, 0], Err("the script's reply has int(-2) for a count"));
        check(&[0, 0], Err("the script's reply has 2 values for 1 charges"));
    }
}
