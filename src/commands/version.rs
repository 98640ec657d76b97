//! `weir --version`: what this binary was built from, for reports of bugs.

use std::fmt::Write;

use super::print::{detail, joined};

/// What may differ between builds of one commit. The last two never do; reports of bugs ask for them.
const FEATURES: [(&str, bool); 4] = [
    ("static", cfg!(target_feature = "crt-static")),
    ("debug assertions", cfg!(debug_assertions)),
    ("mimalloc", true),
    ("aws-lc-rs", true),
];

/// The length of a commit's hash.
const HASH: usize = 12;

/// The text after the program's name. `commit` is that of the environment in which the binary was built.
pub(super) fn long(commit: Option<&str>) -> String {
    let mut text = format!("{}\n", env!("CARGO_PKG_VERSION"));
    // An archive of the sources has none, and the Dockerfile's default says so.
    if let Some(commit) = commit.filter(|commit| !matches!(*commit, "" | "unknown")) {
        detail(&mut text, "commit", commit.get(..HASH).unwrap_or(commit));
    }
    detail(&mut text, "compiler", env!("WEIR_COMPILER"));
    detail(&mut text, "target", env!("WEIR_TARGET"));
    let features = FEATURES.iter().filter(|(_, is_in)| *is_in).map(|(name, _)| name);
    let _ = write!(text, "  {:<10}{}", "features", joined(features, ", "));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_a_commit_leaves_it_out() {
        for commit in [None, Some(""), Some("unknown")] {
            assert!(!long(commit).contains("commit"), "{}", long(commit));
        }
        let text = long(Some("0123456789abcdef0123456789abcdef01234567"));
        assert!(text.contains("\n  commit    0123456789ab\n  compiler  rustc 1."), "{text}");
        assert!(text.ends_with("mimalloc, aws-lc-rs"), "{text}");
    }
}
