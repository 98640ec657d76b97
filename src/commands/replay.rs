//! `weir replay`: runs scenarios with their own clock against a store and compares what comes out.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use serde_json::Value;

use super::scenario::{Difference, Player};
use super::store::StoreArgs;
use super::{ExitCode, could_not_start};
use crate::store::Clock;

/// Runs scenarios (JSON, one a line) with their own clock, and compares
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Files of scenarios
    #[arg(required = true)]
    files: Vec<PathBuf>,

    #[command(flatten)]
    store: StoreArgs,
}

/// Replays every scenario of the files. Prints the first difference of each that fails, and `N passed, N failed` last.
pub fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<ExitCode> {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return could_not_start(err, &error),
    };
    runtime.block_on(replay(args, out, err))
}

async fn replay(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<ExitCode> {
    let clock = Arc::new(AtomicU64::new(0));
    // Cases are about answers, not about time: a busy machine must not turn one into a timeout.
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
    let (mut passed, mut failed) = (0, BTreeMap::new());
    for file in &args.files {
        let text = match std::fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) => {
                writeln!(err, "error: cannot read `{}`: {error}", file.display())?;
                return Ok(ExitCode::BadInput);
            }
        };
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
            let place = format!("{}:{number}", file.display());
            match play(&mut player, line).await {
                Ok(()) => passed += 1,
                Err(difference) => {
                    writeln!(out, "{place}: {difference}")?;
                    failed.insert(place, difference);
                }
            }
        }
    }
    writeln!(out, "{passed} passed, {} failed", failed.len())?;
    Ok(if failed.is_empty() { ExitCode::Success } else { ExitCode::BadInput })
}

async fn play(player: &mut Player, line: &str) -> Result<(), Difference> {
    let scenario: Value =
        serde_json::from_str(line).map_err(|error| Difference::of("", &format!("no JSON: {error}")))?;
    let case = scenario["case"].as_str().unwrap_or("unnamed");
    player.play(&scenario).await.map_err(|what| Difference::of(case, &what))
}
