//! `weir`: the command line.

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    // rustls panics at the first handshake when two providers are compiled in and none was chosen.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let (mut out, mut err) = (io::stdout().lock(), io::stderr());
    let code = weir::commands::run(std::env::args_os().collect(), &mut out, &mut err);
    match code.and_then(|code| out.flush().map(|()| code)) {
        Ok(code) => ExitCode::from(code as u8),
        // A reader that has seen enough (`weir schema | head`) is no failure.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(err, "error: cannot write: {error}");
            ExitCode::FAILURE
        }
    }
}
