//! Parsers for the values of flags.

use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use ipnet::IpNet;

use crate::engine::text::duration;

/// Parses a duration longer than 0, such as `20ms` or `1m30s`.
pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    parse_duration_or_zero(text)
        .and_then(|span| if span.is_zero() { Err("must be longer than 0".into()) } else { Ok(span) })
}

/// Parses a number whose type has no 0.
pub(super) fn parse_positive<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "expected a whole number, 1 or more".to_owned())
}

/// Validates a duration longer than 0 and returns its text.
pub(super) fn checked_duration(text: &str) -> Result<String, String> {
    parse_duration(text).map(|_| text.to_owned())
}

/// Parses a duration, which may be 0.
pub(super) fn parse_duration_or_zero(text: &str) -> Result<Duration, String> {
    match duration::parse(text) {
        Ok(nanoseconds) => Ok(Duration::from_nanos(nanoseconds)),
        Err((wrong, right)) => Err(format!("{wrong}; {right}")),
    }
}

/// Parses one of a few words, each with its help and its value.
pub(super) fn one_of<T: Copy + Send + Sync + 'static>(
    choices: &'static [(&'static str, &'static str, T)],
) -> impl TypedValueParser<Value = T> {
    let words = choices.iter().map(|(word, help, _)| PossibleValue::new(*word).help(*help));
    PossibleValuesParser::new(words).try_map(|given| {
        let chosen = choices.iter().find(|(word, ..)| *word == given);
        chosen.map(|(.., value)| *value).ok_or("unknown value")
    })
}

/// Parses a whole percentage from `1%` to `100%`.
pub(super) fn parse_percent(text: &str) -> Result<u8, String> {
    let number = text.strip_suffix('%').and_then(|digits| digits.parse().ok());
    number.filter(|number| (1..=100).contains(number)).ok_or_else(|| "expected a percentage such as `80%`".to_owned())
}

/// Parses a network, a single address, or `unix` for peers on a unix socket, which count as 127.0.0.1.
pub(super) fn parse_network(text: &str) -> Result<IpNet, String> {
    if text == "unix" {
        return Ok(IpNet::from(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    }
    let wrong = || "expected a network such as 10.0.0.0/8".to_owned();
    let network = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)).map_err(|_| wrong())?;
    if network.trunc() == network { Ok(network) } else { Err(format!("host bits are set; write {}", network.trunc())) }
}

/// The value of a flag on the command line, `--name value` or `--name=value`.
pub(super) fn typed_flag(given: &[&str], name: &str) -> Option<String> {
    let rest = |argument: &str| argument.strip_prefix("--")?.strip_prefix(name).map(str::to_owned);
    given.iter().enumerate().find_map(|(place, argument)| match rest(argument)?.strip_prefix('=') {
        Some(value) => Some(value.to_owned()),
        None if rest(argument)?.is_empty() => Some((*given.get(place + 1).unwrap_or(&"")).to_owned()),
        None => None,
    })
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    #[test]
    fn counts_begin_at_one() {
        assert_eq!(parse_positive("2"), Ok(NonZeroU32::MIN.saturating_add(1)));
        for text in ["0", "-1", "1.5", "two", ""] {
            assert_eq!(parse_positive::<NonZeroU32>(text).unwrap_err(), "expected a whole number, 1 or more", "{text}");
        }
    }

    #[test]
    fn percentages_are_whole() {
        assert_eq!((parse_percent("1%"), parse_percent("100%")), (Ok(1), Ok(100)));
        for text in ["80", "0%", "101%", "0.8%", "%", ""] {
            assert!(parse_percent(text).is_err(), "{text}");
        }
    }

    #[test]
    fn networks_have_no_host_bits() {
        assert_eq!(parse_network("10.0.0.0/8").map(|network| network.to_string()).as_deref(), Ok("10.0.0.0/8"));
        assert_eq!(parse_network("::1").map(|network| network.to_string()).as_deref(), Ok("::1/128"));
        assert_eq!(parse_network("unix").map(|network| network.to_string()).as_deref(), Ok("127.0.0.1/32"));
        assert_eq!(parse_network("10.1.0.0/8").unwrap_err(), "host bits are set; write 10.0.0.0/8");
        assert!(parse_network("proxy").is_err());
    }
}
