//! Servers: which hosts end in which.

use super::super::scope::{Condition, Scope, Test};
use super::super::text::piece;
use super::grammar::Directive;

/// The requests of a block, as far as hosts and paths say them.
#[derive(Clone, Default)]
pub(super) struct Taken {
    pub(super) scope: Scope,
    /// False if hosts and paths cannot say which requests end here.
    pub(super) is_reached: bool,
    /// Why the scope is not the one of nginx.
    pub(super) notes: Vec<String>,
    /// Why it has requests that nginx does not count by the limits of the block.
    pub(super) wider: Vec<String>,
}

pub(super) struct Server<'d> {
    pub(super) directive: &'d Directive,
    /// Without those that an earlier server has.
    names: Vec<String>,
    hosts: Vec<Test>,
    listens: Vec<String>,
    limits: Vec<String>,
    notes: Vec<String>,
}

impl<'d> Server<'d> {
    pub(super) fn all(directives: &'d [Directive]) -> Vec<Self> {
        let mut servers: Vec<Self> = Vec::new();
        for directive in directives.iter().filter(|inner| inner.name == "server") {
            let (names, listens) = (names(directive), listens(directive));
            let mut server =
                Self { directive, names, listens, hosts: Vec::new(), limits: Vec::new(), notes: Vec::new() };
            limits(&directive.block, &mut server.limits);
            let earlier =
                servers.iter().filter(|earlier| server.listens.iter().all(|listen| earlier.listens.contains(listen)));
            let has = |earlier: &&Self, name: &str| tests(name).iter().any(|test| earlier.hosts.contains(test));
            let earlier: Vec<&Self> = earlier.collect();
            server.names.retain(|name| match earlier.iter().find(|earlier| has(earlier, name)) {
                Some(earlier) => {
                    let line = earlier.directive.origin.line;
                    server.notes.push(directive.origin.note(format!("the server of line {line} has {}.", piece(name))));
                    false
                }
                None => true,
            });
            server.hosts = server.names.iter().flat_map(|name| tests(name)).collect();
            servers.push(server);
        }
        servers
    }

    fn shares(&self, other: &Self) -> bool {
        other.listens.iter().any(|listen| self.listens.contains(listen))
    }

    fn is_marked(&self) -> bool {
        let listens = self.directive.block.iter().filter(|directive| directive.name == "listen");
        listens.flat_map(|directive| &directive.arguments).any(|word| word.starts_with("default"))
    }

    /// Returns true if it has hosts of `other`, which listens on other ports and has other limits.
    fn is_split(&self, other: &Self) -> bool {
        let same = |name: &Test| other.hosts.contains(name);
        let meets = if self.hosts.is_empty() {
            other.hosts.is_empty() && !other.limits.is_empty()
        } else {
            self.hosts.iter().any(same)
        };
        meets
            && !self.shares(other)
            && self.limits != other.limits
            && !other.directive.block.iter().any(|inner| inner.name == "return")
    }

    /// The requests of the server: those with its names, or with all that no other server has, if it is the default one.
    pub(super) fn taken(&self, servers: &[Self]) -> Taken {
        let note = |server: &Self, what: &str| server.directive.origin.note(what);
        let mut taken = Taken { notes: self.notes.clone(), ..Taken::default() };
        for pattern in self.names.iter().filter(|name| is_pattern(name)) {
            taken
                .notes
                .push(note(self, &format!("{} has no equivalent: `host` has names and `*.NAME`.", piece(pattern))));
        }
        let others = || servers.iter().filter(|other| !std::ptr::eq(*other, self));
        let (beside, elsewhere): (Vec<&Self>, Vec<&Self>) = others().partition(|other| self.shares(other));
        let is_other =
            |other: &&Self| self.hosts.is_empty() || other.hosts.iter().any(|name| !self.hosts.contains(name));
        let is_elsewhere = elsewhere.iter().any(is_other);
        if is_elsewhere {
            taken
                .notes
                .push(note(self, "servers on other ports have other names or none; Weir sees hosts, not ports."));
        }
        for other in elsewhere.iter().filter(|other| self.is_split(other)) {
            let line = other.directive.origin.line;
            taken.wider.push(note(
                self,
                &format!("the server of line {line} has the same hosts on other ports; Weir sees hosts, not ports."),
            ));
        }
        let is_first = |listen: &String| {
            servers.iter().find(|other| other.listens.contains(listen)).is_some_and(|first| std::ptr::eq(first, self))
        };
        let is_default =
            self.is_marked() || self.listens.iter().any(is_first) && !beside.iter().any(|other| other.is_marked());
        let takes_rest = is_default && (self.hosts.is_empty() || !is_elsewhere);
        if takes_rest {
            for other in beside.iter().filter(|other| other.names.iter().any(|name| is_pattern(name))) {
                taken
                    .wider
                    .push(note(other, "hosts with names by this server's pattern count for the default server here."));
            }
        } else {
            taken.scope.hosts = Condition::of(self.hosts.clone());
        }
        taken.is_reached = takes_rest || !self.hosts.is_empty();
        if !taken.is_reached && taken.notes.is_empty() {
            taken.notes.push(note(self, "it is not the default server, and `host` has no names of it."));
        }
        // A name beats a `*.NAME`, and a longer one of these a shorter.
        for name in beside.iter().flat_map(|other| &other.hosts).filter(|name| !self.hosts.contains(name)) {
            let inside: Vec<Test> = self.hosts.iter().filter(|own| own.is_within(name)).cloned().collect();
            if inside.is_empty() {
                taken.scope.hosts.exclude(std::slice::from_ref(name));
            } else if takes_rest || self.hosts.iter().any(|own| name.is_within(own)) {
                let hosts = Condition { any: vec![name.clone()], not: inside };
                taken.scope.except.push(Scope { hosts, ..Scope::default() });
            }
        }
        taken
    }
}

fn is_pattern(name: &str) -> bool {
    name.starts_with('~') || name.ends_with(".*")
}

/// The hosts that a server's name stands for. `_` and the like are those of no host.
fn tests(name: &str) -> Vec<Test> {
    match name.strip_prefix('.') {
        _ if is_pattern(name) || name.is_empty() || name == "_" => Vec::new(),
        Some(below) => vec![Test::is(below), Test::is(format!("*{name}"))],
        None => vec![Test::is(name)],
    }
}

fn names(server: &Directive) -> Vec<String> {
    let names = server.block.iter().filter(|directive| directive.name == "server_name");
    names.flat_map(|directive| directive.arguments.iter().map(|name| name.to_ascii_lowercase())).collect()
}

/// The ports and sockets of a server.
fn listens(server: &Directive) -> Vec<String> {
    let listens = server.block.iter().filter(|directive| directive.name == "listen");
    let mut ports: Vec<String> =
        listens.map(|directive| directive.argument(0).rsplit(':').next().unwrap_or_default().to_owned()).collect();
    if ports.is_empty() {
        ports.push("80".to_owned());
    }
    ports
}

/// The limits of a server, with the locations that have them.
fn limits(directives: &[Directive], found: &mut Vec<String>) {
    for directive in directives {
        let before = found.len();
        limits(&directive.block, found);
        if found.len() > before || directive.name.starts_with("limit_") {
            found.push(directive.text());
        }
    }
}
