//! The Sentinels that know the address of the master.

use std::cmp::Reverse;
use std::time::Duration;

use redis::{Cmd, RedisConnectionInfo, Value};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::call::{describe, text};
use super::diagnosis::Diagnosis;
use super::session::Session;
use super::stream::Address;
use super::target::{StoreTarget, Topology};
use super::url::{HostPort, SentinelLogin};
use crate::store::Fault;

/// How long a Sentinel may take to answer, connecting included.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(400);

/// Once one Sentinel has answered, the others have this long from the start.
const OTHERS_TIMEOUT: Duration = Duration::from_millis(150);

/// The interval at which a Sentinel is asked whether the master is still the same.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// The Sentinels of a store.
pub(super) struct Sentinels {
    addresses: Vec<Address>,
    login: SentinelLogin,
    /// The name of the master.
    master: String,
}

/// A Sentinel that watches the master.
pub(super) struct Watching {
    session: Session,
    /// The address of the master, as the Sentinel names it.
    pub(super) master: HostPort,
}

/// A Sentinel's answer.
enum SentinelAnswer {
    Master(HostPort),
    /// It watches only masters with these names.
    Unknown(Vec<String>),
}

impl Sentinels {
    /// The Sentinels of a target that has some.
    pub(super) fn of(target: &StoreTarget) -> Option<Self> {
        let Topology::Sentinel { sentinels, master, login } = &target.topology else { return None };
        Some(Self { addresses: sentinels.clone(), login: login.clone(), master: master.clone() })
    }

    /// Asks all Sentinels at once. Returns the addresses that they name as the master's, the one that most of them name first:
    /// after a failover they learn of the new master one by one, and one that is cut off from the others never does.
    pub(super) async fn masters(&self) -> Result<Vec<HostPort>, Diagnosis> {
        let start = Instant::now();
        let mut asked = JoinSet::new();
        for (place, address) in self.addresses.iter().enumerate() {
            let (address, login, master) = (address.clone(), self.login.clone(), self.master.clone());
            asked.spawn(async move { (place, Watching::open(&address, &login, &master).await) });
        }
        let mut votes: Vec<(HostPort, usize)> = Vec::new();
        let mut failures = Vec::new();
        while votes.iter().all(|(_, count)| *count <= self.addresses.len() / 2) {
            // Each ends within its own timeout, with a reason.
            let patience = if votes.is_empty() { ANSWER_TIMEOUT * 2 } else { OTHERS_TIMEOUT };
            match timeout_at(start + patience, asked.join_next()).await {
                Ok(Some(Ok((_, Ok(Watching { master, .. }))))) => {
                    match votes.iter_mut().find(|(named, _)| *named == master) {
                        Some((_, count)) => *count += 1,
                        None => votes.push((master, 1)),
                    }
                }
                Ok(Some(Ok((place, Err(diagnosis))))) => failures.push((place, diagnosis)),
                // A task that panicked.
                Ok(Some(Err(_))) => {}
                Ok(None) | Err(_) => break,
            }
        }
        if votes.is_empty() {
            failures.sort_by_key(|(place, _)| *place);
            let named = |(place, diagnosis): (usize, Diagnosis)| {
                let text = format!("{}: {}", self.addresses[place], diagnosis.text);
                Diagnosis { text, ..diagnosis }
            };
            return Err(Self::fault(failures.into_iter().map(named).collect()));
        }
        votes.sort_by_key(|(_, count)| Reverse(*count));
        Ok(votes.into_iter().map(|(master, _)| master).collect())
    }

    /// Returns why no Sentinel names a master.
    fn fault(failures: Vec<Diagnosis>) -> Diagnosis {
        // An answer says more than silence.
        let of = |fault| failures.iter().find(|diagnosis| diagnosis.fault == fault);
        if let Some(diagnosis) = of(Fault::Sentinel).or_else(|| of(Fault::Authentication)) {
            return Diagnosis { text: format!("the Sentinel {}", diagnosis.text), ..diagnosis.clone() };
        }
        let fault = failures.first().map_or(Fault::Unreachable, |diagnosis| diagnosis.fault);
        let texts: Vec<String> = failures.into_iter().map(|diagnosis| diagnosis.text).collect();
        Diagnosis::new(fault, format!("no Sentinel answers: {}", texts.join("; ")))
    }

    /// Returns the master that most Sentinels name, as soon as that is no longer `current`.
    pub(super) async fn until_moved(&self, current: &HostPort) -> HostPort {
        let mut sessions: Vec<Option<Session>> = self.addresses.iter().map(|_| None).collect();
        // In turn, because one of them may be cut off from the others.
        for (place, address) in self.addresses.iter().enumerate().cycle() {
            // Gateways that connected at the same time do not ask at the same time forever.
            sleep(WATCH_INTERVAL.mul_f64(rand::random_range(0.75..=1.0))).await;
            let answer = timeout(ANSWER_TIMEOUT, self.ask_again(address, sessions[place].take())).await;
            let Ok(Ok((session, answer))) = answer else { continue };
            sessions[place] = Some(session);
            if matches!(&answer, SentinelAnswer::Master(master) if master == current) {
                continue;
            }
            // One Sentinel may be behind.
            if let Ok(masters) = self.masters().await
                && let Some(master) = masters.into_iter().next()
                && master != *current
            {
                return master;
            }
        }
        // Only without any Sentinel.
        std::future::pending().await
    }

