//! The commands that scripts and calls need, and which of them a user may not call.
//!
//! Each command is tried on an unused key, in one script. That needs no rights beyond those in question, unlike `ACL DRYRUN` and
//! `ACL GETUSER`, and it works on every version. What scripts may not call is called by itself, with arguments that change nothing.

use redis::{Cmd, RedisResult, Value};

use super::facts::{MissingRights, Purpose};

/// The commands that are tried, with harmless arguments; `KEY` stands for the unused key. The first ones leave no key.
const TRIALS: [(Purpose, &[&str]); 5] = [
    (
        Purpose::Limits,
        &["GET KEY", "PTTL KEY", "PERSIST KEY", "PEXPIRE KEY 1", "DEL KEY", "TIME", "PING", "SET KEY 1 PX 1"],
    ),
    (
        Purpose::Algorithm("sliding_log"),
        &["LLEN KEY", "LINDEX KEY 0", "LRANGE KEY 0 0", "RPUSH KEY 1", "LTRIM KEY 0 0"],
    ),
    (
        Purpose::Algorithm("concurrency"),
        &[
            "ZADD KEY 1 1",
            "ZCOUNT KEY 0 0",
            "ZRANGE KEY 0 0",
            "ZRANGEBYSCORE KEY 0 0",
            "ZREM KEY 1",
            "ZREMRANGEBYSCORE KEY 0 0",
            "ZSCORE KEY 1",
        ],
    ),
    (
        Purpose::Algorithm("queue"),
        &[
            "LINDEX KEY 0",
            "LLEN KEY",
            "LRANGE KEY 0 0",
            "LREM KEY 1 1",
            "LTRIM KEY 0 0",
            "RPUSH KEY 1",
            "XADD KEY 1-1 1 1",
            "XDEL KEY 1-1",
            "XINFO STREAM KEY",
            "XLEN KEY",
            "XRANGE KEY - +",
            "XREVRANGE KEY + -",
            "XTRIM KEY MAXLEN 1",
        ],
    ),
    (
        Purpose::Blocks,
        &[
            "HDEL KEY 1",
            "HGET KEY 1",
            "HSET KEY 1 1",
            "ZADD KEY 1 1",
            "ZCARD KEY",
            "ZRANGE KEY 0 0",
            "ZRANGEBYSCORE KEY 0 0",
            "ZREM KEY 1",
            "ZSCORE KEY 1",
        ],
    ),
];

