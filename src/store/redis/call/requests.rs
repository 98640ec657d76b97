//! The requests of one call, and the command that decides them.

use std::sync::Arc;

use redis::Cmd;

use super::source::PLAIN;
use super::user_scripts::{self, Scripts};
use super::words;
use crate::engine::algorithms::charge::Charge;
use crate::engine::algorithms::micros::{EXACT, Micros};
use crate::store::Batch;

/// The bytes of a command besides keys and requests; a longer number only makes the buffer grow.
const BYTES_PER_CALL: usize = 128;

/// How a command refers to the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum ScriptRef {
    /// By its hash: every call tries this first.
    Hash,
    /// By its source, for a server that lost its scripts. EVAL also caches the script, and unlike SCRIPT LOAD it goes to the node
    /// that has the keys and needs no further ACL rule.
    Source,
}

/// The requests of one call, as the script reads them: all texts are in one buffer rather than in an allocation each.
#[derive(Debug, Default)]
pub(in super::super) struct Requests {
    /// The beginning of all keys, which have one hash tag.
    key_start: Arc<str>,
    keys: Texts,
    words: Texts,
    /// The burst of each charge, which the script does not repeat.
    pub(in super::super) bursts: Vec<u64>,
    /// The charges with elevated numbers.
    pub(in super::super) elevated: Vec<ElevatedCharge>,
    /// The number of charges of each request.
    pub(in super::super) counts: Vec<usize>,
    /// The user scripts that the requests run.
    scripts: Scripts,
    /// The time to decide by; `None` for the server's.
    pub(in super::super) now: Option<Micros>,
    /// The time at which the numbers took effect.
    pub(in super::super) effective_from: Micros,
    /// The text that the script echoes.
    pub(in super::super) number: String,
}

/// A charge with elevated numbers.
#[derive(Clone, Debug)]
pub(in super::super) struct ElevatedCharge {
    /// Its number in the call.
    pub(in super::super) place: usize,
    /// The burst that holds while they are on.
    pub(in super::super) burst: u64,
    /// The key of its quota without the beginning of all keys. The script derives it from the words; here it is declared.
    quota: Option<String>,
}

/// Texts, one after the other.
#[derive(Debug, Default)]
struct Texts {
    text: String,
    /// The end of each of them.
    ends: Vec<usize>,
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
    /// Starts a call for requests like this one: all of them run the same user scripts.
    pub(in super::super) fn new(first: &Batch<'_>, now: Option<Micros>, number: String, key_start: Arc<str>) -> Self {
        let (scripts, effective_from) = (user_scripts::of(first.charges), first.effective_from);
        Self { key_start, scripts, now, effective_from, number, ..Self::default() }
    }

    /// True if a request with these charges runs the same scripts as the others.
    pub(in super::super) fn runs_as(&self, charges: &[Charge]) -> bool {
        let has_script = charges.iter().any(|charge| charge.numbers.is_script());
        if has_script { self.scripts == user_scripts::of(charges) } else { self.scripts.is_empty() }
    }

    /// Adds a request with these charges, made at `now` by this machine's clock.
    pub(in super::super) fn push(&mut self, charges: &[Charge], now: Micros) {
        let now = self.now.unwrap_or(now);
        for (place, charge) in charges.iter().enumerate() {
            self.keys.text.push_str(&self.key_start);
            self.keys.text.push_str(&charge.bucket.key);
            self.keys.end();
            if place > 0 {
                self.words.text.push(' ');
            }
            words::push(&mut self.words.text, charge, charges, now);
            if let Some(elevated) = charge.elevated() {
                let (place, burst) = (self.bursts.len(), elevated.numbers.burst());
                self.elevated.push(ElevatedCharge { place, burst, quota: words::quota_key(charge) });
            }
            self.bursts.push(charge.numbers.burst());
        }
        self.words.end();
        self.counts.push(charges.len());
    }

    /// The number of charges of all requests.
    pub(in super::super) fn charges(&self) -> usize {
        self.bursts.len()
    }

    /// The length of all texts.
    pub(in super::super) fn bytes(&self) -> usize {
        self.keys.text.len() + self.words.text.len()
    }

    /// About the most bytes that these charges add.
    pub(in super::super) fn bytes_of(&self, charges: &[Charge]) -> usize {
        let keys: usize = charges.iter().map(|charge| self.key_start.len() + charge.bucket.key.len()).sum();
        keys + charges.iter().map(words::longest).sum::<usize>()
    }

    /// Returns the command that decides them.
    pub(in super::super) fn command(&self, form: ScriptRef) -> Cmd {
        let with_scripts = (!self.scripts.is_empty()).then(|| user_scripts::with_scripts(&self.scripts));
        let script = with_scripts.as_deref().unwrap_or(&PLAIN);
        let (name, script) = match form {
            ScriptRef::Hash => ("EVALSHA", &script.hash),
            ScriptRef::Source => ("EVAL", &script.source),
        };
        let quotas = || self.elevated.iter().filter_map(|charge| charge.quota.as_deref());
        let keys = self.charges() + quotas().count();
        let arguments = 6 + keys + self.counts.len();
        let mut command = Cmd::with_capacity(arguments, BYTES_PER_CALL + script.len() + self.bytes());
        command.arg(name).arg(script).arg(keys);
        for key in self.keys.iter() {
            command.arg(key);
        }
        for quota in quotas() {
            command.arg([&self.key_start, quota].concat());
        }
        match self.now {
            Some(now) => command.arg(now.0),
            None => command.arg(""),
        };
        // The script reads no instant beyond 2^53, and those are after every `now` that it can read.
        command.arg(self.effective_from.0.min(EXACT - 1));
        for words in self.words.iter() {
            command.arg(words);
        }
        command.arg(&self.number);
        command
    }

