//! Templates of Apache's `LogFormat`.

use super::{Piece, text_before_variable};
use crate::logs::field::Field;

pub(super) fn pieces(template: &str) -> Result<Vec<Piece>, String> {
    // In httpd.conf the format stands between quotes.
    let template = template.replace("\\\"", "\"").replace("\\t", "\t");
    let mut pieces = Vec::new();
    let mut rest = &*template;
    while text_before_variable(&mut pieces, &mut rest) {
        // Which request of a redirect, and for which statuses: `%>s`, `%!200,304{Referer}i`.
        rest = rest.trim_start_matches(|modifier: char| "<>!,".contains(modifier) || modifier.is_ascii_digit());
        let mut argument = None;
        if let Some(braced) = rest.strip_prefix('{') {
            let (inside, behind) =
                braced.split_once('}').ok_or("an argument that begins with `%{` must end with `}`")?;
            (argument, rest) = (Some(inside), behind);
        }
        let length = if rest.starts_with('^') { 3 } else { 1 };
        let directive =
            rest.get(..length).ok_or("`%` must begin a directive, such as `%h`; write `%%` for a percent sign")?;
        rest = &rest[length..];
        let value = Piece::Value(meaning(directive, argument)?);
        if (directive, argument) == ("t", None) {
            // It has a space, and brackets of its own.
            pieces.extend([Piece::Text(b"[".into()), value, Piece::Text(b"]".into())]);
        } else {
            pieces.push(value);
        }
    }
    pieces.push(Piece::Text(rest.into()));
    pieces.retain(|piece| *piece != Piece::Text(Vec::new()));
    Ok(pieces)
}

/// The meaning of a directive. `%t` is when the request arrived.
fn meaning(directive: &str, argument: Option<&str>) -> Result<Field, String> {
    Ok(match (directive, argument) {
        ("h" | "a", None) => Field::Client,
        ("a", Some("c")) => Field::Peer,
        ("p", None) => Field::Port,
        ("t", None) => Field::Arrival,
        ("t", Some(given)) => {
            let form = given.strip_prefix("begin:").unwrap_or(given);
            let (form, field) = match form.strip_prefix("end:") {
                Some(form) => (form, Field::End),
                None => (form, Field::Arrival),
            };
            match form {
                "sec"
                | "msec"
                | "usec"
                | "%d/%b/%Y:%H:%M:%S %z"
                | "%d/%b/%Y:%T %z"
                | "%Y-%m-%dT%H:%M:%S%z"
                | "%Y-%m-%dT%T%z"
                | "%FT%T%z" => field,
                _ => {
                    return Err(format!(
                        "cannot read the time `%{{{given}}}t`; use `%t`, `%{{usec}}t` or `%{{msec}}t`"
                    ));
                }
            }
        }
        ("D", None) | ("T", Some("us")) => Field::Took(1),
        ("T", None | Some("s")) => Field::Took(1_000_000),
        ("T", Some("ms")) => Field::Took(1_000),
        ("r", None) => Field::Request,
        ("m", None) => Field::Method,
        ("U", None) => Field::DecodedPath,
        ("q", None) => Field::Query,
        ("V", None) => Field::Host,
        ("s", None) => Field::Status,
        ("b" | "B", None) => Field::Bytes,
        ("i", Some(name)) if name.eq_ignore_ascii_case("host") => Field::Host,
        ("i", Some(name)) => Field::Header(name.to_ascii_lowercase().into()),
        ("x", Some("SSL_CLIENT_S_DN")) => Field::TlsSubject,
        _ => Field::Ignored,
    })
}

#[cfg(test)]
mod tests {
    use super::super::Template;
    use super::super::tests::parse;
    use crate::engine::algorithms::micros::Micros;

    #[test]
    fn directives_of_apache_are_read() {
        let entry = parse(
            r#"%h %l %u %{usec}t %D %m \"%U\" \"%q\" %>s %b %{SSL_CLIENT_S_DN}x \"%{Host}i\" \"%!200{X-Key}i\" %%"#,
            r#"2001:db8::1 - - 1795233606789012 250 GET "/a b" "?c=d" 200 5 CN=a "a.example" "k\"" %"#,
        )
        .unwrap();
        assert_eq!((entry.at, entry.took), (Micros(1_795_233_606_789_012), Some(Micros(250))));
        let texts = [&entry.method, &entry.host, &entry.target, &entry.tls_subject];
        assert_eq!(texts.map(|text| text.as_deref().unwrap()), ["GET", "a.example", "/a%20b?c=d", "CN=a"]);
        assert_eq!((&*entry.headers[0].0, &*entry.headers[0].1), ("x-key", &b"k\""[..]));
    }

    #[test]
    fn times_have_their_form() {
        let at = |format: &str, line| parse(format, line).unwrap().at;
        assert_eq!(at("%t %s", "[21/Nov/2026:04:00:06 +0000] 200"), Micros(1_795_233_606_000_000));
        assert_eq!(at("%{msec}t %s", "1795233606789 200"), Micros(1_795_233_606_789_000));
        assert_eq!(at("%{end:usec}t %D", "1795233606789012 12"), Micros(1_795_233_606_789_000));
        assert!(Template::compile("%{%H}t %s").unwrap_err().contains("cannot read the time `%{%H}t`"));
    }
}
