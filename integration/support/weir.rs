//! `weir serve` as a process, on free ports.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use tempfile::TempDir;

use super::binary;
use super::eventually;
use super::process::{Process, kill};
use super::wire::{Message, Wire};

/// The store's timeout in tests that are not about it.
const STORE_TIMEOUT: &str = "1m";

/// A process in its own directory, which holds its rules. It is killed when this is dropped.
pub(crate) struct Weir {
    directory: TempDir,
    process: Process,
    log: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
    pub(crate) proxy: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Weir {
    /// Serves these rules with `--upstream echo` and further flags, and waits until it listens.
    #[track_caller]
    pub(crate) fn serve(limits: &str, flags: &[&str]) -> Self {
        Self::serve_with(limits, flags, |_, _| {})
    }

    /// Like [`Self::serve`]; `prepare` gets the command and the process' directory before the start.
    #[track_caller]
    pub(crate) fn serve_with(limits: &str, flags: &[&str], prepare: impl FnOnce(&mut Command, &Path)) -> Self {
        Self::launch(limits, |directory| {
            let mut command = binary::command(&Self::arguments(flags));
            prepare(&mut command, directory);
            command
        })
    }

    /// The arguments that [`Self::serve`] passes. A healthy store is never late, however busy the machine is. A test
    /// about late answers gives a `--store-timeout` of its own.
    pub(crate) fn arguments<'a>(flags: &[&'a str]) -> Vec<&'a str> {
        let defaults = [
            ["--proxy", "127.0.0.1:0"],
            ["--admin", "127.0.0.1:0"],
            ["--log-format", "json"],
            ["--upstream", "echo"],
            ["--store-timeout", STORE_TIMEOUT],
        ];
        let missing = defaults.iter().filter(|[name, _]| !flags.contains(name)).flatten();
        ["serve"].iter().chain(missing).chain(flags).copied().collect()
    }

    /// Serves these rules with the command that `command` makes for the process' directory.
    #[track_caller]
    pub(crate) fn launch(limits: &str, command: impl FnOnce(&Path) -> Command) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("limits.yaml"), limits).unwrap();
        let mut process =
            Process::start(command(directory.path()).current_dir(directory.path()).stderr(Stdio::piped()));
        let log = Arc::new(Mutex::new(String::new()));
        let reader = Some(read(process.child.stderr.take().unwrap(), Arc::clone(&log)));
        let mut address = |listener| {
            eventually("the listener is open", || {
                let ended = process.child.try_wait().unwrap();
                let log = log.lock().unwrap();
                let address = log.lines().find_map(|line| listening(line, listener));
                assert!(address.is_some() || ended.is_none(), "{} before it listened: {log}", ended.unwrap());
                address.ok_or_else(|| log.clone())
            })
        };
        let (proxy, admin) = (address("proxy"), address("admin"));
        Self { directory, process, log, reader, proxy, admin }
    }

    pub(crate) fn connect(&self) -> Wire {
        Wire::connect(self.proxy)
    }

    /// Sends one request on a new connection.
    pub(crate) fn get(&self, path: &str, headers: &[(&str, &str)]) -> Message {
        self.connect().get_with(path, headers)
    }

    pub(crate) fn admin(&self, path: &str) -> Message {
        Wire::connect(self.admin).page(path)
    }

    /// The value of a metric, given by its name and labels.
    #[track_caller]
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let answer = self.admin("/metrics");
        let text = answer.text();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value.unwrap_or_else(|| panic!("{name} is not in\n{text}"))
    }

    /// Waits until every worker is connected to its store. A worker that is not leaves requests to the failure policy.
    #[track_caller]
    pub(crate) fn until_connected(&self) {
        eventually("all workers are connected to the store", || {
            let text = self.admin("/readyz").text().to_owned();
            if text.contains("\"store\":\"up\"") { Ok(()) } else { Err(text) }
        });
    }

    /// Replaces the rules, and waits until they are in force.
    #[track_caller]
    pub(crate) fn reload(&self, rules: &str) {
        let reloads = || self.metric("weir_config_reloads_total{result=\"success\"}");
        let before = reloads();
        std::fs::write(self.limits_file(), rules).unwrap();
        self.signal("HUP");
        eventually("the new rules are in force", || if reloads() > before { Ok(()) } else { Err(self.log()) });
    }

    pub(crate) fn limits_file(&self) -> PathBuf {
        self.directory.path().join("limits.yaml")
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The address of a listener, given by its name in the log.
    #[track_caller]
    pub(crate) fn listener(&self, name: &str) -> SocketAddr {
        eventually("the listener is open", || {
            let log = self.log();
            log.lines().find_map(|line| listening(line, name)).ok_or(log)
        })
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until the log, which comes through a pipe, contains a text.
    #[track_caller]
    pub(crate) fn until_logged(&self, text: &str) {
        eventually(text, || match self.log() {
            log if log.contains(text) => Ok(()),
            log => Err(log),
        });
    }

    /// Resident memory in KiB.
    pub(crate) fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends a signal, such as `HUP`.
    pub(crate) fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// The processes that have taken over, oldest first.
    pub(crate) fn successors(&self) -> Vec<u32> {
        self.log.lock().unwrap().lines().filter_map(successor).collect()
    }

    /// Makes a new process take over and returns its id.
    #[track_caller]
    pub(crate) fn hand_over(&self) -> u32 {
        let before = self.successors();
        assert!(kill("USR2", before.last().copied().unwrap_or(self.process.id())));
        eventually("another process has taken over", || match self.successors() {
            successors if successors.len() > before.len() => Ok(successors[before.len()]),
            _ => Err(self.log()),
        })
    }

    /// Waits until the process ends. The log is complete then, unless another process has taken over.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let status = self.process.wait();
        if self.successors().is_empty()
            && let Some(reader) = self.reader.take()
        {
            reader.join().unwrap();
        }
        status
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        for successor in self.successors() {
            kill("KILL", successor);
        }
    }
}

/// The id of the process that has taken over, if a log line tells it.
fn successor(line: &str) -> Option<u32> {
    let event: serde_json::Value = serde_json::from_str(line).ok()?;
    let fields = &event["fields"];
    if fields["message"] == "handed over" { u32::try_from(fields["successor"].as_u64()?).ok() } else { None }
}

fn read(stderr: ChildStderr, log: Arc<Mutex<String>>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let mut log = log.lock().unwrap();
            log.push_str(&line);
            log.push('\n');
        }
    })
}

/// The address in the log line of a listener that opens.
fn listening(line: &str, listener: &str) -> Option<SocketAddr> {
    let event: serde_json::Value = serde_json::from_str(line).ok()?;
    let fields = &event["fields"];
    let is_it = fields["message"] == "listening" && fields["listener"] == listener;
    is_it.then(|| fields["address"].as_str().unwrap().parse().unwrap())
}
