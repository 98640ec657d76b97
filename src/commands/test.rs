//! `weir test`: runs scenarios against a store, with a simulated clock, and compares the answers.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use serde_json::Value;

use super::exit::{ExitCode, Failure};
use super::runtime::block_on;
use super::scenario::Player;
use super::store_flags::StoreArgs;
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
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    block_on(test(args, out)).map_err(Failure::could_not_start)?
}

async fn test(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let clock = Arc::new(AtomicU64::new(0));
    // Scenarios are about answers, not about time: a busy machine must not cause timeouts.
    let timeout = Some(Duration::from_secs(2));
    let plan = args.store.plan(Clock::Set(Arc::clone(&clock)), timeout).map_err(Failure::usage)?;
    let mut player = Player::connect(plan.open(), clock).await.map_err(Failure::could_not_start)?;
    let (mut passed, mut failed) = (0, 0);
    for file in &args.files {
        let unreadable = |error| Failure::bad_input(format!("cannot read `{}`: {error}", file.display()));
        let text = std::fs::read_to_string(file).map_err(unreadable)?;
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
