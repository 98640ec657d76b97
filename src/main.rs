//! `weir`: the command line.

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use mimalloc::MiMalloc;

// A denied request allocates about five times, an allowed one ten times. With glibc's allocator that is 7 and 9 % of the
// instructions; mimalloc takes half and a third of that for 1 MiB of memory, and returns memory after a peak.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    // rustls panics at the first handshake when two providers are compiled in and none was chosen.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let (mut out, mut err) = (io::stdout().lock(), io::stderr());
    let code = weir::commands::run(std::env::args_os().collect(), &mut out, &mut err);
    match code.and_then(|code| out.flush().map(|()| code)) {
        Ok(code) => ExitCode::from(code as u8),
        // A reader that stops early (`weir schema | head`) is not a failure.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(err, "error: cannot write: {error}");
            ExitCode::FAILURE
        }
    }
}
