//! The lines of a log.

/// Lines without their ends and without damage at their start.
pub(super) fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
        let line = &rest[..end];
        rest = rest.get(end + 1..).unwrap_or_default();
        Some(without_damage(line))
    })
}

/// The line without a byte order mark, and without the NULs that a log cut to 0 bytes leaves while its writer goes on.
fn without_damage(line: &[u8]) -> &[u8] {
    let line = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line);
    let zeros = line.iter().take_while(|byte| **byte == 0).count();
    &line[zeros..]
}
