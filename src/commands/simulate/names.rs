//! The names of ids in a report.

use crate::engine::limit::fingerprint::Fingerprinter;
use crate::engine::text::csv::ALL;

/// Shows ids, or a hash of each that tells them apart.
pub(super) struct Names {
    /// `None` if ids are shown.
    hash: Option<Fingerprinter>,
}

impl Names {
    pub(super) fn new(shows_ids: bool) -> Self {
        // Addresses are few enough to try them all against a hash without a secret.
        Self { hash: (!shows_ids).then(|| Fingerprinter::new((rand::random(), rand::random()))) }
    }

    pub(super) const fn shows_ids(&self) -> bool {
        self.hash.is_none()
    }

    pub(super) fn name(&self, id: &str) -> String {
        if id.is_empty() { ALL.to_owned() } else { self.part(id) }
    }

    /// A text that may hold an id, such as a path.
    pub(super) fn part(&self, id: &str) -> String {
        if id.is_empty() {
            return String::new();
        }
        let Some(fingerprinter) = &self.hash else { return id.to_owned() };
        let mut hash = fingerprinter.start();
        hash.write(id.as_bytes());
        format!("#{:012x}", hash.finish() >> 80)
    }
}
