//! JSON logs of programs and services that nest what they tell: their members as data.

use super::recording::Head;
use super::scan::{Mistake, Scanned, Scanner};
use super::{Dialect, JsonFormat, headers, names};
use crate::logs::LogEntry;
use crate::logs::escape::Escapes;
use crate::logs::field::{Draft, Field};
use crate::logs::instant::Instants;
use crate::logs::tells::Tells;

/// The deepest object that is looked into.
const MAX_DEPTH: usize = 3;

/// A program, the members by which its lines are known, and the meaning of its members as a variable of nginx.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::logs) struct Program {
    pub(super) name: &'static str,
    /// At the outermost level, all of them.
    pub(super) marks: &'static [&'static str],
    /// Paths with points between names. [`HEADERS`] stands for all headers of a request, as an object.
    pub(super) members: &'static [(&'static str, &'static str)],
}

/// The meaning of an object of headers.
pub(super) const HEADERS: &str = "headers";

pub(super) const PROGRAMS: [Program; 5] = [
    Program {
        name: "cloudflare",
        marks: &["EdgeStartTimestamp", "ClientIP"],
        members: &[
            ("EdgeStartTimestamp", "start_time"),
            ("EdgeEndTimestamp", "time_iso8601"),
            ("ClientIP", "remote_addr"),
            ("ClientRequestMethod", "request_method"),
            ("ClientRequestHost", "host"),
            ("ClientRequestURI", "request_uri"),
            ("ClientRequestReferer", "http_referer"),
            ("ClientRequestUserAgent", "http_user_agent"),
            ("EdgeResponseStatus", "status"),
            ("EdgeResponseBodyBytes", "body_bytes_sent"),
        ],
    },
    // `timestamp` is when the load balancer received the request.
    Program {
        name: "gcp-load-balancer",
        marks: &["httpRequest", "timestamp"],
        members: &[
            ("timestamp", "start_time"),
            ("httpRequest.latency", "request_time"),
            ("httpRequest.remoteIp", "remote_addr"),
            ("httpRequest.requestMethod", "request_method"),
            ("httpRequest.requestUrl", "request_url"),
            ("httpRequest.referer", "http_referer"),
            ("httpRequest.userAgent", "http_user_agent"),
            ("httpRequest.status", "status"),
        ],
    },
    // `time` is when the edge had delivered the response.
    Program {
        name: "azure-front-door",
        marks: &["time", "category", "properties"],
        members: &[
            ("time", "time_iso8601"),
            ("properties.timeTaken", "request_time"),
            ("properties.clientIp", "remote_addr"),
            ("properties.clientIP", "remote_addr"),
            ("properties.httpMethod", "request_method"),
            ("properties.requestUri", "request_url"),
            ("properties.referer", "http_referer"),
            ("properties.userAgent", "http_user_agent"),
            ("properties.httpStatusCode", "status"),
        ],
    },
    Program {
        name: "kong",
        marks: &["started_at", "request", "latencies"],
        members: &[
            ("started_at", "start_time"),
            ("latencies.request", "duration_ms"),
            ("client_ip", "remote_addr"),
            ("request.method", "request_method"),
            ("request.uri", "request_uri"),
            ("request.headers", HEADERS),
            ("response.status", "status"),
        ],
    },
    Program {
        name: "apisix-json",
        marks: &["start_time", "request", "response", "client_ip"],
        members: &[
            ("start_time", "start_time"),
            ("latency", "duration_ms"),
            ("client_ip", "remote_addr"),
            ("request.method", "request_method"),
            ("request.uri", "request_uri"),
            ("request.headers", HEADERS),
            ("response.status", "status"),
        ],
    },
];

impl Program {
    /// The path of a member with a meaning, if this is one.
    fn path_of(&self, path: &[u8]) -> Option<&'static str> {
        self.members.iter().map(|(known, _)| *known).find(|known| known.as_bytes() == path)
    }

    pub(super) fn field(&self, path: &str) -> Field {
        match self.members.iter().find(|(known, _)| *known == path) {
            Some((_, meaning)) if *meaning == HEADERS => Field::Headers,
            Some((_, meaning)) => names::nginx(meaning),
            None => Field::Ignored,
        }
    }
}

