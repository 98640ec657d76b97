//! The message `check`, read into the request that rules see.
//!
//! An invalid argument comes from a client of `HAProxy`'s. It costs that client's request, but not the connection, which
//! carries the requests of others.

use std::borrow::Cow;
use std::net::IpAddr;
use std::str;

use smallvec::SmallVec;

use super::SpoeOptions;
use super::data::{Data, Reader};
use super::frame::Arguments;
use crate::engine::request::DescriptorEntry;
use crate::engine::request::incoming::{Incoming, Preparation, Received};
use crate::message::client_address::ClientAddress;
use crate::message::headers::{self, Headers};
use crate::message::{address, lossless};

/// A request, as the arguments describe it.
#[derive(Debug)]
pub(super) struct Check<'a> {
    method: Option<&'a str>,
    target: &'a str,
    query: Option<&'a str>,
    host: Option<&'a str>,
    pub(super) headers: Headers,
    pub(super) client: Option<ClientAddress>,
    pub(super) tls_subject: Option<Cow<'a, str>>,
    /// Arguments of other names.
    entries: SmallVec<[(&'a str, Cow<'a, str>); 4]>,
    /// A mistake in `HAProxy`'s configuration.
    pub(super) mistake: Option<&'static str>,
}

const UNNAMED: &str = "an argument of the message `check` has no name and is ignored; write `path=path`";
const NO_SOURCE: &str = "the message `check` has no `src=src`, so limits by address do not apply";

impl<'a> Check<'a> {
    /// Reads the arguments. The error is for the client.
    pub(super) fn read(arguments: &Arguments<'a>, options: &SpoeOptions) -> Result<Self, &'static str> {
        let mut check = Self {
            method: None,
            target: "/",
            query: None,
            host: None,
            headers: Headers::new(),
            client: None,
            tls_subject: None,
            entries: SmallVec::new(),
            mistake: None,
        };
        let (mut uri, mut is_pathless, mut peer) = (None, false, None);
        for (name, value) in arguments {
            match *name {
                b"method" => check.method = text(*value, "the method must be text")?,
                b"path" | b"uri" => {
                    uri = text(*value, "the path must be text")?;
                    is_pathless = uri.is_none();
                }
                b"query" => check.query = text(*value, "the query must be text")?,
                b"host" => check.host = text(*value, "the host must be text")?,
                b"src" => peer = source(*value),
                b"headers" => check.headers = read_headers(*value).ok_or("invalid header")?,
                b"tls_subject" => {
                    let subject = bytes(*value, "the subject must be text")?.filter(|subject| !subject.is_empty());
                    check.tls_subject = subject.map(lossless::text);
                }
                b"" => check.mistake = Some(UNNAMED),
                name => check.entries.extend(str::from_utf8(name).ok().zip(entry_text(*value))),
            }
        }
        // HAProxy sends a null path for the target `*`.
        let pathless = if is_pathless && check.method == Some("OPTIONS") { "*" } else { "/" };
        check.target = uri.unwrap_or(pathless);
        match peer {
            Some(peer) => check.client = Some(options.trusted_proxies.client(peer, &check.headers)),
            None => check.mistake = Some(NO_SOURCE),
        }
        Ok(check)
    }

    /// Reads the request; `headers` are its own.
    pub(super) fn received<'b>(
        &'b self,
        headers: &'b mut Headers,
        options: &SpoeOptions,
    ) -> Result<Received<'b>, &'static str> {
        let Self { method, target, query, host: authority, .. } = *self;
        let (preparation, slashes) = (Preparation::Asked(options.underscores), options.escaped_slashes);
        Incoming { method, target, query, authority, headers, preparation, slashes }.read()
    }

    /// Returns the arguments of other names.
    pub(super) fn entries(&self) -> SmallVec<[DescriptorEntry<'_>; 4]> {
        self.entries.iter().map(|(key, value)| DescriptorEntry { key, value }).collect()
    }
}

/// Returns a value's text, or `mistake`. `HAProxy` sends null for a missing value.
fn text<'a>(value: Data<'a>, mistake: &'static str) -> Result<Option<&'a str>, &'static str> {
    bytes(value, mistake)?.map(|text| str::from_utf8(text).map_err(|_| mistake)).transpose()
}

fn bytes<'a>(value: Data<'a>, mistake: &'static str) -> Result<Option<&'a [u8]>, &'static str> {
    match value {
        Data::Null => Ok(None),
        Data::Text(bytes) | Data::Binary(bytes) => Ok(Some(bytes)),
        _ => Err(mistake),
    }
}

