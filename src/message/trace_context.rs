//! The trace that a request belongs to: the `traceparent` header of W3C Trace Context, level 1 and 2.

use std::fmt;

use super::headers::Headers;

pub const TRACEPARENT: &str = "traceparent";

/// The length of a value of version 00: version, trace, span and flags with hyphens between them.
const LENGTH: usize = 55;

/// A span of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// Never 0.
    pub trace_id: u128,
    /// Never 0.
    pub span_id: u64,
    /// [`Self::SAMPLED`] and others.
    pub flags: u8,
}

impl TraceContext {
    /// The flag for spans that the caller may have recorded.
    pub const SAMPLED: u8 = 1;

    /// The flag for trace ids whose last seven bytes are random.
    pub const RANDOM: u8 = 2;

    /// The trace context of a request; `None` if the header is absent, repeated or malformed.
    pub fn of(headers: &Headers) -> Option<Self> {
        let mut lines = headers.all(TRACEPARENT);
        let first = lines.next()?;
        lines.next().is_none().then(|| Self::parse(first)).flatten()
    }

    /// Parses the header's value. Versions after 00 may have more fields after the flags.
    fn parse(value: &[u8]) -> Option<Self> {
        let (known, more) = value.split_at_checked(LENGTH)?;
        let [v, w, b'-', rest @ ..] = known else { return None };
        let version = number(&[*v, *w])?;
        let is_whole = match version {
            0 => more.is_empty(),
            0xff => false,
            _ => more.is_empty() || more.starts_with(b"-"),
        };
        let (trace_id, rest) = rest.split_at_checked(32)?;
        let (span_id, rest) = rest.strip_prefix(b"-")?.split_at_checked(16)?;
        let (trace_id, span_id) = (number(trace_id)?, u64::try_from(number(span_id)?).ok()?);
        let flags = u8::try_from(number(rest.strip_prefix(b"-")?)?).ok()?;
        (is_whole && trace_id != 0 && span_id != 0).then_some(Self { trace_id, span_id, flags })
    }

    pub const fn is_sampled(&self) -> bool {
        self.flags & Self::SAMPLED != 0
    }
}

/// The value of the header, of version 00.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, self.flags)
    }
}

/// Parses lower-case hexadecimal digits, the only ones that the header allows.
fn number(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |sum: u128, digit| match digit {
        b'0'..=b'9' => Some(sum << 4 | u128::from(digit - b'0')),
        b'a'..=b'f' => Some(sum << 4 | u128::from(digit - b'a' + 10)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    /// The value that is passed on of these lines, without what a later version has added.
    #[track_caller]
    fn check(lines: &[&str], expected: Option<&str>) {
        let headers: Headers = lines.iter().map(|line| (TRACEPARENT, *line)).collect();
        assert_eq!(TraceContext::of(&headers).map(|context| context.to_string()).as_deref(), expected, "{lines:?}");
    }

    #[test]
    fn a_trace_is_read_as_it_is_written() {
        check(&[VALUE], Some(VALUE));
        let unsampled = VALUE.replace("-01", "-00");
        check(&[&unsampled], Some(&unsampled));
        check(&[&VALUE.replacen("00", "cc", 1)], Some(VALUE));
        check(&[&format!("{}-what-will-be", VALUE.replacen("00", "01", 1))], Some(VALUE));
        let context = TraceContext::parse(VALUE.as_bytes()).unwrap();
        assert_eq!((context.trace_id >> 64, context.span_id), (0x4bf9_2f35_77b3_4da6, 0x00f0_67aa_0ba9_02b7));
        assert!(context.is_sampled());
    }

    #[test]
    fn what_is_no_trace_is_none() {
        check(&[], None);
        check(&[VALUE, VALUE], None);
        for wrong in [
            "",
            "00",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00F067AA0BA902B7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01x",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01x",
            "00_4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7_01",
            "0g-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-600f067aa0ba902b7-01",
        ] {
            check(&[wrong], None);
        }
    }
}