/// Tries each of ARGV but the first and returns the numbers of those that the user may not call. The key is deleted after each; if
/// DEL is not allowed, only as many are tried as the first says, which leave no key.
///
/// Redis 7.0 and older reply that the user `can't run this command`, later ones and Valkey with an `ACL failure in script`.
const SCRIPT: &str = "
local function is_denied(words)
  local reply = redis.pcall(unpack(words))
  local text = type(reply) == 'table' and reply.err or ''
  return string.find(text, 'ACL failure') or string.find(text, \"can't run this command\")
end
local denied, deletes = {}, not is_denied({'DEL', KEYS[1]})
local usual = tonumber(table.remove(ARGV, 1))
for number, text in ipairs(ARGV) do
  local words = {}
  for word in string.gmatch(text, '%S+') do
    words[#words + 1] = word == 'KEY' and KEYS[1] or word
  end
  if (deletes or number <= usual) and is_denied(words) then
    denied[#denied + 1] = number
  end
  if deletes then
    redis.call('DEL', KEYS[1])
  end
end
return denied";

/// The calls that find out what is missing.
pub(super) struct Trial {
    key: String,
    /// `PREFIX:{TAG}:*`, the pattern of all keys.
    pattern: String,
    /// True if gateways ask the server for notifications; they do not ask a cluster.
    is_notified: bool,
}

impl Trial {
    pub(super) fn new(key: String, pattern: String, is_notified: bool) -> Self {
        Self { key, pattern, is_notified }
    }

    /// The commands for notifications of changes.
    pub(super) fn notifications(&self) -> impl Iterator<Item = (&'static str, Cmd)> {
        let commands = [("HELLO", &["HELLO", "2"][..]), ("CLIENT|TRACKING", &["CLIENT", "TRACKING", "OFF"])];
        let command = |(name, words): (_, &[&str])| (name, redis::cmd(words[0]).arg(&words[1..]).clone());
        commands.into_iter().filter(|_| self.is_notified).map(command)
    }

    /// Tries the commands in a script.
    pub(super) fn script(&self) -> Cmd {
        let mut command = redis::cmd("EVAL");
        let [(_, usual), ..] = TRIALS;
        command.arg(SCRIPT).arg(1).arg(&self.key).arg(usual.len());
        for text in TRIALS.iter().flat_map(|(_, texts)| *texts) {
            command.arg(*text);
        }
        command
    }

    /// Calls a script that no server has.
    pub(super) fn hash(&self) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg("0".repeat(40)).arg(1).arg(&self.key);
        command
    }

    /// Reads the replies to both. Returns `None` if they are errors of another kind.
    pub(super) fn missing(&self, script: &RedisResult<Value>, hash: &RedisResult<Value>) -> Option<MissingRights> {
        let mut missing = MissingRights::default();
        let mut calls = Vec::new();
        for (command, reply) in [("EVALSHA", hash), ("EVAL", script)] {
            match reply.as_ref().err().map(|error| (error.code(), error.detail().unwrap_or_default())) {
                Some((Some("NOPERM"), detail)) if detail.contains("access") => {
                    missing.keys = Some(self.pattern.clone());
                }
                Some((Some("NOPERM"), _)) => calls.push(command),
                Some((Some("NOSCRIPT"), _)) | None => {}
                Some(_) => return None,
            }
        }
        let mut by_purpose = Vec::new();
        if let Ok(reply) = script {
            let Value::Array(denied) = reply else { return None };
            let numbers: Vec<usize> = denied.iter().filter_map(number).collect();
            let mut first = 1;
            for (purpose, texts) in TRIALS {
                let is_missing = |place: &usize| numbers.contains(&(first + place));
                let names = (0..texts.len()).filter(is_missing).map(|place| command_of(texts[place])).collect();
                by_purpose.push((purpose, names));
                first += texts.len();
            }
        } else {
            by_purpose.push((Purpose::Limits, Vec::new()));
        }
        if let Some((_, names)) = by_purpose.first_mut() {
            names.splice(0..0, calls);
        }
        by_purpose.retain(|(_, names)| !names.is_empty());
        missing.by_purpose = by_purpose;
        Some(missing)
    }
}

fn number(value: &Value) -> Option<usize> {
    if let Value::Int(number) = value { usize::try_from(*number).ok() } else { None }
}

/// The command of a trial.
fn command_of(text: &'static str) -> &'static str {
    text.split(' ').next().unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The commands that a script calls.
    fn called(script: &'static str) -> BTreeSet<&'static str> {
        let calls = script.split("call('").skip(1);
        calls.map(|rest| rest.split('\'').next().unwrap()).collect()
    }

    #[test]
    fn each_command_of_the_scripts_is_tried() {
        let scripts = [
            (Purpose::Limits, include_str!("../../../../lua/levels.lua")),
            (Purpose::Limits, include_str!("../../../../lua/prelude.lua")),
            (Purpose::Limits, include_str!("../../../../lua/gcra.lua")),
            (Purpose::Limits, include_str!("../../../../lua/fixed_window.lua")),
            (Purpose::Limits, include_str!("../../../../lua/sliding_window.lua")),
            (Purpose::Limits, include_str!("../../../../lua/elevated.lua")),
            (Purpose::Limits, include_str!("../../../../lua/requests.lua")),
            (Purpose::Limits, include_str!("../../../../lua/decide.lua")),
            (Purpose::Algorithm("sliding_log"), include_str!("../../../../lua/sliding_log.lua")),
            (Purpose::Algorithm("concurrency"), include_str!("../../../../lua/concurrency.lua")),
            (Purpose::Algorithm("queue"), include_str!("../../../../lua/queue.lua")),
            (Purpose::Blocks, include_str!("../../../../lua/blocks.lua")),
        ];
        let of = |purpose: Purpose| {
            let (_, texts) = TRIALS.iter().find(|(other, _)| *other == purpose).unwrap();
            texts.iter().map(|text| command_of(text)).collect::<BTreeSet<_>>()
        };
        for (purpose, script) in scripts {
            let tried: BTreeSet<_> = of(purpose).union(&of(Purpose::Limits)).copied().collect();
            let missing: Vec<_> = called(script).difference(&tried).copied().collect();
            assert!(missing.is_empty(), "{purpose:?}: {missing:?}");
        }
    }
}