    /// Keeps the requests at the places that are true in `keep`.
    pub(in super::super) fn retain(&mut self, keep: &[bool]) {
        let mut old = std::mem::take(self);
        (self.now, self.effective_from) = (old.now, old.effective_from);
        self.key_start = Arc::clone(&old.key_start);
        (self.scripts, self.number) = (std::mem::take(&mut old.scripts), std::mem::take(&mut old.number));
        let (mut keys, mut bursts, mut first) = (old.keys.iter(), old.bursts.iter(), 0);
        for ((count, words), keep) in old.counts.iter().zip(old.words.iter()).zip(keep) {
            let (keys, bursts) = (keys.by_ref().take(*count), bursts.by_ref().take(*count));
            if *keep {
                let of_request = first..first + count;
                let elevated = old.elevated.iter().filter(|charge| of_request.contains(&charge.place)).cloned();
                let start = self.bursts.len();
                self.elevated.extend(elevated.map(|it| ElevatedCharge { place: start + it.place - first, ..it }));
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
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::engine::algorithms::charge::{Bucket, ChargeOrigin, Elevated, Input, Mode, Role};
    use crate::engine::algorithms::numbers::Numbers;

    pub(in super::super) fn charge(key: &str, cost: u64, mode: Mode) -> Charge {
        let numbers = Numbers::new(20, 20, 1_000_000_000).unwrap();
        Charge::new(Bucket::new(key, 1), numbers, cost, mode)
    }

    pub(in super::super) fn requests(requests: &[&[Charge]]) -> Requests {
        let mut collected = Requests { key_start: "weir:{0}:".into(), ..Requests::default() };
        for charges in requests {
            collected.push(charges, Micros(0));
        }
        collected
    }

    fn words(form: ScriptRef, called: &[&[Charge]], now: Option<Micros>) -> Vec<String> {
        let numbered = Requests { now, effective_from: Micros(u64::MAX), number: "#2a".into(), ..requests(called) };
        let command = numbered.command(form);
        let text = |argument| match argument {
            redis::Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => String::from("a cursor"),
        };
        command.args_iter().map(text).collect()
    }

    #[test]
    fn a_command_names_keys_and_times_and_has_an_argument_for_each_request() {
        let (a, b) = (charge("A:1", 1, Mode::Spend), charge("B:%7B1%7D", u64::MAX, Mode::SpendOnly));
        let own = words(ScriptRef::Hash, &[&[a.clone(), b], std::slice::from_ref(&a)], None);
        let expected = "EVALSHA|#|3|weir:{0}:A:1|weir:{0}:B:%7B1%7D|weir:{0}:A:1||9007199254740991|20 50000 1 1 spend \
                        20 50000 1 18446744073709551615 spend_only/s0|20 50000 1 1 spend|#2a";
        assert_eq!(own.join("|").replace(PLAIN.hash.as_str(), "#"), expected);
        let with = |limit, role| {
            let origin = ChargeOrigin { role, ..ChargeOrigin::new(limit, true) };
            Charge { origin, ..a.clone() }
        };
        let roles = [
            with(4, Role::Enforced),
            with(4, Role::Candidate(0)),
            with(4, Role::Candidate(3)),
            with(5, Role::Shadow),
            with(6, Role::Enforced),
        ];
        let modes = |charges: &[Charge]| {
            let words = words(ScriptRef::Hash, &[charges], None).swap_remove(charges.len() + 5);
            words.split(' ').skip(4).step_by(5).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(modes(&roles), "spend/4 spend/c4 spend/f4 spend/s5 spend/6");
        assert_eq!(modes(&roles[3..]), "spend/s5 spend");
        let set = words(ScriptRef::Source, &[&[a]], Some(Micros(7)));
        assert_eq!((set[0].as_str(), set[1].as_str(), set[4].as_str()), ("EVAL", PLAIN.source.as_str(), "7"));
    }

    #[test]
    fn requests_that_are_left_out_leave_the_others_as_they_were() {
        let mut charges = ["A:1", "B:1", "C:1", "D:1"].map(|key| charge(key, 1, Mode::Spend));
        for (charge, quota) in charges.iter_mut().skip(1).zip([Some("b"), None, Some("d")]) {
            let (numbers, quota) = (charge.numbers.clone(), quota.map(Arc::from));
            let elevated = Elevated { numbers, span: 1, activations_per_month: 1, quota };
            charge.input = Some(Box::new(Input::Elevated(elevated.into())));
        }
        let all: [&[Charge]; 3] = [&charges[..2], &charges[2..3], &charges[3..]];
        for mask in 0..8_usize {
            let keep: Vec<bool> = (0..3).map(|place| mask >> place & 1 == 1).collect();
            let kept: Vec<&[Charge]> = all.iter().zip(&keep).filter(|(_, keep)| **keep).map(|(one, _)| *one).collect();
            let mut left = requests(&all);
            left.retain(&keep);
            let text = |requests: &Requests| {
                let command = requests.command(ScriptRef::Hash);
                let elevated = format!("{:?}", requests.elevated);
                (command.get_packed_command(), requests.bursts.clone(), requests.counts.clone(), elevated)
            };
            assert_eq!(text(&left), text(&requests(&kept)), "{keep:?}");
        }
    }
}