    /// Asks on this connection, or on a new one.
    async fn ask_again(
        &self,
        address: &Address,
        session: Option<Session>,
    ) -> Result<(Session, SentinelAnswer), Diagnosis> {
        let session = match session {
            Some(session) => session,
            None => open(address, &self.login).await?.0,
        };
        let answer = ask(&session, &self.master, None).await?;
        Ok((session, answer))
    }
}

impl Watching {
    /// Asks a Sentinel for the master on a connection of its own.
    pub(super) async fn open(address: &Address, login: &SentinelLogin, master: &str) -> Result<Self, Diagnosis> {
        let asking = async {
            let (session, rejected) = open(address, login).await?;
            let answer = ask(&session, master, rejected).await?;
            Ok((session, answer))
        };
        let silent = |_| Diagnosis::new(Fault::Silent, format!("no answer within {ANSWER_TIMEOUT:?}"));
        match timeout(ANSWER_TIMEOUT, asking).await.map_err(silent)?? {
            (session, SentinelAnswer::Master(master)) => Ok(Self { session, master }),
            (_, SentinelAnswer::Unknown(names)) => {
                let names = if names.is_empty() { "none".to_owned() } else { format!("`{}`", names.join("`, `")) };
                Err(Diagnosis::new(Fault::Sentinel, format!("it watches no master `{master}`; it watches {names}")))
            }
        }
    }

    /// Asks why the Sentinels could not replace the master now. `None` if they could, or if the user may not ask.
    pub(super) async fn no_failover(&self, master: &str) -> Option<String> {
        let checked = timeout(ANSWER_TIMEOUT, self.session.ask(question("CKQUORUM").arg(master))).await.ok()?;
        checked.err().filter(|error| error.code() == Some("NOQUORUM")).map(|error| describe(&error))
    }
}

/// Connects and logs in. Returns the error of AUTH as well: a Sentinel without a password rejects any, and answers nevertheless.
async fn open(address: &Address, login: &SentinelLogin) -> Result<(Session, Option<String>), Diagnosis> {
    let anonymous = RedisConnectionInfo::default().set_skip_set_lib_name();
    let session = Session::open(address, &anonymous).await?;
    let Some(password) = &login.password else { return Ok((session, None)) };
    let mut auth = redis::cmd("AUTH");
    if let Some(user) = &login.user {
        auth.arg(user);
    }
    let rejected = session.ask(auth.arg(password)).await.err();
    Ok((session, rejected.filter(|error| error.code().is_some()).map(|error| describe(&error))))
}

/// Asks for the master. `rejected` is the error of AUTH.
async fn ask(session: &Session, master: &str, rejected: Option<String>) -> Result<SentinelAnswer, Diagnosis> {
    let failed = |error: redis::RedisError| {
        let text = describe(&error);
        let (fault, text) = match error.code() {
            None => (Fault::Unreachable, text),
            Some("NOAUTH") => {
                let hint = "give the Sentinels' password as `?sentinel_password=...`, if it is not the master's";
                (Fault::Authentication, format!("{}: {hint}", rejected.clone().unwrap_or(text)))
            }
            Some("NOPERM") => {
                let hint = "give the user `+sentinel|get-master-addr-by-name +sentinel|masters`";
                (Fault::Authentication, format!("{text}: {hint}"))
            }
            Some(_) if text.to_ascii_lowercase().contains("unknown command") => {
                (Fault::Sentinel, format!("{text}: this is not a Sentinel; their default port is 26379"))
            }
            Some(_) => (Fault::Sentinel, text),
        };
        Diagnosis::new(fault, text)
    };
    let answer = session.ask(question("GET-MASTER-ADDR-BY-NAME").arg(master)).await.map_err(failed)?;
    if let Value::Array(parts) = &answer
        && let [host, port] = parts.as_slice()
        && let (Some(host), Some(port)) = (text(host), text(port).and_then(|port| port.parse().ok()))
    {
        return Ok(SentinelAnswer::Master((host.to_owned(), port)));
    }
    // The names are only for the error.
    let Ok(Value::Array(masters)) = session.ask(&question("MASTERS")).await else {
        return Ok(SentinelAnswer::Unknown(Vec::new()));
    };
    Ok(SentinelAnswer::Unknown(masters.iter().filter_map(name).map(str::to_owned).collect()))
}

fn question(subcommand: &str) -> Cmd {
    let mut command = redis::cmd("SENTINEL");
    command.arg(subcommand);
    command
}

/// The name of a master, from names and values in turn.
fn name(master: &Value) -> Option<&str> {
    let Value::Array(fields) = master else { return None };
    fields.chunks(2).find(|pair| text(&pair[0]) == Some("name")).and_then(|pair| text(pair.get(1)?))
}
