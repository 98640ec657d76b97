//! Members that the first lines of a log lack.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::scan::Scanned;
use crate::logs::escape::Escapes;
use crate::logs::field::{Draft, Field};
use crate::logs::instant::Instants;
use crate::logs::tells;

/// Those of a line.
#[derive(Default)]
pub(super) struct LateMembers<'a>(SmallVec<[&'a [u8]; 4]>);

impl<'a> LateMembers<'a> {
    /// Adds a member. One that is not a part of a request is ignored, and counted. The error is what was expected.
    pub(super) fn add(
        &mut self,
        (name, field): (&'a [u8], &Field),
        value: Scanned<'a>,
        draft: &mut Draft<'a>,
        instants: &mut Instants,
    ) -> Result<(), &'static str> {
        if self.0.contains(&name) {
            return Err("only one value");
        }
        self.0.push(name);
        add(name, field, value, draft, instants)
    }
}

fn add<'a>(
    name: &'a [u8],
    field: &Field,
    value: Scanned<'a>,
    draft: &mut Draft<'a>,
    instants: &mut Instants,
) -> Result<(), &'static str> {
    let parts = tells::sources(field);
    let (raw, escapes) = match value {
        _ if *field == Field::Ignored => return Ok(()),
        _ if parts.is_empty() => {
            draft.add_new_member(name);
            return Ok(());
        }
        // The line lacks what cannot be read.
        Scanned::Nested(_) => return Ok(()),
        Scanned::Plain(b"null") => (&b""[..], Escapes::None),
        Scanned::Plain(raw) => (raw, Escapes::None),
        Scanned::Text(raw) => (raw, Escapes::Backslash),
    };
    match (field, fixed(field)) {
        (_, Some(field)) => draft.add(field, raw, escapes, instants)?,
        (Field::Header(_), _) if matches!(raw, b"" | b"-") => {}
        (Field::Header(header), _) => {
            let value: Cow<'a, [u8]> = escapes.undone(raw);
            draft.add_late_header(header, value)?;
        }
        _ => {}
    }
    draft.add_late(&parts);
    Ok(())
}

/// The same meaning, for as long as a line is read.
const fn fixed(field: &Field) -> Option<&'static Field> {
    Some(match field {
        Field::Client => &Field::Client,
        Field::Peer => &Field::Peer,
        Field::Host => &Field::Host,
        Field::Request => &Field::Request,
        Field::Method => &Field::Method,
        Field::Target => &Field::Target,
        Field::Url => &Field::Url,
        Field::Path => &Field::Path,
        Field::DecodedPath => &Field::DecodedPath,
        Field::Query => &Field::Query,
        Field::TlsSubject => &Field::TlsSubject,
        _ => return None,
    })
}
