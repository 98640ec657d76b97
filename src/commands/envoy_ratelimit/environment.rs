//! The values of envoyproxy/ratelimit's settings.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use super::settings::{GROUPS, default_of};
use crate::engine::text::duration;
use crate::engine::text::quote::quoted;

/// Reads settings by name. An empty one is not set.
pub(super) struct Environment<'a> {
    variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// The mistakes in them, without secrets.
    pub(super) mistakes: Vec<String>,
}

impl<'a> Environment<'a> {
    pub(super) fn new(variable: &'a dyn Fn(&str) -> Option<OsString>) -> Self {
        let names = GROUPS.iter().flat_map(|group| group.settings).map(|(name, _)| name);
        let is_unreadable = |name: &&&str| variable(name).is_some_and(|value| value.to_str().is_none());
        let mistakes = names.filter(is_unreadable).map(|name| format!("{name}: expected UTF-8")).collect();
        Self { variable, mistakes }
    }

    /// The value, if the setting is set.
    pub(super) fn given(&self, name: &str) -> Option<String> {
        (self.variable)(name)?.into_string().ok().filter(|value| !value.is_empty())
    }

    /// The value, which another setting needs.
    pub(super) fn needed(&mut self, name: &str, other: &str) -> Option<String> {
        let value = self.given(name);
        if value.is_none() {
            self.mistakes.push(format!("{name}: it is needed for {other}"));
        }
        value
    }

    /// The values of two settings, if any is set; it needs the other one.
    pub(super) fn both(&mut self, [first, second]: [&str; 2]) -> [Option<String>; 2] {
        if self.given(first).or_else(|| self.given(second)).is_none() {
            return [None, None];
        }
        [self.needed(first, second), self.needed(second, first)]
    }

    /// The value, or the default.
    pub(super) fn text(&self, name: &str) -> String {
        self.given(name).unwrap_or_else(|| default_of(name).to_owned())
    }

    /// Adds a mistake, once, and shows the value. Not for secrets.
    pub(super) fn wrong(&mut self, name: &str, why: &str) {
        let mistake = format!("{name}: {why}, found {}", quoted(&self.text(name)));
        if !self.mistakes.contains(&mistake) {
            self.mistakes.push(mistake);
        }
    }

    pub(super) fn is_true(&mut self, name: &str) -> bool {
        let value = truth(&self.text(name));
        if value.is_none() {
            self.wrong(name, "expected true or false");
        }
        value == Some(true)
    }

    /// Returns whether a setting is set to another value than its default.
    pub(super) fn differs(&self, name: &str) -> bool {
        let Some(value) = self.given(name) else { return false };
        let default = default_of(name);
        let is_same = value.eq_ignore_ascii_case(default)
            || truth(&value).is_some_and(|value| truth(default) == Some(value))
            || duration::parse(&value).is_ok_and(|value| duration::parse(default) == Ok(value))
            || value.parse::<f64>().is_ok_and(|value| default.parse() == Ok(value));
        !is_same
    }

    /// Returns false, and adds a mistake, if a setting that is true or false has another value.
    pub(super) fn is_valid(&mut self, name: &str) -> bool {
        let is_valid = !matches!(default_of(name), "true" | "false") || truth(&self.text(name)).is_some();
        if !is_valid {
            self.is_true(name);
        }
        is_valid
    }

    /// The duration, or the default.
    pub(super) fn duration(&mut self, name: &str) -> String {
        let value = self.text(name);
        if duration::parse(&value).is_err() {
            self.wrong(name, "expected a duration such as `10s`");
        }
        value
    }

    /// The duration, or the default; it is a mistake if it is 0.
    pub(super) fn timeout(&mut self, name: &str) -> String {
        let value = self.duration(name);
        if duration::parse(&value) == Ok(0) {
            self.wrong(name, "expected a duration longer than 0");
        }
        value
    }

    /// The address of a host and a port.
    pub(super) fn address(&mut self, host: &str, port: &str) -> Option<String> {
        let Some(ip) = ip_of(&self.text(host)) else {
            self.wrong(host, "expected an IP address");
            return None;
        };
        if let Ok(port) = self.text(port).parse::<u16>() {
            return Some(std::net::SocketAddr::new(ip, port).to_string());
        }
        self.wrong(port, "expected a port");
        None
    }

    /// The address that Go writes as `:port` or `host:port`.
    pub(super) fn listen(&mut self, name: &str) -> Option<String> {
        let text = self.text(name);
        let address = text.rsplit_once(':').and_then(|(host, port)| {
            let ip = if host.is_empty() { any() } else { ip_of(host.trim_matches(['[', ']']))? };
            Some(std::net::SocketAddr::new(ip, port.parse().ok()?).to_string())
        });
        if address.is_none() {
            self.wrong(name, "expected `:port` or `address:port`");
        }
        address
    }
}

/// All addresses of the machine: as in Go, those of IPv6 and of IPv4, unless its kernel has no IPv6.
fn any() -> IpAddr {
    let has_ipv6 = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok();
    if has_ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

fn ip_of(host: &str) -> Option<IpAddr> {
    match host {
        "localhost" => Some(Ipv4Addr::LOCALHOST.into()),
        _ => host.parse().ok(),
    }
}

/// Go's booleans.
fn truth(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}
