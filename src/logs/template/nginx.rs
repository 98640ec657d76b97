//! Templates of nginx' `log_format`.

use super::Piece;
use crate::logs::field::Field;

/// Returns true if a template has variables of nginx. Apache and Envoy write `%`.
pub(super) fn is_nginx(template: &str) -> bool {
    let names = template.split('$').skip(1);
    names.into_iter().any(|name| name.starts_with(|first: char| first.is_ascii_lowercase() || first == '{'))
}

pub(super) fn pieces(template: &str) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut rest = template;
    while let Some(dollar) = rest.find('$') {
        pieces.push(Piece::Text(rest[..dollar].into()));
        rest = &rest[dollar + 1..];
        let name;
        if let Some(braced) = rest.strip_prefix('{') {
            (name, rest) = braced.split_once('}').ok_or("a variable that begins with `${` must end with `}`")?;
        } else {
            let end = rest.find(|character: char| !character.is_ascii_alphanumeric() && character != '_');
            (name, rest) = rest.split_at(end.unwrap_or(rest.len()));
        }
        pieces.push(Piece::Value(variable(name)));
    }
    pieces.push(Piece::Text(rest.into()));
    pieces.retain(|piece| *piece != Piece::Text(Vec::new()));
    Ok(pieces)
}

/// The meaning of a variable. Lines are written when responses end, and `$msec` is that instant.
pub(in crate::logs) fn variable(name: &str) -> Field {
    match name {
        "remote_addr" => Field::Client,
        "time_local" | "time_iso8601" | "msec" => Field::End,
        // Of other servers.
        "start_time" => Field::Arrival,
        "duration_ms" => Field::Took(1_000),
        "request_url" => Field::Url,
        "request_time" => Field::Took(1_000_000),
        "request" => Field::Request,
        "request_method" => Field::Method,
        "request_uri" => Field::Target,
        "uri" | "document_uri" => Field::DecodedPath,
        "args" | "query_string" => Field::Query,
        "host" | "http_host" => Field::Host,
        "status" => Field::Status,
        "body_bytes_sent" => Field::Bytes,
        "ssl_client_s_dn" | "ssl_client_subject" => Field::TlsSubject,
        name => match name.strip_prefix("http_") {
            Some(header) => Field::Header(header.replace('_', "-").into()),
            None => Field::Ignored,
        },
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::super::tests::parse;
    use crate::engine::algorithms::micros::Micros;

    #[test]
    fn variables_of_nginx_are_read() {
        let entry = parse(
            r"${remote_addr}|$msec|$request_time|$request_method|$http_host|$request_uri|$ssl_client_s_dn|$http_x_api_key|$status",
            r"2001:db8::1|1795233606.789|0.025|POST|a.example:81|/x?y=%20|CN=a|k\x22ey|201",
        )
        .unwrap();
        assert_eq!((entry.at, entry.took), (Micros(1_795_233_606_764_000), Some(Micros(25_000))));
        let texts = [&entry.method, &entry.host, &entry.target, &entry.tls_subject];
        assert_eq!(texts.map(|text| text.as_deref().unwrap()), ["POST", "a.example:81", "/x?y=%20", "CN=a"]);
        assert_eq!(entry.headers[0], (Cow::Borrowed("x-api-key"), Cow::Borrowed(&b"k\"ey"[..])));
        assert_eq!((entry.client, entry.status), ("2001:db8::1".parse().ok(), Some(201)));
    }

    #[test]
    fn a_decoded_path_and_its_query_are_a_target() {
        let target = |line| parse("$msec $uri?$args#", line).unwrap().target.unwrap();
        assert_eq!(target("1.5 /a b?q=1#"), "/a%20b?q=1");
        assert_eq!(target("1.5 /a%b?-#"), "/a%25b");
        let entry = parse("$msec $uri$is_args$args", "1.5 /a b?q=1?").unwrap();
        assert_eq!(entry.target.as_deref(), Some("/a%20b?q=1?"));
    }

    #[test]
    fn a_request_line_that_is_none_is_a_rejected_request() {
        for line in ["\\x16\\x03\\x01", "-", "", "\\x16 \\x03 \\x01"] {
            let entry = parse("$msec \"$request\" $status", &format!("1.5 \"{line}\" 400")).unwrap();
            assert!(entry.is_rejected && entry.method.is_none() && entry.target.is_none(), "{line}: {entry:?}");
        }
        let entry = parse("$msec \"$request\"", "1.5 \"GET http://b.example/x HTTP/1.1\"").unwrap();
        assert_eq!((entry.host.as_deref(), entry.target.as_deref()), (Some("b.example"), Some("/x")));
    }
}
