//! Logs in W3C's extended format, whose `#Fields` name the values of a line: those of IIS and `CloudFront`.

use super::field::Field;

/// The line that names the values.
const FIELDS: &[u8] = b"#Fields:";

/// The values of a line and the text between them.
pub(super) struct Directive {
    pub(super) fields: Vec<Field>,
    pub(super) separator: u8,
}

/// Reads the directive among the lines with which a log begins. `None` if there is none, or if it lacks the time.
pub(super) fn directive<'a>(lines: impl Iterator<Item = &'a [u8]> + Clone) -> Option<Directive> {
    let directive = lines.clone().find_map(|line| line.strip_prefix(FIELDS))?;
    let names: Vec<String> =
        std::str::from_utf8(directive).ok()?.split_ascii_whitespace().map(str::to_ascii_lowercase).collect();
    let is_by_tabs = lines.filter(|line| !is_directive(line)).any(|line| line.contains(&b'\t'));
    let date = names.windows(2).position(|pair| pair == ["date", "time"])?;
    let has = |part: &str| names.iter().any(|name| name.starts_with(part));
    // `CloudFront`'s `cs(Host)` is its own name. IIS counts milliseconds, CloudFront and the format's definition seconds.
    let (is_cloudfront, is_iis) = (has("x-edge-"), has("sc-win32-status"));
    let field = |(place, name): (usize, &String)| {
        Some(match &**name {
            "date" if place == date => Field::End,
            "time" if place == date + 1 => return None,
            "c-ip" => Field::Client,
            "cs-method" => Field::Method,
            "cs-uri-stem" => Field::Path,
            "cs-uri-query" => Field::Query,
            "cs(host)" if is_cloudfront => Field::Ignored,
            "cs-host" | "cs(host)" | "x-host-header" => Field::Host,
            "sc-status" => Field::Status,
            "time-taken" => Field::Took(if is_iis { 1_000 } else { 1_000_000 }),
            "x-forwarded-for" => Field::Header("x-forwarded-for".into()),
            name => match name.strip_prefix("cs(").and_then(|name| name.strip_suffix(')')) {
                Some(header) => Field::Header(header.into()),
                None => Field::Ignored,
            },
        })
    };
    let fields = names.iter().enumerate().filter_map(field).collect();
    Some(Directive { fields, separator: if is_by_tabs { b'\t' } else { b' ' } })
}

/// Returns true for a line that is about the log.
pub(super) fn is_directive(line: &[u8]) -> bool {
    line.starts_with(b"#")
}
