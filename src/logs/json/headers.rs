//! All headers of a request, as an object.

use smallvec::SmallVec;

use super::place_in;
use super::scan::{Mistake, Scanned, Scanner};
use crate::logs::escape::Escapes;
use crate::logs::field::{Draft, Field};
use crate::logs::instant::Instants;

/// Programs write `REDACTED` for these.
pub(super) const REDACTED: [&str; 4] = ["authorization", "cookie", "proxy-authorization", "set-cookie"];

/// Headers of a request, at most: the search for one that comes twice is quadratic.
const MAX_HEADERS: usize = 256;

/// Adds the headers for which a line of our own log has a place, each an array of its lines, or nothing if the client has not sent it.
pub(super) fn add_places<'a>(line: &[u8], object: &'a [u8], draft: &mut Draft<'a>) -> Result<(), Mistake> {
    let (mut scanner, mut left) = (Scanner::object(object)?, MAX_HEADERS);
    while let Some((name, value)) = scanner.member()? {
        left = left.checked_sub(1).ok_or(("at most 256 headers", place_in(line, name)))?;
        let lower = String::from_utf8_lossy(name).to_ascii_lowercase();
        draft.begin_header(&lower);
        if let Scanned::Nested(array) = value {
            let mut items = Scanner::array(array)?;
            while let Some(item) = items.item()? {
                if let Scanned::Text(raw) = item {
                    draft.add_header(lower.clone(), raw);
                }
            }
        }
    }
    Ok(())
}

/// Adds headers, each a text or an array of its lines.
pub(super) fn add<'a>(
    line: &[u8],
    object: &'a [u8],
    draft: &mut Draft<'a>,
    instants: &mut Instants,
) -> Result<(), Mistake> {
    let mut scanner = Scanner::object(object)?;
    let mut names = SmallVec::<[&[u8]; 32]>::new();
    while let Some((name, value)) = scanner.member()? {
        if names.contains(&name) {
            return Err(("each header only once", place_in(line, name)));
        }
        if names.len() == MAX_HEADERS {
            return Err(("at most 256 headers", place_in(line, name)));
        }
        names.push(name);
        let lower = String::from_utf8_lossy(name).to_ascii_lowercase();
        let mut add = |raw: &'a [u8]| {
            if lower == "host" {
                let added = draft.add(&Field::Host, raw, Escapes::Backslash, instants);
                return added.map_err(|expected| (expected, place_in(line, name)));
            }
            if !(raw == b"REDACTED" && REDACTED.contains(&&*lower)) {
                draft.add_header(lower.clone(), raw);
            }
            Ok(())
        };
        match value {
            Scanned::Text(raw) => add(raw)?,
            Scanned::Nested(array) if array.starts_with(b"[") => {
                let mut items = Scanner::array(array)?;
                while let Some(item) = items.item()? {
                    if let Scanned::Text(raw) = item {
                        add(raw)?;
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}
