//! Reads a directory of rules files: one for each team, whose limits bear the team's name, and `base.yaml` for what concerns all.

use std::collections::HashMap;
use std::path::Path;

use super::directory::{in_directory, named_after};
use super::named_files::{self, NamedFile, read_text};
use super::problem::{Problem, quoted};
use super::scalars::is_name;
use super::{LARGEST_FILE, Source, Sources};

/// The owner of the file whose limits have no prefix, and which alone has `jwt`.
pub const BASE: &str = "base";

/// The most files of teams, and the size of the largest: together as much as one rules file. A `ConfigMap` holds 1 MiB.
const MOST_TEAMS: usize = 256;
const LARGEST_OF_TEAM: u64 = LARGEST_FILE / MOST_TEAMS as u64;

/// The longest name of a team: half of that of a limit.
const LONGEST_OWNER: usize = 32;

/// One file of the directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OwnedFile {
    /// The file's name without its ending.
    pub owner: String,
    pub source: Source,
    /// The files that it names.
    pub named_files: Vec<NamedFile>,
    /// The reason why it cannot be read.
    pub problem: Option<Problem>,
}

/// A file with limits, alone or in a directory.
#[derive(Clone, Copy)]
pub(super) struct RulesFile<'s> {
    /// `None` for limits without a prefix.
    pub(super) owner: Option<&'s str>,
    pub(super) source: &'s Source,
    pub(super) named_files: &'s [NamedFile],
    pub(super) problem: Option<&'s Problem>,
}

/// What precedes the names of a team's limits.
pub(super) fn prefix(owner: &str) -> String {
    format!("{owner}/")
}

/// Reads the files of a directory, `base.yaml` first. A file that cannot be read is no mistake of the others.
pub(super) fn read(directory: &Path) -> Result<Vec<OwnedFile>, Problem> {
    let mut files: Vec<OwnedFile> = in_directory(directory)?.iter().map(|path| file(path)).collect();
    let teams = files.iter().filter(|file| file.team().is_some()).count();
    if teams > MOST_TEAMS {
        let message = format!("{teams} teams in this directory, at most {MOST_TEAMS} are supported");
        return Err(Problem::of_file(&directory.display().to_string(), message, "merge some of them"));
    }
    files.sort_by_key(|file| file.owner != BASE);
    let mut names = HashMap::new();
    for file in &mut files {
        if let Some(first) = names.insert(file.owner.clone(), file.source.name.clone()) {
            let message = format!("{} has a file already, {first}", quoted(&file.owner));
            file.problem = Some(Problem::of_file(&file.source.name, message, "merge them"));
        }
    }
    Ok(files)
}

fn file(path: &Path) -> OwnedFile {
    let name = path.display().to_string();
    let owner = named_after(path);
    let largest = if owner == BASE { LARGEST_FILE } else { LARGEST_OF_TEAM };
    let is_lower = |text: &str| !text.contains(|any: char| any.is_ascii_uppercase());
    let text = if is_name(&owner, LONGEST_OWNER)
        && is_lower(&owner)
        && owner.starts_with(|c: char| c.is_ascii_alphabetic())
    {
        // A pipe would have nobody to write to it.
        if path.exists() && !path.is_file() { Err(("is not a file".to_owned(), "")) } else { read_text(path, largest) }
    } else {
        let help = "start with a letter; use at most 32 lower-case letters, digits, `_`, `.` and `-`";
        Err((format!("{} is not a valid name of a team", quoted(&owner)), help))
    };
    let (text, problem) = match text {
        Ok(text) => (text, None),
        Err((message, help)) => (String::new(), Some(Problem::of_file(&name, message, help))),
    };
    let named_files = named_files::read_inside(path, &text);
    OwnedFile { owner, source: Source { name, text }, named_files, problem }
}

impl OwnedFile {
    /// Returns the owner of its limits; `None` if they have no prefix.
    pub fn team(&self) -> Option<&str> {
        Some(self.owner.as_str()).filter(|owner| *owner != BASE)
    }

    fn as_rules(&self) -> RulesFile<'_> {
        let Self { source, named_files, problem, .. } = self;
        RulesFile { owner: self.team(), source, named_files, problem: problem.as_ref() }
    }
}

impl Sources {
    /// The files with limits: the rules file, or those of a directory.
    pub(super) fn rules_files(&self) -> impl Iterator<Item = RulesFile<'_>> {
        let alone = self.limits.iter().map(|source| RulesFile {
            owner: None,
            source,
            named_files: &self.named_files,
            problem: None,
        });
        alone.chain(self.teams.iter().map(OwnedFile::as_rules))
    }

    /// Returns the names of all files whose lines overrides and exemptions stand on, in the order of their numbers.
    pub(super) fn file_names(&self) -> impl Iterator<Item = String> {
        self.all_files().map(|source| source.name.clone())
    }

    /// Returns the rules files and those of overrides. The first is reserved for a rules file, even if there is none.
    pub fn all_files(&self) -> impl Iterator<Item = &Source> {
        static NONE: Source = Source { name: String::new(), text: String::new() };
        let none = (self.limits.is_none() && self.teams.is_empty()).then_some(&NONE);
        none.into_iter().chain(self.rules_files().map(|file| file.source)).chain(&self.overrides)
    }

    /// Returns the name of the rules file or the directory of rules files; empty if there is none.
    pub fn rules_name(&self) -> String {
        let directory = self.teams.first().and_then(|file| Path::new(&file.source.name).parent());
        let of_directory = || directory.map(|path| path.display().to_string()).unwrap_or_default();
        self.limits.as_ref().map_or_else(of_directory, |source| source.name.clone())
    }

    /// Returns the team whose file has this name.
    pub fn team_of(&self, name: &str) -> Option<&str> {
        self.teams.iter().find(|file| file.source.name == name).and_then(OwnedFile::team)
    }

    /// Returns the name of the file with the limits of a team, or of the rules file.
    pub fn file_of(&self, owner: Option<&str>) -> &str {
        self.rules_files().find(|file| file.owner == owner).map_or("", |file| &file.source.name)
    }
}
