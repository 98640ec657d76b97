//! Templates of Envoy's text format strings.

use super::{Piece, text_before_variable};
use crate::logs::field::Field;

/// Returns true if a template has operators of Envoy, such as `%START_TIME%`. Apache's directives have one letter.
pub(super) fn is_envoy(template: &str) -> bool {
    template.split('%').skip(1).any(|part| {
        let name = part.split(['(', ':']).next().unwrap_or_default();
        name.len() > 2 && name.bytes().all(|byte| byte.is_ascii_uppercase() || matches!(byte, b'_' | b'0'..=b'9'))
    })
}

pub(super) fn pieces(template: &str) -> Result<Vec<Piece>, String> {
    let template = template.strip_suffix("\\n").unwrap_or(template).trim_end_matches('\n');
    let mut pieces = Vec::new();
    let mut rest = template;
    while text_before_variable(&mut pieces, &mut rest) {
        // An argument may have percent signs: `%START_TIME(%s.%3f)%`.
        let name = rest.find(['(', '%']).unwrap_or(rest.len());
        let from =
            if rest[name..].starts_with('(') { rest[name..].find(')').map(|end| name + end) } else { Some(name) };
        let end = from.and_then(|from| rest[from..].find('%').map(|end| from + end));
        let end = end.ok_or("an operator that begins with `%` must end with `%`")?;
        pieces.push(Piece::Value(operator(&rest[..end])?));
        rest = &rest[end + 1..];
    }
    pieces.push(Piece::Text(rest.into()));
    pieces.retain(|piece| *piece != Piece::Text(Vec::new()));
    Ok(pieces)
}

/// The meaning of an operator. `%START_TIME%` is when the request arrived.
fn operator(operator: &str) -> Result<Field, String> {
    let (name, argument) = match operator.split_once('(') {
        Some((name, rest)) => (name, Some(rest.split_once(')').map_or(rest, |(argument, _)| argument))),
        None => (operator.split(':').next().unwrap_or(operator), None),
    };
    Ok(match (name, argument) {
        ("START_TIME", None | Some("" | "%s" | "%s.%3f" | "%s.%6f" | "%s.%9f" | "%s%3f" | "%s%6f" | "%s%9f")) => {
            Field::Arrival
        }
        ("START_TIME", Some(form))
            if ["%Y-%m-%dT%T", "%Y-%m-%dT%H:%M:%S", "%FT%T"].iter().any(|start| form.starts_with(start)) =>
        {
            Field::Arrival
        }
        ("START_TIME", Some(_)) => {
            return Err(format!("cannot read the time `%{operator}%`; use `%START_TIME%` or `%START_TIME(%s.%6f)%`"));
        }
        ("DURATION", None) => Field::Took(1_000),
        ("RESPONSE_CODE", None) => Field::Status,
        ("BYTES_SENT", None) => Field::Bytes,
        ("DOWNSTREAM_REMOTE_ADDRESS" | "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT", None) => Field::Client,
        ("DOWNSTREAM_DIRECT_REMOTE_ADDRESS" | "DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT", None) => Field::Peer,
        ("DOWNSTREAM_PEER_SUBJECT", None) => Field::TlsSubject,
        ("REQ", Some(names)) => request_header(names),
        _ => Field::Ignored,
    })
}

/// The meaning of `REQ(NAME)` or `REQ(NAME?OTHER)`.
fn request_header(names: &str) -> Field {
    let name = names.split('?').next().unwrap_or_default().to_ascii_lowercase();
    match &*name {
        ":method" => Field::Method,
        ":path" | "x-envoy-original-path" => Field::Target,
        ":authority" | "host" => Field::Host,
        _ => Field::Header(name.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Template;
    use super::super::tests::parse;
    use crate::engine::algorithms::micros::Micros;

    #[test]
    fn operators_of_envoy_are_read() {
        let entry = parse(
            "%START_TIME(%s.%6f)% %DURATION% %REQ(:METHOD)% %REQ(:AUTHORITY)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% \
             %DOWNSTREAM_REMOTE_ADDRESS% %REQ(X-Key):20% %PROTOCOL% 100%%\\n",
            "1795233606.789012 12 GET a.example /x?y [2001:db8::1]:81 k\"\\ HTTP/1.1 100%",
        )
        .unwrap();
        assert_eq!((entry.at, entry.took), (Micros(1_795_233_606_789_012), Some(Micros(12_000))));
        let texts = [&entry.method, &entry.host, &entry.target];
        assert_eq!(texts.map(|text| text.as_deref().unwrap()), ["GET", "a.example", "/x?y"]);
        assert_eq!(entry.client, "2001:db8::1".parse().ok());
        assert_eq!((&*entry.headers[0].0, &*entry.headers[0].1), ("x-key", &b"k\"\\"[..]));
        assert!(Template::compile("%START_TIME(%H)% %DURATION%").unwrap_err().contains("cannot read the time"));
    }
}
