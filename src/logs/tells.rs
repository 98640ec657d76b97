//! The parts of a request that lines with some fields contain.

use std::collections::BTreeSet;

use smallvec::{SmallVec, smallvec};

use super::field::Field;
use super::told::{Told, ToldHeaders};
use crate::engine::request::part::Source;

/// The parts that a log contains for every request that reached the limits.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "the parts are independent")]
pub(super) struct Tells {
    /// The method or the target.
    pub(super) head: bool,
    pub(super) client: bool,
    pub(super) verdict: bool,
    pub(super) method: bool,
    pub(super) path: bool,
    pub(super) query: bool,
    pub(super) host: bool,
    pub(super) took: bool,
    pub(super) status: bool,
    pub(super) bytes: bool,
    /// The client's address, which requests need not have.
    pub(super) clients: bool,
}

impl Tells {
    /// Of lines with these parts.
    pub(super) fn of<'a>(fields: impl IntoIterator<Item = &'a Field>) -> Self {
        let told = told(fields);
        let Told { client, method, path, query, host, took, status, bytes, .. } = told;
        let (head, verdict, clients) = (method || path, false, false);
        Self { head, client, verdict, method, path, query, host, took, status, bytes, clients }
    }
}

/// Returns the parts of a request that this part of a line contains, as far as limits read them.
pub(super) fn sources(field: &Field) -> SmallVec<[Source; 3]> {
    match field {
        Field::Client | Field::ClientAndPort | Field::Peer => smallvec![Source::Client],
        Field::Host => smallvec![Source::Host],
        Field::Request => smallvec![Source::Method, Source::Path, Source::Query],
        Field::Method => smallvec![Source::Method],
        Field::Target | Field::DecodedTarget => smallvec![Source::Path, Source::Query],
        Field::Url => smallvec![Source::Host, Source::Path, Source::Query],
        Field::Path | Field::DecodedPath => smallvec![Source::Path],
        Field::Query => smallvec![Source::Query],
        Field::TlsSubject => smallvec![Source::Certificate],
        Field::Header(name) => smallvec![Source::Header(name.to_string())],
        _ => SmallVec::new(),
    }
}

/// Returns the facts that lines with these parts tell, without the precision of instants.
pub(super) fn told<'a>(fields: impl IntoIterator<Item = &'a Field>) -> Told {
    let mut told = Told::default();
    let (mut ends, mut has_all_headers, mut names) = (false, false, BTreeSet::new());
    for field in fields {
        match field {
            Field::Headers => has_all_headers = true,
            Field::Status => told.status = true,
            Field::Bytes => told.bytes = true,
            Field::Ignored | Field::Port | Field::Verdict | Field::Waited(_) => {}
            Field::Client | Field::ClientAndPort | Field::Peer => told.client = true,
            Field::Host => told.host = true,
            Field::Request => (told.method, told.path, told.query) = (true, true, true),
            Field::Method => told.method = true,
            Field::Url => (told.host, told.path, told.query) = (true, true, true),
            Field::Target | Field::DecodedTarget => (told.path, told.query) = (true, true),
            Field::Path | Field::DecodedPath => told.path = true,
            Field::Query => told.query = true,
            Field::Arrival => told.is_arrival = true,
            Field::End => ends = true,
            Field::Took(_) | Field::TookNanoseconds => told.took = true,
            Field::TlsSubject => told.tls_subject = true,
            Field::Header(name) => {
                names.insert(name.to_string());
            }
        }
    }
    told.took |= ends && told.is_arrival;
    told.is_arrival |= ends && told.took;
    // `Host` is one of them.
    told.host |= has_all_headers;
    told.headers = if has_all_headers { ToldHeaders::AllBut(BTreeSet::new()) } else { ToldHeaders::Named(names) };
    told
}
