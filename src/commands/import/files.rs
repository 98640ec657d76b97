//! Reads the files of an import.

use crate::config::foreign::{self, Findings, Node, ReadResult, ReportedError};
use crate::config::{Report, Source};

/// Reads each file and reports the problems of all of them.
pub(super) fn read_each(sources: &[Source], mut read: impl FnMut(&Source, &Node) -> ReadResult<()>) -> Report {
    let mut report = Report::default();
    for source in sources {
        let findings = Findings::new(&source.name);
        // The error is among the findings.
        let (Ok(()) | Err(ReportedError)) = foreign::read(&source.text, &findings).and_then(|root| read(source, &root));
        report.add(&findings, &source.text);
    }
    report
}
