//! Sockets that this process inherited, from systemd or from a Weir that hands over.
//!
//! Both pass them as `sd_listen_fds(3)` describes: `LISTEN_FDS` descriptors from 3 on, with names in `LISTEN_FDNAMES`.
//! systemd sets `LISTEN_PID` to this process' id, so that child processes ignore the sockets. A Weir that hands over can't
//! know the id before it starts the process, so it sets [`VARIABLE`] to its own id, which the new process compares with
//! its parent's.

use std::env;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::parent_id;
use std::time::Duration;

use listenfd::ListenFd;
use socket2::{Domain, Socket, Type};

use super::ServerError;
use super::listening_socket::{self, ListenAddress};
use crate::telemetry::metrics::ListenerKind;

/// The environment variable with the id of the process that hands over.
pub(super) const VARIABLE: &str = "WEIR_HANDOVER";

/// The name of the socket on which the old process waits for [`READY`].
pub(super) const READY_NAME: &str = "handover";

/// The name of the socket on which the old process sends its pushed configuration.
pub(super) const CONFIGURATION_NAME: &str = "xds";

/// For each part of that configuration. The old process only writes it.
const CONFIGURATION_TIMEOUT: Duration = Duration::from_secs(5);

/// The new process sends this when its listeners are open.
pub(super) const READY: &[u8] = b"ready";

/// The meaning of a socket's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// The place is that among the listeners of this kind.
    Listener(ListenerKind, usize),
    Ready,
    Configuration,
}

#[derive(Debug, Default)]
pub(super) struct InheritedSockets {
    sockets: Vec<(ListenerKind, usize, Socket)>,
    ready: Option<UnixStream>,
    configuration: Option<UnixStream>,
}

impl InheritedSockets {
    /// Takes the sockets for this process, once.
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
                Meaning::Listener(listener, number) => {
                    inherited.sockets.push((listener, number, socket(&mut descriptors, place)?));
                }
                Meaning::Ready => inherited.ready = stream(&mut descriptors, place)?,
                Meaning::Configuration => inherited.configuration = stream(&mut descriptors, place)?,
            }
        }
        Ok(inherited)
    }

    /// Takes the sockets of a listener, the one in this `place` among those of its kind. Those at its address are its own, and
    /// so are those with its name that no other of the `configured` addresses has.
    pub(super) fn of_listener(
        &mut self,
        listener: ListenerKind,
        place: usize,
        address: &ListenAddress,
        configured: &[ListenAddress],
    ) -> Vec<Socket> {
        let is_its = |(of, named, socket): &mut (ListenerKind, usize, Socket)| {
            let bound = listening_socket::address(socket).ok();
            let is_at = |address: &ListenAddress| bound.as_ref() == Some(address);
            *of == listener && (is_at(address) || (*named == place && !configured.iter().any(is_at)))
        };
        self.sockets.extract_if(.., is_its).map(|(.., socket)| socket).collect()
    }

    /// Reads the pushed configuration of the Weir that hands over, if it has one.
    pub(super) fn configuration(&mut self) -> Option<io::Result<Vec<u8>>> {
        let mut stream = self.configuration.take()?;
        let mut read = Vec::new();
        let reading = stream.set_read_timeout(Some(CONFIGURATION_TIMEOUT)).and_then(|()| stream.read_to_end(&mut read));
        Some(reading.map(|_| read))
    }

    /// True if another Weir waits until the listeners are open.
    pub(super) const fn is_handover(&self) -> bool {
        self.ready.is_some()
    }

    /// Tells the Weir that hands over, if there is one, that the listeners are open.
    pub(super) fn ready(self) {
        if let Some(Err(error)) = self.ready.map(|mut ready| ready.write_all(READY)) {
            tracing::warn!("cannot tell the old process that this one is ready: {error}");
        }
    }
}

/// Returns the name of a listener's socket; `place` is that among the listeners of its kind.
pub(super) fn name(listener: ListenerKind, place: usize) -> String {
    if place == 0 { listener.label().to_owned() } else { format!("{}-{}", listener.label(), place + 1) }
}

