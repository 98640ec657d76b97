//! Hands the listening sockets to a new process, so that a new binary takes over without losing a connection.
//!
//! The new process gets the same sockets, not new ones at the same address: connections in their queues are accepted by
//! either process. [`super::inherited`] is the other end.

use std::env;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{self, Child, Command, ExitStatus};
use std::time::Duration;

use command_fds::{CommandFdExt, FdMapping};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use super::inherited::{CONFIGURATION_NAME, READY, READY_NAME, VARIABLE};

/// The time in which the new process must open its listeners. It only reads the rules, so a process that takes longer hangs.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// The time to wait for the exit status of a new process that has closed its end.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

/// The first descriptor that is handed over (`SD_LISTEN_FDS_START`).
const FIRST: i32 = 3;

/// Starts the binary at this process' path with this process' arguments, waits until it serves, and returns its process id.
/// After an error, the new process is gone. Each socket comes with its name.
///
/// The path is the one that started this process, so a link to a new version is followed. A version that cannot take the pushed
/// `configuration` does not start.
pub(super) async fn hand_over(
    mut sockets: Vec<(String, OwnedFd)>,
    configuration: Option<Vec<u8>>,
) -> Result<u32, String> {
    let pair = || UnixStream::pair().map_err(|error| error.to_string());
    let (ours, theirs) = pair()?;
    sockets.push((READY_NAME.to_owned(), theirs.into()));
    let mut telling = None;
    if let Some(configuration) = configuration {
        let (ours, theirs) = pair()?;
        sockets.push((CONFIGURATION_NAME.to_owned(), theirs.into()));
        telling = Some((ours, configuration));
    }
    let mut successor = spawn(sockets).map_err(|error| format!("it cannot be started: {error}"))?;
    let told = async {
        // A new process that does not read it to the end says why by its exit.
        if let Some((stream, configuration)) = telling {
            let _ = tell(stream, configuration).await;
        }
    };
    let answer = timeout(READY_TIMEOUT, async { tokio::join!(hear(ours), told).0 }).await;
    match answer {
        Ok(Ok(answer)) if answer == READY => Ok(successor.release()),
        Ok(Ok(_)) => Err(match successor.ended().await {
            Some(status) => format!("it ended before it was ready: {status}"),
            None => "it closed its end before it was ready".into(),
        }),
        Ok(Err(error)) => Err(format!("cannot read from it: {error}")),
        Err(_) => Err(format!("it was not ready within {READY_TIMEOUT:?}")),
    }
}

fn spawn(sockets: Vec<(String, OwnedFd)>) -> io::Result<Successor> {
    let mut arguments = env::args_os();
    let program = arguments.next().ok_or_else(|| io::Error::other("this process does not know its own path"))?;
    let (names, descriptors): (Vec<_>, Vec<_>) = sockets.into_iter().unzip();
    let mappings = (FIRST..).zip(descriptors).map(|(child_fd, parent_fd)| FdMapping { parent_fd, child_fd }).collect();
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("LISTEN_FDS", names.len().to_string())
        .env("LISTEN_FDNAMES", names.join(":"))
        .env(VARIABLE, process::id().to_string())
        .env_remove("LISTEN_PID")
        .env_remove("LISTEN_FDS_FIRST_FD")
        .fd_mappings(mappings)
        .map_err(io::Error::other)?;
    // The command owns our copy of the other end and drops it here: otherwise reading would not end.
    command.spawn().map(|child| Successor(Some(child)))
}

async fn tell(ours: UnixStream, configuration: Vec<u8>) -> io::Result<()> {
    ours.set_nonblocking(true)?;
    tokio::net::UnixStream::from_std(ours)?.write_all(&configuration).await
}

/// Reads until the new process closes its end, or ends.
async fn hear(ours: UnixStream) -> io::Result<Vec<u8>> {
    ours.set_nonblocking(true)?;
    let mut answer = Vec::new();
    tokio::net::UnixStream::from_std(ours)?.take(READY.len() as u64 + 1).read_to_end(&mut answer).await?;
    Ok(answer)
}

/// A new process that is not ready yet. Dropping it kills it.
struct Successor(Option<Child>);

impl Successor {
    /// Lets the process run on. Nobody waits for its end, as this process is about to end.
    fn release(&mut self) -> u32 {
        self.0.take().map_or(0, |child| child.id())
    }

    /// Returns the exit status, if the process ends in time.
    async fn ended(&mut self) -> Option<ExitStatus> {
        let child = self.0.as_mut()?;
        let end = async {
            loop {
                match child.try_wait() {
                    Ok(Some(status)) => return Some(status),
                    Ok(None) => sleep(Duration::from_millis(10)).await,
                    Err(_) => return None,
                }
            }
        };
        timeout(EXIT_TIMEOUT, end).await.ok().flatten()
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // Fails if it has ended already; either way, `wait` returns at once.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
