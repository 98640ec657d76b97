//! Cells of CSV files.

/// The words of the column `denied_by` in the files of gateways and of simulations.
pub const SHADOW: &str = "shadow";
pub const CANDIDATE: &str = "candidate";

/// The id of a limit with one bucket for all.
pub const ALL: &str = "(all)";

/// Text that a client has chosen. A spreadsheet would calculate what begins with one of these characters.
pub fn cell(text: &str) -> String {
    let quote = if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { "'" } else { "" };
    format!("{quote}{text}")
}
