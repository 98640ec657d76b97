//! `weir import`: the configuration of another rate limiter, written as a rules file of ours.
//!
//! Each format has a file of its own, which makes limits and overrides of what it reads and says of each thing that has no
//! equal what it was and what to do; [`document`] writes them.

mod amount;
mod boulder;
mod condition;
mod document;
mod envoy_ratelimit;
mod limitador;
mod limitd;
#[cfg(test)]
mod tests;
mod text;

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use clap::ValueEnum;

use self::document::{Document, Origin};
use super::ExitCode;
use crate::config::directory;
use crate::config::{self, Place, Report, Source};

/// Writes the configuration of another rate limiter as a rules file, with a comment on each thing that has no equal
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What the files are for
    #[arg(value_name = "FORMAT")]
    format: Format,

    /// The files (YAML or JSON), which make one rules file together
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Where to write the rules, in place of standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Replace the file of --output if there is one
    #[arg(long, requires = "output")]
    force: bool,
}

/// Whose configuration it is.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// The buckets of limitd and limitd-redis
    Limitd,
    /// The domains of envoyproxy/ratelimit
    EnvoyRatelimit,
    /// The limits of Kuadrant's limitador
    Limitador,
    /// The limits and overrides of Let's Encrypt's Boulder
    Boulder,
}

/// Runs the command: the rules go to `out` or a file, how many they are and what is wrong to `err`. With
/// [`ExitCode::BadInput`] nothing is written.
pub fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<ExitCode> {
    let files = match args.format {
        Format::EnvoyRatelimit => directory::expand(&args.files),
        _ => Ok(args.files.clone()),
    };
    let files = match files {
        Ok(files) => files,
        Err(problem) => {
            write!(err, "{}", Report::of(problem))?;
            return Ok(ExitCode::BadInput);
        }
    };
    let mut sources: Vec<Source> = Vec::with_capacity(files.len());
    for file in &files {
        match config::read(file) {
            Ok(source) => sources.push(source),
            Err(problem) => {
                write!(err, "{}", Report::of(problem))?;
                return Ok(ExitCode::BadInput);
            }
        }
    }
    let mut document = Document::default();
    let files = sources.iter().map(|source| source.name.as_str()).collect::<Vec<_>>().join(" ");
    let name = args.format.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    document
        .head(format!("Made by `weir import {name} {files}`. Comments say, by file and line, what has no equal here."));
    let report = match args.format {
        Format::Limitd => limitd::import(&sources, &mut document),
        Format::EnvoyRatelimit => envoy_ratelimit::import(&sources, &mut document),
        Format::Limitador => limitador::import(&sources, &mut document),
        Format::Boulder => boulder::import(&sources, &mut document),
    };
    if report.errors > 0 {
        write!(err, "{report}")?;
        return Ok(ExitCode::BadInput);
    }
    let text = match document.text() {
        Ok(text) => text,
        Err(reason) => {
            writeln!(err, "error: {files}: no rules can be made of this: {reason}")?;
            return Ok(ExitCode::BadInput);
        }
    };
    let target = match &args.output {
        None => {
            out.write_all(text.as_bytes())?;
            None
        }
        Some(path) => match write_file(path, &text, args.force) {
            Ok(()) => Some(path),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                writeln!(err, "error: `{}` is there already; --force replaces it", path.display())?;
                return Ok(ExitCode::Usage);
            }
            Err(error) => {
                writeln!(err, "error: cannot write `{}`: {error}", path.display())?;
                return Ok(ExitCode::BadInput);
            }
        },
    };
    let (limits, overrides, comments) = document.counts();
    let target = target.map(|path| format!("{}: ", path.display())).unwrap_or_default();
    let counted = |number: usize, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    let comments = counted(comments, "comment");
    let (limits, overrides) = (counted(limits, "limit"), counted(overrides, "override"));
    writeln!(err, "{target}{limits}, {overrides}, {comments} on what has no equal")?;
    Ok(ExitCode::Success)
}

fn write_file(path: &Path, text: &str, replace: bool) -> io::Result<()> {
    let mut options = OpenOptions::new();
    // The file must not appear between a look and the write.
    let options = if replace { options.create(true).truncate(true) } else { options.create_new(true) };
    options.write(true).open(path)?.write_all(text.as_bytes())
}

/// A place in a file that is read. Comments name a file without its folder, which the first of them has.
fn origin(source: &Source, place: Place) -> Origin {
    let name = Path::new(&source.name).file_name().and_then(OsStr::to_str);
    Origin { file: name.unwrap_or(&source.name).to_owned(), line: place.line }
}
