//! Formats of `HAProxy`'s `log-format`.

use super::{Piece, text_before_variable};
use crate::logs::field::Field;

/// Returns true if a template has variables of `HAProxy`: expressions, flags, or names that no directive of Apache begins.
pub(super) fn is_haproxy(template: &str) -> bool {
    ["%ci", "%[", "%{+", "%(", "%tr", "%HM"].iter().any(|part| template.contains(part))
}

/// A variable of a format, or flags for all variables behind it.
struct Variable<'a> {
    /// Given as `%(NAME)ci`, for JSON.
    name: Option<&'a str>,
    word: &'a str,
    /// `+Q` or `-Q`.
    is_quoted: Option<bool>,
    is_json: bool,
}

/// The variables that are not quoted: numbers and times.
const BARE: [&str; 37] = [
    "B", "T", "TR", "Ta", "Tc", "Td", "Th", "Ti", "Tl", "Tq", "Tr", "Ts", "Tt", "TU", "Tw", "U", "ST", "ac", "bc",
    "bp", "bq", "cp", "fc", "fp", "lc", "ms", "pid", "rc", "rt", "sc", "sp", "sq", "t", "tr", "trg", "trl", "tsc",
];

impl<'a> Variable<'a> {
    /// Reads what is behind a percent sign. Returns what is behind the variable, too.
    fn read(text: &'a str) -> Result<(Self, &'a str), String> {
        let (mut rest, mut name, mut flags) = (text, None, "");
        if let Some(named) = rest.strip_prefix('(') {
            let (inside, behind) = named.split_once(')').ok_or("a name that begins with `%(` must end with `)`")?;
            (name, rest) = (inside.split(':').next(), behind);
        }
        if let Some(given) = rest.strip_prefix('{') {
            (flags, rest) = given.split_once('}').ok_or("flags that begin with `%{` must end with `}`")?;
        }
        let has = |flag: &str| flags.split(',').any(|given| given.trim().eq_ignore_ascii_case(flag));
        let length = if rest.starts_with('[') {
            rest.find(']').ok_or("an expression that begins with `%[` must end with `]`")? + 1
        } else {
            rest.find(|character: char| !character.is_ascii_alphanumeric() && character != '_').unwrap_or(rest.len())
        };
        let (word, behind) = rest.split_at(length);
        if word.is_empty() {
            return Err("`%` must begin a variable, such as `%ci`; write `%%` for a percent sign".to_owned());
        }
        let is_quoted = if has("+Q") { Some(true) } else { has("-Q").then_some(false) };
        Ok((Self { name, word, is_quoted, is_json: has("+json") }, behind))
    }

    /// Returns true for flags that count for all variables behind them.
    fn is_for_all(&self) -> bool {
        self.word == "o"
    }

    fn field(&self, template: &str) -> Field {
        match self.word {
            "ci" | "[src]" => Field::Client,
            "cp" => Field::Port,
            // Of the request, or of the connection.
            "tr" | "trg" | "trl" | "t" | "T" | "Tl" | "Ts" | "[accept_date]" => Field::Arrival,
            "Ta" => Field::Took(1_000),
            // It begins with the connection.
            "Tt" if !template.contains("%Ta") => Field::Took(1_000),
            "ST" | "[status]" => Field::Status,
            "r" => Field::Request,
            "HM" | "[method]" => Field::Method,
            "HU" | "[url]" | "[pathq]" => Field::Target,
            "HP" | "HPO" | "[path]" => Field::Path,
            "HQ" | "[query]" => Field::Query,
            "[ssl_c_s_dn]" => Field::TlsSubject,
            expression => match header(expression) {
                Some(name) if name == "host" => Field::Host,
                Some(name) => Field::Header(name.into()),
                None => Field::Ignored,
            },
        }
    }
}

/// The header of an expression such as `[req.hdr(X-API-Key)]` or `[hdr(host),lower]`, in lower case.
fn header(expression: &str) -> Option<String> {
    let inside = expression.strip_prefix('[')?;
    let call = ["req.hdr(", "req.fhdr(", "hdr(", "fhdr("].iter().find_map(|start| inside.strip_prefix(start))?;
    let name = call.split([')', ',']).next()?.trim();
    (!name.is_empty()).then(|| name.to_ascii_lowercase())
}

