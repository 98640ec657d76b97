//! `weir`: the command line.

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use mimalloc::MiMalloc;

// A denied request allocates about five times, a proxied one ten times: 7 and 9 % of its instructions with glibc's
// allocator, half and a third of that with this one, which takes 1 MiB more. It also returns memory after a peak.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// The code that shells report for a program that SIGPIPE has ended: 128 + 13.
const CLOSED_PIPE: u8 = 141;

fn main() -> ExitCode {
    // With two providers compiled in and none chosen, rustls panics at the first handshake.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    weir::commands::colors::decide();
    let (mut out, mut err) = (io::stdout().lock(), io::stderr());
    // Read here and not in the library, so that another commit compiles only this file again.
    let commit = option_env!("REVISION");
    let code = weir::commands::run(std::env::args_os().collect(), commit, &mut out, &mut err);
    match code.and_then(|code| out.flush().map(|()| code)) {
        Ok(code) => ExitCode::from(code as u8),
        // Nothing to report, as in `weir schema | head`. But the command has not told all that it found, so this is no success.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::from(CLOSED_PIPE),
        Err(error) => {
            let _ = writeln!(err, "error: cannot write: {error}");
            ExitCode::FAILURE
        }
    }
}
