//! `weir`: the command line.

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use mimalloc::MiMalloc;

// A request takes memory some five times if it is refused and ten if it passes. With glibc's allocator that is 7 and 9 %
// of all its instructions, here half of that and a third, for 1 MiB of the process' memory; and what a peak took is given
// back.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

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
