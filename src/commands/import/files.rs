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

/// Reads all documents of each file, JSON or YAML, with the file's name.
pub(super) fn documents(sources: &[Source]) -> (Vec<(&str, Node)>, Report) {
    let (mut roots, mut report) = (Vec::new(), Report::default());
    for source in sources {
        let findings = Findings::new(&source.name);
        // JSON may be indented with tabs.
        let read = if source.text.trim_start().starts_with(['{', '[']) {
            foreign::read(&source.text, &findings).map(|root| vec![root])
        } else {
            foreign::documents(&source.text, &findings)
        };
        roots.extend(read.unwrap_or_default().into_iter().map(|root| (source.name.as_str(), root)));
        report.add(&findings, &source.text);
    }
    (roots, report)
}
