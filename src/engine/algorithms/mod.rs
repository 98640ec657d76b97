//! The algorithms, each whole in the file that bears its name in the rules file: its numbers, its state and its decisions.
//!
//! [`algorithm`] names them, and [`state`] dispatches to them. Only Redis decides `queue` and `script`.
//!
//! A new algorithm is a file here and one of its name in `lua/` and `config/algorithms/`, a line in the registry of each, its
//! section in README.md and its cases in `integration/cases`. The compiler asks for the lines in this folder, and a test for
//! the rest.

// One line per algorithm.
pub mod concurrency;
pub mod elevated;
pub mod fixed_window;
pub mod gcra;
pub mod queue;
pub mod script;
pub mod sliding_log;
pub mod sliding_window;

pub mod algorithm;
pub mod batch;
pub mod calendar;
pub mod charge;
pub mod decision;
mod describe;
pub mod level;
pub mod micros;
pub mod numbers;
pub mod state;
pub mod windows;

use algorithm::Algorithm;
use numbers::{Numbers, NumbersError};

impl Numbers {
    /// Returns the same amounts under an algorithm, for numbers that a call brings: they are read as GCRA's.
    pub fn under(&self, algorithm: Algorithm) -> Result<Self, NumbersError> {
        match algorithm {
            Algorithm::Queue | Algorithm::Script => Err(NumbersError::NotPerCall),
            _ if self.count() == 0 => Ok(self.clone()),
            Algorithm::Gcra => Ok(self.clone()),
            Algorithm::FixedWindow(aligned) => Self::fixed_window(self.burst(), self.count(), self.period(), aligned),
            Algorithm::SlidingLog => Self::sliding_log(self.count(), self.period()),
            Algorithm::SlidingWindow { count_denied } => {
                Self::sliding_window(self.count(), self.period(), count_denied)
            }
            Algorithm::Concurrency => Self::concurrency(self.burst(), concurrency::DEFAULT_LEASE),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// All that an algorithm adds beside its lines in `algorithm.rs` and `state.rs`.
    #[test]
    fn each_algorithm_has_its_files_its_documentation_and_its_cases() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
        let names: Vec<&str> = Algorithm::ALL.iter().map(|algorithm| algorithm.name()).chain(["elevated"]).collect();
        let (readme, cases) = (read("README.md"), read("integration/cases/config.jsonl"));
        let words =
            |name: &str| if matches!(name, "gcra" | "elevated") { name.into() } else { format!("algorithm: {name}") };
        for name in &names {
            let files = ["src/engine/algorithms/*.rs", "src/config/algorithms/*.rs", "lua/*.lua"];
            for file in files.map(|file| file.replace('*', name)) {
                assert!(root.join(&file).exists(), "{file} is missing");
            }
            assert!(readme.contains(&format!("`{name}`")), "README.md does not describe `{name}`");
            assert!(cases.contains(&words(name)), "no case has `{name}`");
        }
        for file in std::fs::read_dir(root.join("src/config/algorithms")).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            let name = name.trim_end_matches(".rs");
            assert!(name == "mod" || names.contains(&name), "`Algorithm::ALL` lacks {name}");
        }
    }
}
