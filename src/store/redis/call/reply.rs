//! The script's reply to a call.

use redis::Value;

use super::describe;
use super::detail;
use super::requests::Requests;
use crate::engine::algorithms::decision::{Decision, Decisions, Outcome};
use crate::engine::algorithms::micros::Micros;

/// The answer to each request of a call, or an error as the server worded it; and the number of keys with text that is not a bucket.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) struct Reply {
    pub(in super::super) answers: Vec<Result<Decisions, String>>,
    pub(in super::super) corrupt: u64,
}

/// A reply that is not an answer.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) enum BadReply {
    /// The reply to another call.
    Foreign(String),
    /// The reply to this call, malformed.
    Malformed(String),
}

impl Requests {
    /// Reads the reply to the call.
    pub(in super::super) fn reply(&self, value: Value) -> Result<Reply, BadReply> {
        let Value::Array(mut values) = value else { return Err(BadReply::Foreign(format!("{value:?}"))) };
        let said = match values.pop_if(|value| matches!(value, Value::Array(_))) {
            Some(Value::Array(said)) => said,
            _ => Vec::new(),
        };
        match values.pop() {
            Some(Value::BulkString(echo)) if echo == self.number.as_bytes() => {}
            other => return Err(BadReply::Foreign(format!("{:?} at its end", other.unwrap_or(Value::Nil)))),
        }
        self.read(values, said).map_err(BadReply::Malformed)
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
                let (outcome, delay) = outcome(&next()?)?;
                Ok(Decision {
                    outcome,
                    delay,
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

    /// Adds the details of charges, which are numbered through the call, to the answers of their requests.
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
                let burst = self.elevated.iter().find(|it| it.place as u64 == charge).map(|it| it.burst);
                let is_active = detail.elevation().is_some_and(|elevation| elevation.active);
                if let (Some(burst), Some(decision)) = (burst.filter(|_| is_active), answer.get_mut(place)) {
                    decision.limit = burst;
                }
                answer.details.push((place, detail));
            }
        }
        Ok(())
    }
}

/// Reads an outcome, and the microseconds after which the request may pass.
fn outcome(value: &Value) -> Result<(Outcome, u32), String> {
    let delay = |negative: i64| u32::try_from(negative.unsigned_abs()).ok();
    match value {
        Value::Int(1) => Some((Outcome::Denied, 0)),
        Value::Int(2) => Some((Outcome::Unchanged, 0)),
        Value::Int(3) => Some((Outcome::Short, 0)),
        Value::Int(negative @ ..=0) => delay(*negative).map(|delay| (Outcome::Allowed, delay)),
        _ => None,
    }
    .ok_or_else(|| format!("the script's reply has an unexpected outcome {value:?}"))
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
    .ok_or_else(|| format!("the script's reply has an unexpected number {value:?}"))
}

#[cfg(test)]
mod tests {
    use super::super::requests::tests::{charge, requests};
    use super::*;
    use crate::engine::algorithms::charge::Mode;

    /// Checks the answers to two requests, the first with one charge and the second with two: outcomes with what remains, the
    /// first one's wait, and the number of corrupt keys.
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
        check(wrong(1, 4), Err("the script's reply has an unexpected outcome int(4)"));
        check(wrong(3, -2), Err("the script's reply has an unexpected number int(-2)"));
        check(integers(&two[..12]), Err("the script's reply has 12 values for 3 charges"));
        check(integers(&[&two[..], &[0]].concat()), Err("the script's reply has 14 values for 3 charges"));
        check(Vec::new(), Err("the script's reply has 0 values for 3 charges"));
    }

    #[test]
    fn a_reply_without_the_number_of_its_call_is_another_calls() {
        let (a, b) = (charge("A:1", 1, Mode::Spend), charge("B:1", 1, Mode::Spend));
        let mut called = requests(&[std::slice::from_ref(&a), &[a.clone(), b]]);
        called.number = "#2a".into();
        let reply = |echo: &[&str]| {
            let echo = echo.iter().map(|echo| Value::BulkString(echo.as_bytes().to_vec()));
            let values = integers(&[0, 0, 19, 0, 50_000, 2, 18, 0, 100_000, 1, 0, 7, 8]).into_iter().chain(echo);
            called.reply(Value::Array(values.collect()))
        };
        assert_eq!(reply(&["#2a"]).map(|reply| reply.answers.len()), Ok(2));
        for echo in [&[][..], &["#2b"], &["#2a", "#2a"]] {
            assert!(matches!(reply(echo), Err(BadReply::Foreign(_) | BadReply::Malformed(_))), "{echo:?}");
        }
        let pong = called.reply(Value::SimpleString("PONG".into()));
        assert!(matches!(pong, Err(BadReply::Foreign(_))), "{pong:?}");
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
