//! Sockets that this process was started with: by systemd, or by a Weir that it takes over from.
//!
//! Both come as `sd_listen_fds(3)` says: descriptors from 3 on, `LISTEN_FDS` of them, with names in `LISTEN_FDNAMES`.
//! systemd puts this process' id in `LISTEN_PID`, so that no child of it takes the sockets for its own. A Weir that hands
//! over can't know the id before there is the process, so it puts its own id in [`VARIABLE`], which holds for its
//! children and not for theirs.

use std::env;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::os::unix::process::parent_id;

use listenfd::ListenFd;
use socket2::{Domain, SockRef, Type};

use super::ServerError;
use super::listening_socket::ListeningSocket;
use crate::listeners::ListenerKind;

/// Holds the id of the process that hands its sockets over.
pub(super) const VARIABLE: &str = "WEIR_HANDOVER";

/// The name of the socket on which the one who hands over waits to hear [`READY`].
pub(super) const READY_NAME: &str = "handover";

/// What the new process says when its listeners are open.
pub(super) const READY: &[u8] = b"ready";

/// What a name among the handed-over sockets means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    Listener(ListenerKind),
    Ready,
}

/// The sockets that this process was started with.
#[derive(Debug, Default)]
pub(super) struct Inherited {
    sockets: Vec<(ListenerKind, ListeningSocket)>,
    ready: Option<UnixStream>,
}

impl Inherited {
    /// Takes them, once. None if there are none, or if they are for another process.
    pub(super) fn take() -> Result<Self, ServerError> {
        let variable = |name| env::var(name).unwrap_or_default();
        let is_handover = variable(VARIABLE) == parent_id().to_string() && variable("LISTEN_PID").is_empty();
        let is_activation = variable("LISTEN_PID") == std::process::id().to_string();
        if !is_handover && !is_activation {
            return Ok(Self::default());
        }
        let names = env::var("LISTEN_FDNAMES").ok();
        Self::of(ListenFd::from_env(), names.as_deref()).map_err(ServerError::Inherited)
    }

    fn of(mut descriptors: ListenFd, names: Option<&str>) -> Result<Self, String> {
        let mut inherited = Self::default();
        for (place, meaning) in meanings(names, descriptors.len())?.into_iter().enumerate() {
            match meaning {
                Meaning::Listener(listener) => inherited.sockets.push((listener, socket(&mut descriptors, place)?)),
                Meaning::Ready => {
                    let (family, kind) = (Domain::UNIX.into(), Type::STREAM.into());
                    inherited.ready = descriptors
                        .take_custom(place, family, kind, "unix stream socket")
                        .map_err(|error| error.to_string())?;
                }
            }
        }
        Ok(inherited)
    }

    /// The sockets of a listener; from now on they are not in here any more.
    pub(super) fn of_listener(&mut self, listener: ListenerKind) -> Vec<ListeningSocket> {
        self.sockets.extract_if(.., |(of, _)| *of == listener).map(|(_, socket)| socket).collect()
    }

    /// Whether another Weir waits to be told that the listeners are open.
    pub(super) const fn is_handover(&self) -> bool {
        self.ready.is_some()
    }

    /// Tells the one who hands over, if there is one, that the listeners are open.
    pub(super) fn ready(self) {
        if let Some(Err(error)) = self.ready.map(|mut ready| ready.write_all(READY)) {
            tracing::warn!("whoever started this process does not hear that it is ready: {error}");
        }
    }
}

/// What the sockets are for. One without a name is the proxy's: `systemd-socket-activate` gives none unless told to.
fn meanings(names: Option<&str>, count: usize) -> Result<Vec<Meaning>, String> {
    let Some(names) = names.filter(|names| !names.is_empty()) else {
        return Ok(vec![Meaning::Listener(ListenerKind::Proxy); count]);
    };
    let names: Vec<_> = names.split(':').collect();
    if names.len() != count {
        return Err(format!("LISTEN_FDS says {count} and LISTEN_FDNAMES has {} names", names.len()));
    }
    let meaning = |name: &str| match name {
        "unknown" | "" => Ok(Meaning::Listener(ListenerKind::Proxy)),
        READY_NAME => Ok(Meaning::Ready),
        _ => {
            let listener = ListenerKind::ALL.into_iter().find(|listener| listener.name() == name);
            listener.map(Meaning::Listener).ok_or_else(|| {
                let listeners =
                    ListenerKind::ALL.map(|listener| format!("`FileDescriptorName={}`", listener.name())).join(" or ");
                format!("`{name}` is no listener; write {listeners} in the socket's unit")
            })
        }
    };
    names.into_iter().map(meaning).collect()
}

fn socket(descriptors: &mut ListenFd, place: usize) -> Result<ListeningSocket, String> {
    let tcp = descriptors.take_tcp_listener(place).ok().flatten().map(ListeningSocket::Tcp);
    let unix = || descriptors.take_unix_listener(place).ok().flatten().map(ListeningSocket::Unix);
    let socket = tcp.or_else(unix).ok_or_else(|| format!("socket {place} is neither TCP nor a unix stream socket"))?;
    if SockRef::from(&socket).is_listener().unwrap_or(false) {
        Ok(socket)
    } else {
        Err(format!("socket {place} does not listen; it may be one of an accepted connection (`Accept=yes`)"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_which_listener_a_socket_is_for() {
        use Meaning::{Listener, Ready};
        let (proxy, admin) = (Listener(ListenerKind::Proxy), Listener(ListenerKind::Admin));
        for (names, count, expected) in [
            (None, 2, vec![proxy, proxy]),
            (Some(""), 1, vec![proxy]),
            (Some("unknown"), 1, vec![proxy]),
            (Some("proxy:admin:proxy:handover"), 4, vec![proxy, admin, proxy, Ready]),
            (None, 0, vec![]),
        ] {
            assert_eq!(meanings(names, count), Ok(expected), "{names:?}");
        }
    }

    #[test]
    fn what_is_no_listener_is_an_error_that_says_what_would_be_one() {
        for (names, count, part) in [("weir.socket", 1, "FileDescriptorName=proxy"), ("proxy", 2, "has 1 names")] {
            let error = meanings(Some(names), count).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
