//! The pages of the repository and their parts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Directories without pages of this repository.
const SKIPPED: &[&str] = &[".git", "target", "corpus", "artifacts", "__pycache__"];

pub(super) struct Page {
    /// The path from the root of the repository.
    pub(super) path: String,
    pub(super) text: String,
}

pub(super) struct Block<'a> {
    /// The word after the fence.
    pub(super) language: &'a str,
    pub(super) text: String,
    /// The line of the fence, from 1.
    pub(super) line: usize,
    /// The file that the block is, by its title, such as `title="limits.yaml"`.
    pub(super) file: Option<&'a str>,
    /// The command that succeeds when the block can be run, of a comment right before it: `<!-- wait: COMMAND -->`. A
    /// reader types so slowly that it has.
    pub(super) wait: Option<String>,
    /// The file from which the block is taken, as a comment right before it says: `<!-- from: PATH -->`.
    pub(super) source: Option<&'a str>,
}

pub(super) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A program of `integration/documentation/requirements.txt`.
pub(super) fn program(name: &str) -> Command {
    let path = root().join("target/test-docs/bin").join(name);
    assert!(path.exists(), "there is no {}: run integration/install.sh", path.display());
    Command::new(path)
}

pub(super) fn pages() -> Vec<Page> {
    let mut found = Vec::new();
    gather(root(), &mut found);
    found.sort();
    let page = |path: &PathBuf| Page {
        path: path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned(),
        text: fs::read_to_string(path).unwrap(),
    };
    let pages: Vec<_> = found.iter().map(page).collect();
    assert!(pages.iter().any(|page| page.path == "README.md"), "no README.md in {}", root().display());
    pages
}

fn gather(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            if !SKIPPED.iter().any(|skipped| name == *skipped) {
                gather(&path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

impl Page {
    pub(super) fn blocks(&self) -> Vec<Block<'_>> {
        let mut blocks = Vec::new();
        let (mut lines, mut wait, mut source) = ((1..).zip(self.text.lines()), None, None);
        while let Some((line, text)) = lines.next() {
            if let Some(comment) = text.strip_prefix("<!-- wait:") {
                wait = Some(comment_of(comment, &mut lines));
            } else if let Some(path) = text.strip_prefix("<!-- from:") {
                let path = path.strip_suffix("-->").map(str::trim);
                assert!(path.is_some(), "{}:{line}: expected `<!-- from: PATH -->`", self.path);
                source = path;
            } else if let Some(fence) = text.trim_start().strip_prefix("```") {
                let indent = text.len() - text.trim_start().len();
                let body = lines.by_ref().map(|(_, text)| text).take_while(|text| text.trim() != "```");
                let text = body.flat_map(|text| [text.get(indent..).unwrap_or_default(), "\n"]).collect();
                let (language, title) = fence.trim().split_once(" title=").unwrap_or((fence.trim(), ""));
                let file = Some(title.trim_matches('"')).filter(|file| !file.is_empty());
                let (wait, source) = (wait.take(), source.take());
                blocks.push(Block { language, text, line, file, wait, source });
            } else {
                let is_right_before = wait.is_none() && source.is_none();
                assert!(
                    is_right_before,
                    "{}:{line}: a comment `wait:` or `from:` stands right before its block",
                    self.path
                );
            }
        }
        blocks
    }

    /// A block's place, for messages.
    pub(super) fn place(&self, block: &Block<'_>) -> String {
        format!("{}:{}", self.path, block.line)
    }

    /// The text outside fenced blocks, one line for each of the page.
    pub(super) fn prose(&self) -> Vec<&str> {
        let mut inside = false;
        self.text
            .lines()
            .map(|line| {
                let fence = line.trim_start().starts_with("```");
                inside ^= fence;
                if inside || fence { "" } else { line }
            })
            .collect()
    }
}

/// The rest of a comment that has begun.
fn comment_of<'a>(first: &'a str, lines: &mut impl Iterator<Item = (usize, &'a str)>) -> String {
    let mut comment = first.to_owned();
    while !comment.contains("-->") {
        let (_, next) = lines.next().expect("a comment ends with `-->`");
        comment.push('\n');
        comment.push_str(next);
    }
    comment.split("-->").next().unwrap().trim().to_owned()
}
