//! YAML as text: values in flow style, and comments.
//!
//! Text from other files may contain quotes, line breaks or `#`, so all of it is written by these functions.

use std::fmt::Write;

use super::super::print::joined;

/// Comments are wrapped at this width.
const WIDEST_COMMENT: usize = 110;

/// The longest quotation of another file in a comment, in characters.
const LONGEST_PIECE: usize = 300;

/// The parser looks for the colon of a key within 1024 characters (YAML 1.2, section 7.4.2).
const LONGEST_KEY: usize = 1_000;

/// A map in flow style.
pub(super) fn map<K: AsRef<str>>(entries: &[(K, String)]) -> String {
    if entries.is_empty() {
        return "{}".to_owned();
    }
    format!("{{ {} }}", joined(entries.iter().map(|(key, value)| format!("{}: {value}", quoted(key.as_ref()))), ", "))
}

/// A list in flow style; of one item, the item itself.
pub(super) fn one_or_list(items: &[String]) -> String {
    if let [only] = items { only.clone() } else { format!("[{}]", items.join(", ")) }
}

/// The value of `by` for these entries of a descriptor.
pub(super) fn by_entries<'k>(keys: impl IntoIterator<Item = &'k str>) -> String {
    let components: Vec<_> = keys.into_iter().map(|key| map(&[("descriptor", quoted(key))])).collect();
    if components.is_empty() { "global".to_owned() } else { one_or_list(&components) }
}

/// The key `Name:id`, or `None` if it is too long for one.
pub(super) fn key(name: &str, id: &str) -> Option<String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-/@:".contains(&byte);
    let key = format!("{name}:{id}");
    // A colon at the end would be read as the end of the key.
    let key = if key.bytes().all(plain) && !key.ends_with(':') { key } else { in_quotes(&key) };
    (key.chars().count() < LONGEST_KEY).then_some(key)
}

/// Text as a value or a key in flow style: plain if every program reads it as this text, otherwise in quotes.
pub(super) fn quoted(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-/@".contains(&byte);
    let begins_well = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_' || first == '/');
    // YAML 1.1, which many programs still use, has more of these than 1.2.
    let is_word = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"]
        .iter()
        .any(|word| text.eq_ignore_ascii_case(word));
    if begins_well && !is_word && text.bytes().all(plain) { text.to_owned() } else { in_quotes(text) }
}

/// Text in double quotes (YAML 1.2, section 7.3.1), on one line and of printable characters.
fn in_quotes(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            hidden if is_hidden(hidden) => {
                let _ = match u32::from(hidden) {
                    code @ 0..=0xff => write!(quoted, "\\x{code:02x}"),
                    code @ 0x100..=0xffff => write!(quoted, "\\u{code:04x}"),
                    code => write!(quoted, "\\U{code:08x}"),
                };
            }
            shown => quoted.push(shown),
        }
    }
    quoted.push('"');
    quoted
}

/// Returns true for characters that end a line or are invisible: control characters, the separators of YAML 1.1, marks of
/// text direction, and noncharacters.
fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
        || u32::from(character) & 0xfffe == 0xfffe
}

/// A quotation of another file for a comment: shortened, in backticks.
pub(super) fn piece(text: &str) -> String {
    let mut shown: String = text.chars().take(LONGEST_PIECE).collect();
    if text.chars().nth(LONGEST_PIECE).is_some() {
        shown.push_str("...");
    }
    format!("`{shown}`")
}

/// Adds a comment, wrapped at its spaces.
pub(super) fn comment(indent: usize, text: &str, out: &mut String) {
    let shown: String = text.chars().map(|each| if is_hidden(each) { ' ' } else { each }).collect();
    let mut line = String::new();
    let mut end = |line: &str| {
        let _ = writeln!(out, "{:indent$}# {line}", "");
    };
    for word in shown.split_whitespace() {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > WIDEST_COMMENT - indent {
            end(&line);
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    end(&line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_plain_only_where_it_is_text_to_everybody() {
        for (text, expected) in [
            ("x-account-id", "x-account-id"),
            ("/v1/orders", "/v1/orders"),
            ("/v1/{id}", "\"/v1/{id}\""),
            ("10", "\"10\""),
            ("No", "\"No\""),
            ("", "\"\""),
            ("a: b # c", "\"a: b # c\""),
            (
                "a\"b\\c\nd\u{85}\u{2028}\u{1}\u{ffff}\u{1fffe}é",
                "\"a\\\"b\\\\c\\nd\\x85\\u2028\\x01\\uffff\\U0001fffeé\"",
            ),
        ] {
            assert_eq!(quoted(text), expected);
        }
        assert_eq!(map(&[("by", one_or_list(&["ip/48".to_owned(), quoted("*")]))]), "{ by: [ip/48, \"*\"] }");
        assert_eq!(map::<&str>(&[]), "{}");
    }

    #[test]
    fn keys_with_an_id_are_quoted_if_their_end_is_in_doubt() {
        assert_eq!(key("A", "2001:db8::1").as_deref(), Some("A:2001:db8::1"));
        assert_eq!(key("A", "2001:db8::").as_deref(), Some("\"A:2001:db8::\""));
        assert_eq!(key("A", "a: b").as_deref(), Some("\"A:a: b\""));
        assert_eq!(key("A", &"x".repeat(LONGEST_KEY)), None);
    }

    #[test]
    fn comments_stay_comments() {
        let mut out = String::new();
        comment(2, &format!("a\nb: c\u{2028}d {}", piece(&"x".repeat(400))), &mut out);
        assert!(out.lines().all(|line| line.starts_with("  # ")), "{out}");
        assert!(out.starts_with("  # a b: c d\n  # `xxx") && out.ends_with("xxx...`\n"), "{out}");
    }
}
