//! `weir test`: runs scenarios against a store, with a simulated clock, and compares the answers.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use serde_json::Value;

use super::scenario::Player;
use super::store::StoreArgs;
use super::{ExitCode, could_not_start};
use crate::clock::Clock;

/// Runs scenarios against a store and prints what differs from the expected answers
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Scenario files in JSON Lines: one scenario per line
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    #[command(flatten)]
    store: StoreArgs,
}

/// Runs every scenario of the files. Prints the first difference of each that fails, and `N passed, N failed` last.
pub fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<ExitCode> {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return could_not_start(err, &error),
    };
    runtime.block_on(test(args, out, err))
}

async fn test(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<ExitCode> {
    let clock = Arc::new(AtomicU64::new(0));
    // Scenarios are about answers, not about time: a busy machine must not cause timeouts.
    let plan = match args.store.plan(Clock::Set(Arc::clone(&clock)), Some(Duration::from_secs(2))) {
        Ok(plan) => plan,
        Err(error) => {
            writeln!(err, "error: --store: {error}")?;
            return Ok(ExitCode::Usage);
        }
    };
    let mut player = match Player::connect(plan.open(), clock).await {
        Ok(player) => player,
        Err(error) => return could_not_start(err, &error),
    };
    let (mut passed, mut failed) = (0, 0);
    for file in &args.files {
        let text = match std::fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) => {
                writeln!(err, "error: cannot read `{}`: {error}", file.display())?;
                return Ok(ExitCode::BadInput);
            }
        };
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
            match play(&mut player, line).await {
                Ok(()) => passed += 1,
                Err(difference) => {
                    failed += 1;
                    writeln!(out, "{}:{number}: {difference}", file.display())?;
                }
            }
        }
    }
    writeln!(out, "{passed} passed, {failed} failed")?;
    Ok(if failed == 0 { ExitCode::Success } else { ExitCode::BadInput })
}

/// Plays the scenario on one line. The error names the case and its first difference.
async fn play(player: &mut Player, line: &str) -> Result<(), String> {
    let scenario: Value = serde_json::from_str(line).map_err(|error| format!("invalid JSON: {error}"))?;
    let case = scenario["case"].as_str().unwrap_or("unnamed");
    player.play(&scenario).await.map_err(|difference| format!("{case}: {difference}"))
}
