//! What systemd is told of this process: `sd_notify(3)`, for units of `Type=notify`.

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The listeners are open.
pub(super) const READY: &str = "READY=1";

/// The process drains.
pub(super) const STOPPING: &str = "STOPPING=1";

/// Another process is the service's main one from now on. Without this the end of the old one would be the service's end,
/// and systemd would stop the new one too.
pub(super) fn main_process(id: u32) -> String {
    format!("MAINPID={id}")
}

/// Tells the supervisor, if there is one.
pub(super) fn notify(state: &str) {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else { return };
    let address = match path.as_bytes() {
        // A name without a file, which ends with the last one who has it open.
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&path),
    };
    if let Err(error) = address.and_then(|address| send(state, &address)) {
        tracing::warn!("cannot tell the supervisor {state}: {error}");
    }
}

fn send(state: &str, address: &SocketAddr) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    // A supervisor that does not read must not hold us up.
    socket.set_nonblocking(true)?;
    socket.send_to_addr(state.as_bytes(), address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_one_datagram() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let supervisor = UnixDatagram::bind(&path).unwrap();
        send(READY, &SocketAddr::from_pathname(&path).unwrap()).unwrap();
        let mut heard = [0; 32];
        let length = supervisor.recv(&mut heard).unwrap();
        assert_eq!(&heard[..length], b"READY=1");
        assert_eq!(main_process(7), "MAINPID=7");
    }
}