/// Returns a value as an entry's text; `None` for null.
fn entry_text(value: Data<'_>) -> Option<Cow<'_, str>> {
    Some(match value {
        Data::Null => return None,
        Data::Bool(value) => Cow::Borrowed(if value { "true" } else { "false" }),
        Data::Signed(value) => Cow::Owned(value.to_string()),
        Data::Unsigned(value) => Cow::Owned(value.to_string()),
        Data::Address(value) => Cow::Owned(value.to_canonical().to_string()),
        Data::Text(text) | Data::Binary(text) => lossless::text(text),
    })
}

fn source(value: Data<'_>) -> Option<IpAddr> {
    match value {
        Data::Address(address) => Some(address.to_canonical()),
        Data::Text(text) => address::parse(str::from_utf8(text).ok()?).ok(),
        _ => None,
    }
}

/// The headers of a request: those of `req.hdrs_bin`, or the lines of `req.hdrs`. `None` if there is anything else.
fn read_headers(value: Data<'_>) -> Option<Headers> {
    let mut headers = Headers::new();
    let mut append = |name: &[u8], value: &[u8]| {
        let fits = headers::is_name(name) && headers::is_value(value);
        fits.then(|| headers.append(name, value.trim_ascii()))
    };
    match value {
        Data::Null => {}
        Data::Binary(bytes) => {
            let mut reader = Reader::new(bytes);
            loop {
                let (name, value) = (reader.string().ok()?, reader.string().ok()?);
                // The list ends with two empty strings.
                if name.is_empty() && value.is_empty() {
                    break;
                }
                append(name, value)?;
            }
        }
        Data::Text(text) => {
            for line in text.split(|byte| *byte == b'\n') {
                let line = line.strip_suffix(b"\r").unwrap_or(line);
                if line.is_empty() {
                    break;
                }
                let colon = memchr::memchr(b':', line)?;
                append(&line[..colon], &line[colon + 1..])?;
            }
        }
        _ => return None,
    }
    Some(headers)
}

#[cfg(test)]
mod tests {
    use super::super::data::write_string;
    use super::*;

    fn binary(lines: &[(&str, &str)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (name, value) in lines.iter().chain(&[("", "")]) {
            write_string(&mut bytes, name.as_bytes());
            write_string(&mut bytes, value.as_bytes());
        }
        bytes
    }

    fn text(text: &str) -> Data<'_> {
        Data::Text(text.as_bytes())
    }

    fn read<'a>(arguments: &Arguments<'a>) -> Result<Check<'a>, &'static str> {
        Check::read(arguments, &SpoeOptions::sample())
    }

    /// Formats the request that rules see: `METHOD host path?query client subject key=value,...`.
    #[track_caller]
    fn check(arguments: &[(&str, Data<'_>)], expected: Result<&str, &str>) {
        let arguments = arguments.iter().map(|(name, value)| (name.as_bytes(), *value)).collect();
        let found = read(&arguments).and_then(|mut check| {
            let mut headers = std::mem::take(&mut check.headers);
            let view = check.received(&mut headers, &SpoeOptions::sample())?;
            let query = view.query.map(|query| format!("?{query}")).unwrap_or_default();
            let client = check.client.map_or("-".to_owned(), |client| client.address.to_string());
            let entries = check.entries();
            let entries: Vec<_> = entries.iter().map(|entry| format!("{}={}", entry.key, entry.value)).collect();
            let subject = check.tls_subject.as_deref().unwrap_or("-");
            let entries = lossless::shown(&entries.join(",")).into_owned();
            let subject = lossless::shown(subject);
            Ok(format!("{} {} {}{query} {client} {subject} {entries}", view.method, view.host, view.path))
        });
        assert_eq!(found.as_deref(), expected.as_ref().map(|text| *text));
    }

    #[test]
    fn arguments_say_what_a_request_is() {
        let headers = binary(&[("host", "A.example:8080"), ("x-id", "7")]);
        let source = Data::Address([192, 0, 2, 7].into());
        check(
            &[
                ("method", text("GET")),
                ("path", text("/v1//orders/")),
                ("query", text("a=b")),
                ("src", source),
                ("headers", Data::Binary(&headers)),
                ("tls_subject", text("CN=a")),
                ("tenant", text("acme")),
                ("port", Data::Signed(-443)),
                ("is_tls", Data::Bool(true)),
                ("dst", Data::Address("::ffff:192.0.2.9".parse().unwrap())),
                ("none", Data::Null),
            ],
            Ok("GET a.example /v1/orders?a=b 192.0.2.7 CN=a tenant=acme,port=-443,is_tls=true,dst=192.0.2.9"),
        );
        check(&[("uri", text("/a?b=%20")), ("host", text("B.example"))], Ok(" b.example /a?b=%20 - - "));
        check(&[("uri", text("https://c.example:1?b")), ("host", text("C.example"))], Ok(" c.example /?b - - "));
        check(&[("path", Data::Null), ("tls_subject", text(""))], Ok("  / - - "));
        let bytes = [("tls_subject", Data::Text(b"CN=\xe9")), ("tenant", Data::Binary(b"\xff"))];
        check(&bytes, Ok("  / - CN=%E9 tenant=%FF"));
        for whole_server in [("uri", text("*")), ("path", Data::Null), ("uri", text("http://a.example"))] {
            let host = if whole_server.1 == text("http://a.example") { "a.example" } else { "" };
            check(&[("method", text("OPTIONS")), whole_server], Ok(&format!("OPTIONS {host} /* - - ")));
        }
        check(&[("method", text("OPTIONS")), ("path", text("/"))], Ok("OPTIONS  / - - "));
    }

    #[test]
    fn the_client_is_who_haproxy_saw_unless_that_is_a_trusted_proxy() {
        let headers = binary(&[("x-forwarded-for", "\u{e9}, 203.0.113.9")]);
        let headers = ("headers", Data::Binary(&headers));
        for (source, expected) in [
            (text("192.0.2.7"), "192.0.2.7"),
            (Data::Address("::ffff:192.0.2.7".parse().unwrap()), "192.0.2.7"),
            (Data::Address([10, 1, 2, 3].into()), "203.0.113.9"),
            (text("localhost"), "-"),
            (Data::Null, "-"),
        ] {
            check(&[headers, ("src", source)], Ok(&format!("  / {expected} - ")));
        }
    }

    #[test]
    fn a_name_with_underscores_counts_by_the_name_with_hyphens() {
        let headers = binary(&[("x_api_key", "1"), ("x_forwarded_for", "1.2.3.4")]);
        let arguments = [("headers", Data::Binary(&headers)), ("src", Data::Address([10, 1, 2, 3].into()))];
        let arguments = arguments.iter().map(|(name, value)| (name.as_bytes(), *value)).collect();
        let mut check = read(&arguments).unwrap();
        let mut headers = std::mem::take(&mut check.headers);
        let received = check.received(&mut headers, &SpoeOptions::sample()).unwrap();
        let client = Some(IpAddr::from([10, 1, 2, 3]).into());
        assert_eq!((check.client, received.headers.text("x-api-key")), (client, Some("1")));
    }

    #[test]
    fn headers_come_in_two_forms() {
        let lines = [("host", "a.example"), ("x", ""), ("x", "a:b")];
        for value in [Data::Binary(&binary(&lines)), text("host: a.example\r\nx:\r\nx:a:b \r\n\r\n")] {
            let headers = read_headers(value).unwrap();
            let found: Vec<_> = headers.iter().map(|(name, value)| (str::from_utf8(name).unwrap(), value)).collect();
            assert_eq!(found, lines.map(|(name, value)| (name, value.as_bytes())), "{value:?}");
        }
        for value in [
            Data::Bool(true),
            text("x\r\n\r\n"),
            text("x y: 1\r\n\r\n"),
            text("x: \u{1}\r\n\r\n"),
            Data::Binary(b"\x04host"),
            Data::Binary(b""),
            Data::Binary(&binary(&[("x", "a\r\ny: b")])),
            Data::Binary(&binary(&[("", "a")])),
        ] {
            assert!(read_headers(value).is_none(), "{value:?}");
        }
    }

    #[test]
    fn ambiguous_requests_are_rejected() {
        let two = binary(&[("host", "a.example"), ("host", "b.example")]);
        check(&[("path", text("/a\\b"))], Err("a path must be printable ASCII without a backslash or fragment"));
        let form = "a target must be a path, or an `http://` or `https://` URL";
        for target in ["a", "", "ftp://a/", "x://", "a:443"] {
            check(&[("path", text(target))], Err(form));
        }
        for target in ["*", "http://a.example/*#", "https://b/#c"] {
            let arguments = [(&b"method"[..], text("GET")), (b"uri", text(target))].into_iter().collect();
            let mut check = read(&arguments).unwrap();
            let mut headers = std::mem::take(&mut check.headers);
            assert!(check.received(&mut headers, &SpoeOptions::sample()).is_err(), "{target}");
        }
        check(&[("method", text(""))], Err("a method must be a token"));
        check(&[("method", text("G T"))], Err("a method must be a token"));
        check(&[("path", Data::Text(b"/\xff"))], Err("the path must be text"));
        check(&[("path", Data::Unsigned(7))], Err("the path must be text"));
        check(&[("uri", text("http://a b/"))], Err("the target's authority is not a valid host"));
        check(&[("uri", text("/?a b"))], Err("a query must be printable ASCII without a fragment"));
        check(&[("host", text("a b"))], Err("the `Host` header is not a valid host"));
        let contradiction = "the host and the target's authority contradict each other";
        check(&[("uri", text("https://c.example/")), ("host", text("b.example"))], Err(contradiction));
        check(&[("headers", Data::Binary(&two))], Err("a request must have one `Host` header"));
        check(&[("headers", Data::Binary(b"\x04host"))], Err("invalid header"));
        check(&[("method", text("get"))], Err("a standard method must be in upper case"));
    }

    #[test]
    fn mistakes_of_a_configuration_are_told() {
        let source = ("src", text("192.0.2.7"));
        for (arguments, expected) in [
            (vec![source], None),
            (vec![source, ("", text("/"))], Some(UNNAMED)),
            (vec![("path", text("/"))], Some(NO_SOURCE)),
        ] {
            let arguments = arguments.iter().map(|(name, value)| (name.as_bytes(), *value)).collect();
            assert_eq!(read(&arguments).unwrap().mistake, expected);
        }
    }
}
