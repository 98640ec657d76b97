//! Notifies systemd of this process' state: `sd_notify(3)`, for units with `Type=notify`.

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

pub(super) const READY: &str = "READY=1";

pub(super) const STOPPING: &str = "STOPPING=1";

/// Makes another process the service's main process. Otherwise, systemd would stop the new process when the old one ends.
pub(super) fn main_process(id: u32) -> String {
    format!("MAINPID={id}")
}

/// Notifies the supervisor, if there is one.
pub(super) fn notify(state: &str) {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else { return };
    let address = match path.as_bytes() {
        // An abstract socket, which has no file.
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&path),
    };
    if let Err(error) = address.and_then(|address| send(state, &address)) {
        tracing::warn!("cannot notify the supervisor of {state}: {error}");
    }
}

fn send(state: &str, address: &SocketAddr) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    // A supervisor that does not read must not block this process.
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
