//! `weir diff`: compares two rules files: changed limits and overrides, their direction, and the fate of the buckets.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::ValueEnum;

use self::source::Rulebook;
use super::colors::Palette;
use super::exit::{ExitCode, Failure};
use super::print::joined;

mod buckets;
mod conditions;
mod exemptions;
mod limits;
mod overrides;
mod report;
mod settings;
mod shares;
mod source;
#[cfg(test)]
mod tests;
mod tokens;

/// Shows which limits and overrides of two rules files differ, and whether the new ones are stricter.
///
/// Exits with 0 if nothing is stricter, 1 if something is, and 3 if a file cannot be read or does not load.
///
/// For the requests of a log, see `weir simulate --against`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The rules file in force; `-` for standard input
    old: PathBuf,

    /// The rules file that replaces it; `-` for standard input
    new: PathBuf,

    /// A file of overrides that is read with OLD; repeatable
    #[arg(long, value_name = "FILE")]
    overrides_old: Vec<PathBuf>,

    /// A file of overrides that is read with NEW; repeatable
    #[arg(long, value_name = "FILE")]
    overrides_new: Vec<PathBuf>,

    /// The form of the output
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For a terminal
    Text,
    Json,
    /// A table for a comment on a change
    Markdown,
}

/// Prints the differences, and to `err` the limits that become stricter.
pub fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> Result<ExitCode, Failure> {
    if args.old == args.new && args.old.as_os_str() == "-" {
        return Err(Failure::usage("only one of OLD and NEW can be standard input"));
    }
    let mut input = io::stdin();
    let old = Rulebook::read(&args.old, &args.overrides_old, &mut input)?;
    let new = Rulebook::read(&args.new, &args.overrides_new, &mut input)?;
    let found = limits::compare(&old, &new);
    let text = match args.format {
        Format::Text => report::text(&found),
        Format::Json => report::json(&found),
        Format::Markdown => report::markdown(&found),
    };
    out.write_all(text.as_bytes())?;
    let stricter: Vec<&str> =
        found.iter().filter(|limit| limit.effect.stricter).map(|limit| limit.name.as_str()).collect();
    if stricter.is_empty() {
        return Ok(ExitCode::Success);
    }
    let Palette { bad, .. } = Palette::err();
    writeln!(err, "{bad}stricter{bad:#}: {}", joined(&stricter, ", "))?;
    Ok(ExitCode::BadInput)
}