pub(super) fn pieces(template: &str) -> Result<Vec<Piece>, String> {
    // In haproxy.cfg a format stands between double quotes, or its spaces have escapes.
    let template = template.replace("\\\"", "\"").replace("\\ ", " ");
    let (mut pieces, mut rest, mut all_quoted) = (Vec::new(), &*template, false);
    while text_before_variable(&mut pieces, &mut rest) {
        let (variable, behind) = Variable::read(rest)?;
        rest = behind;
        if variable.is_for_all() {
            all_quoted = variable.is_quoted.unwrap_or(all_quoted);
            rest = rest.trim_start();
            continue;
        }
        // Logs without captured headers have no place for them.
        if matches!(variable.word, "hr" | "hs") && rest.starts_with(' ') {
            rest = &rest[1..];
            continue;
        }
        let value = Piece::Value(variable.field(&template));
        if variable.is_quoted.unwrap_or(all_quoted) && !BARE.contains(&variable.word) {
            pieces.extend([Piece::Text(b"\"".into()), value, Piece::Text(b"\"".into())]);
        } else {
            pieces.push(value);
        }
    }
    pieces.push(Piece::Text(rest.into()));
    pieces.retain(|piece| *piece != Piece::Text(Vec::new()));
    Ok(with_whole_clients(pieces))
}

/// Joins an address with the port behind it: that of IPv6 has colons, too.
fn with_whole_clients(pieces: Vec<Piece>) -> Vec<Piece> {
    let mut joined: Vec<Piece> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        joined.push(piece);
        if let [.., Piece::Value(Field::Client), Piece::Text(colon), Piece::Value(Field::Port)] = &joined[..]
            && colon == b":"
        {
            joined.truncate(joined.len() - 3);
            joined.push(Piece::Value(Field::ClientAndPort));
        }
    }
    joined
}

/// The members of lines of JSON, which variables with names make behind `%{+json}o`; `None` for another format.
pub(in crate::logs) fn json_members(template: &str) -> Option<Result<Vec<(String, Field)>, String>> {
    let (mut members, mut rest, mut is_json) = (Vec::new(), template, false);
    if !is_haproxy(template) {
        return None;
    }
    while let Some(percent) = rest.find('%') {
        let (variable, behind) = match Variable::read(&rest[percent + 1..]) {
            Ok(read) => read,
            Err(_) if !is_json => return None,
            Err(error) => return Some(Err(error)),
        };
        rest = behind;
        is_json |= variable.is_for_all() && variable.is_json;
        if let Some(name) = variable.name.filter(|_| is_json) {
            members.push((name.to_owned(), variable.field(template)));
        }
    }
    is_json.then_some(Ok(members))
}

#[cfg(test)]
mod tests {
    use super::super::Template;
    use super::super::tests::parse;
    use super::json_members;
    use crate::engine::algorithms::micros::Micros;
    use crate::logs::field::Field;

    #[test]
    fn variables_of_haproxy_are_read() {
        let entry = parse(
            r#"%ci:%cp\ [%tr]\ %ft\ %Tr/%Tt/%Ta\ %ST\ %hr\ %{+Q}[req.hdr(X-Api-Key)]\ "%[hdr(host),lower]"\ %{+Q}r 100%%"#,
            r#"2001:db8::1:4711 [21/Nov/2026:04:00:06.789] http-in 69/500/109 200 "k#22#C3#A9" "a.example" "GET /a?b=c HTTP/1.1" 100%"#,
        )
        .unwrap();
        assert_eq!((entry.at, entry.took), (Micros(1_795_233_606_789_000), Some(Micros(109_000))));
        let texts = [&entry.method, &entry.host, &entry.target];
        assert_eq!(texts.map(|text| text.as_deref().unwrap()), ["GET", "a.example", "/a?b=c"]);
        assert_eq!((entry.client, entry.status), ("2001:db8::1".parse().ok(), Some(200)));
        assert_eq!((&*entry.headers[0].0, &*entry.headers[0].1), ("x-api-key", "k\"é".as_bytes()));
        let all_quoted = parse(
            "%{+Q}o %{-Q}ci %T %ST %HM %HPO %HQ",
            r#"192.0.2.7 21/Nov/2026:04:00:06 +0000 200 "GET" "/a" "?b=c""#,
        );
        let entry = all_quoted.unwrap();
        assert_eq!((entry.target.as_deref(), entry.client), (Some("/a?b=c"), "192.0.2.7".parse().ok()));
        for (template, part) in
            [("%ci %{+Q %tr", "`%{`"), ("%ci %[src", "`%[`"), ("%(a", "`%(`"), ("%ci % %tr", "`%%`")]
        {
            let error = Template::compile(template).unwrap_err();
            assert!(error.contains(part), "{template}: {error}");
        }
    }

    #[test]
    fn names_of_variables_are_those_of_members() {
        let members =
            json_members("%{+json}o %(who)ci %(at)tr %(bytes:sint)B %(key)[req.hdr(X-Key)] %ST").unwrap().unwrap();
        let names: Vec<(&str, &Field)> = members.iter().map(|(name, field)| (&**name, field)).collect();
        let key = Field::Header("x-key".into());
        assert_eq!(
            names,
            [("who", &Field::Client), ("at", &Field::Arrival), ("bytes", &Field::Ignored), ("key", &key)]
        );
        assert!(json_members("%ci [%tr]").is_none() && json_members("%h %t").is_none());
    }
}