impl JsonFormat {
    /// The format of a program, with those of its members that the first lines of a log have.
    pub(super) fn of_program<'a>(program: &'static Program, lines: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut is_there = vec![false; program.members.len()];
        for line in lines {
            // A broken line has what is before the break.
            let _ = walk(line, &mut |path, _| {
                let place = program.members.iter().position(|(known, _)| known.as_bytes() == path);
                if let Some(is_there) = place.and_then(|place| is_there.get_mut(place)) {
                    *is_there = true;
                }
                Ok(())
            });
        }
        let there = program.members.iter().zip(is_there).filter(|(_, is_there)| *is_there);
        let members: Vec<(Box<[u8]>, Field)> =
            there.map(|((path, _), _)| (path.as_bytes().into(), program.field(path))).collect();
        let tells = Tells::of(members.iter().map(|(_, field)| field));
        // Of an absent `Host` header a line says nothing.
        let tells = Tells { host: tells.host && !members.iter().any(|(_, field)| *field == Field::Headers), ..tells };
        let recorded = Head::default();
        Self { dialect: Dialect::Program(program), members, tells, used: 0, fixed: 0, recorded, unitless: Vec::new() }
    }

    /// Returns the entry of a line; `None` if it has no request.
    pub(super) fn parse_program<'a>(
        &'a self,
        program: &'static Program,
        line: &'a [u8],
        instants: &mut Instants,
    ) -> Result<Option<LogEntry<'a>>, Mistake> {
        let (mut draft, mut seen, mut is_request) = (Draft::default(), 0_u64, false);
        let has_headers = |members: u64| {
            let mut all = self.members.iter().enumerate();
            all.all(|(place, (_, field))| *field != Field::Headers || members >> place & 1 == 1)
        };
        walk(line, &mut |path, value| {
            let Some(place) = self.members.iter().position(|(known, _)| **known == *path) else {
                if let Some(name) = program.path_of(path) {
                    draft.add_new_member(name.as_bytes());
                }
                return Ok(());
            };
            let (field, at) = (&self.members[place].1, super::place_in(line, value.bytes()));
            if seen >> place & 1 == 1 {
                return Err(("each member only once", at));
            }
            seen |= 1 << place;
            is_request |= matches!(field, Field::Method | Field::Target | Field::Url | Field::Path);
            match value {
                Scanned::Nested(object) if *field == Field::Headers => headers::add(line, object, &mut draft, instants),
                Scanned::Nested(raw) => {
                    draft.add_unreadable(field, raw);
                    Ok(())
                }
                Scanned::Plain(b"null") => Ok(()),
                Scanned::Plain(raw) => {
                    draft.add(field, raw, Escapes::None, instants).map_err(|expected| (expected, at))
                }
                Scanned::Text(raw) => {
                    draft.add(field, raw, Escapes::Backslash, instants).map_err(|expected| (expected, at))
                }
            }
        })?;
        if !is_request {
            return Ok(None);
        }
        if !has_headers(seen) {
            draft.lacks_headers();
        }
        draft.finish(self.tells).map(Some).map_err(|expected| (expected, 0))
    }
}

/// Calls `visit` with the path and the value of each member, also of those in objects that are members.
pub(super) fn walk<'a>(
    object: &'a [u8],
    visit: &mut impl FnMut(&[u8], Scanned<'a>) -> Result<(), Mistake>,
) -> Result<(), Mistake> {
    walk_in(object, &mut Vec::new(), 1, visit)
}

fn walk_in<'a>(
    object: &'a [u8],
    path: &mut Vec<u8>,
    depth: usize,
    visit: &mut impl FnMut(&[u8], Scanned<'a>) -> Result<(), Mistake>,
) -> Result<(), Mistake> {
    let (mut scanner, length) = (Scanner::object(object)?, path.len());
    while let Some((name, value)) = scanner.member()? {
        if length > 0 {
            path.push(b'.');
        }
        path.extend_from_slice(name);
        visit(path, value)?;
        if let Scanned::Nested(inner) = value
            && inner.starts_with(b"{")
            && depth < MAX_DEPTH
        {
            walk_in(inner, path, depth + 1, visit)?;
        }
        path.truncate(length);
    }
    Ok(())
}