/// Returns the kind and the place of a listener by its name, such as `proxy-2` for the second.
fn further(name: &str) -> Option<(ListenerKind, usize)> {
    let (kind, number) = name.split_once('-')?;
    // The others have one address.
    let several = [ListenerKind::Proxy, ListenerKind::Check, ListenerKind::Admin];
    let kind = several.into_iter().find(|listener| listener.label() == kind)?;
    let number: usize = number.parse().ok()?;
    (number > 1).then(|| (kind, number - 1))
}

/// The meaning of each socket. A socket without a name is the proxy's: `systemd-socket-activate` sets no names by default.
fn meanings(names: Option<&str>, count: usize) -> Result<Vec<Meaning>, String> {
    let Some(names) = names.filter(|names| !names.is_empty()) else {
        return Ok(vec![Meaning::Listener(ListenerKind::Proxy, 0); count]);
    };
    let names: Vec<_> = names.split(':').collect();
    if names.len() != count {
        return Err(format!("LISTEN_FDS says {count} and LISTEN_FDNAMES has {} names", names.len()));
    }
    let meaning = |name: &str| match name {
        "unknown" | "" => Ok(Meaning::Listener(ListenerKind::Proxy, 0)),
        READY_NAME => Ok(Meaning::Ready),
        CONFIGURATION_NAME => Ok(Meaning::Configuration),
        _ => {
            let listener = ListenerKind::ALL.into_iter().find(|listener| listener.label() == name);
            let listener = listener.map(|listener| Meaning::Listener(listener, 0));
            let further = || further(name).map(|(listener, place)| Meaning::Listener(listener, place));
            listener.or_else(further).ok_or_else(|| {
                let names = ListenerKind::ALL.map(|listener| format!("`FileDescriptorName={}`", listener.label()));
                format!("unknown listener `{name}`; write {} in the socket's unit", names.join(" or "))
            })
        }
    };
    names.into_iter().map(meaning).collect()
}

fn stream(descriptors: &mut ListenFd, place: usize) -> Result<Option<UnixStream>, String> {
    let (family, kind) = (Domain::UNIX.into(), Type::STREAM.into());
    descriptors.take_custom(place, family, kind, "unix stream socket").map_err(|error| error.to_string())
}

fn socket(descriptors: &mut ListenFd, place: usize) -> Result<Socket, String> {
    let tcp = descriptors.take_tcp_listener(place).ok().flatten().map(Socket::from);
    let unix = || descriptors.take_unix_listener(place).ok().flatten().map(Socket::from);
    let socket = tcp.or_else(unix).ok_or_else(|| format!("socket {place} is neither TCP nor a unix stream socket"))?;
    if socket.is_listener().unwrap_or(false) {
        Ok(socket)
    } else {
        Err(format!("socket {place} does not listen; it may belong to an accepted connection (`Accept=yes`)"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_which_listener_a_socket_is_for() {
        use Meaning::{Listener, Ready};
        let (proxy, admin) = (Listener(ListenerKind::Proxy, 0), Listener(ListenerKind::Admin, 0));
        for (names, count, expected) in [
            (None, 2, vec![proxy, proxy]),
            (Some(""), 1, vec![proxy]),
            (Some("unknown"), 1, vec![proxy]),
            (Some("proxy:admin:proxy:handover"), 4, vec![proxy, admin, proxy, Ready]),
            (Some("proxy-2:proxy"), 2, vec![Listener(ListenerKind::Proxy, 1), proxy]),
            (
                Some("admin:check-3:admin-2"),
                3,
                vec![admin, Listener(ListenerKind::Check, 2), Listener(ListenerKind::Admin, 1)],
            ),
            (None, 0, vec![]),
        ] {
            assert_eq!(meanings(names, count), Ok(expected), "{names:?}");
        }
    }

    #[test]
    fn what_is_no_listener_is_an_error_that_says_what_would_be_one() {
        for (names, count, part) in [
            ("weir.socket", 1, "FileDescriptorName=proxy"),
            ("grpc-2", 1, "unknown listener `grpc-2`"),
            ("proxy-1", 1, "unknown listener `proxy-1`"),
            ("proxy", 2, "has 1 names"),
        ] {
            let error = meanings(Some(names), count).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
