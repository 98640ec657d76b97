//! Real `weir serve` processes, on ports that the system picks.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use tempfile::TempDir;

use super::eventually;
use super::wire::{Message, Wire};

/// A process with its rules in a directory of its own. It is killed when this is dropped.
pub(crate) struct Weir {
    directory: TempDir,
    child: Child,
    log: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
    pub(crate) proxy: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Weir {
    /// Serves these rules with `--upstream echo` and further flags, and waits until the doors are open.
    #[track_caller]
    pub(crate) fn serve(limits: &str, flags: &[&str]) -> Self {
        Self::launch(limits, |_| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
            command.args(Self::arguments(flags));
            command
        })
    }

    /// What [`Self::serve`] gives the binary.
    pub(crate) fn arguments<'a>(flags: &[&'a str]) -> Vec<&'a str> {
        let doors = ["serve", "--proxy", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-format", "json"];
        let upstream: &[_] = if flags.contains(&"--upstream") { &[] } else { &["--upstream", "echo"] };
        doors.into_iter().chain(upstream.iter().copied()).chain(flags.iter().copied()).collect()
    }

    /// Serves these rules by a command of the test's own, which is told the directory.
    #[track_caller]
    pub(crate) fn launch(limits: &str, command: impl FnOnce(&Path) -> Command) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("limits.yaml"), limits).unwrap();
        let mut child = command(directory.path())
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let reader = Some(read(child.stderr.take().unwrap(), Arc::clone(&log)));
        let address = |door| {
            eventually("the door is open", || {
                let log = log.lock().unwrap();
                log.lines().find_map(|line| listening(line, door)).ok_or_else(|| log.clone())
            })
        };
        let (proxy, admin) = (address("proxy"), address("admin"));
        Self { directory, child, log, reader, proxy, admin }
    }

    /// A connection to the proxy.
    pub(crate) fn connect(&self) -> Wire {
        Wire::connect(self.proxy)
    }

    /// One request on a connection of its own.
    pub(crate) fn get(&self, path: &str, fields: &[(&str, &str)]) -> Message {
        self.connect().get_with(path, fields)
    }

    /// One request to the admin door.
    pub(crate) fn admin(&self, path: &str) -> Message {
        Wire::connect(self.admin).page(path)
    }

    /// The value of a metric, by its name with its labels.
    #[track_caller]
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let answer = self.admin("/metrics");
        let text = answer.text();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value.unwrap_or_else(|| panic!("{name} is not in\n{text}"))
    }

    /// The file of the rules.
    pub(crate) fn limits_file(&self) -> PathBuf {
        self.directory.path().join("limits.yaml")
    }

    /// The directory that the process runs in.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Where a door listens, by its name in the log.
    #[track_caller]
    pub(crate) fn door(&self, name: &str) -> SocketAddr {
        eventually("the door is open", || {
            let log = self.log();
            log.lines().find_map(|line| listening(line, name)).ok_or(log)
        })
    }

    /// What the process has logged so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until a text is in the log, which comes through a pipe and may be behind what the process has done.
    #[track_caller]
    pub(crate) fn until_logged(&self, text: &str) {
        eventually(text, || match self.log() {
            log if log.contains(text) => Ok(()),
            log => Err(log),
        });
    }

    /// Memory in use, in KiB.
    pub(crate) fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// The process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, such as `HUP`.
    pub(crate) fn signal(&self, name: &str) {
        assert!(kill(name, self.child.id()), "{name}");
    }

    /// The processes that have taken over, the last one last.
    pub(crate) fn successors(&self) -> Vec<u32> {
        self.log.lock().unwrap().lines().filter_map(successor).collect()
    }

    /// Hands over from the process that serves now, and returns the id of the one that serves then.
    #[track_caller]
    pub(crate) fn hand_over(&self) -> u32 {
        let before = self.successors();
        assert!(kill("USR2", before.last().copied().unwrap_or(self.child.id())));
        eventually("another process has taken over", || match self.successors() {
            successors if successors.len() > before.len() => Ok(successors[before.len()]),
            _ => Err(self.log()),
        })
    }

    /// Waits for the process to end; all it has logged is there then, unless another one has taken over.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let status = eventually("the process ends", || self.child.try_wait().unwrap().ok_or("it runs"));
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
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal to a process; false if there is none.
pub(crate) fn kill(signal: &str, process: u32) -> bool {
    let kill = format!("kill -{signal} {process} 2>/dev/null");
    Command::new("sh").args(["-c", &kill]).status().unwrap().success()
}

/// The process that has taken over, if a line of the log says so.
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

/// The address of a door, if a line of the log says that it is open.
fn listening(line: &str, door: &str) -> Option<SocketAddr> {
    let event: serde_json::Value = serde_json::from_str(line).ok()?;
    let fields = &event["fields"];
    let is_it = fields["message"] == "listening" && fields["door"] == door;
    is_it.then(|| fields["address"].as_str().unwrap().parse().unwrap())
}
