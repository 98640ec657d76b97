//! Servers and locations: which requests end in which block.

use super::super::scope::{Condition, Scope, Test};
use super::super::text::piece;
use super::grammar::Directive;

/// A block that limits can stand in.
pub(super) struct Block<'d> {
    pub(super) directive: Option<&'d Directive>,
    pub(super) directives: &'d [Directive],
    /// The requests that end here or in a block inside.
    pub(super) scope: Scope,
    /// False if paths and hosts cannot say which requests end here.
    pub(super) is_reached: bool,
    /// Why the scope is not the one of nginx.
    pub(super) notes: Vec<String>,
    pub(super) inner: Vec<Block<'d>>,
}

impl<'d> Block<'d> {
    /// The `http` block, with its servers.
    pub(super) fn http(directives: &'d [Directive]) -> Self {
        let servers: Vec<&Directive> = directives.iter().filter(|inner| inner.name == "server").collect();
        let inner = servers.iter().map(|server| {
            let (hosts, notes) = hosts(server, &servers);
            let is_reached = hosts.is_some();
            let scope = Scope { hosts: hosts.unwrap_or_default(), ..Scope::default() };
            let inner = locations(&server.block, &scope);
            Block { directive: Some(server), directives: &server.block, scope, is_reached, notes, inner }
        });
        // A file that a server includes may have locations alone.
        let inner = inner.chain(locations(directives, &Scope::default())).collect();
        Self { directive: None, directives, scope: Scope::default(), is_reached: true, notes: Vec::new(), inner }
    }

    pub(super) fn own(&self, name: &str) -> impl Iterator<Item = &'d Directive> + use<'d> {
        let name = name.to_owned();
        self.directives.iter().filter(move |directive| directive.name == name)
    }

    /// The directives here or in a block inside that send requests on to this block's paths.
    pub(super) fn sent_here<'b>(&'b self, from: &'b [Directive]) -> impl Iterator<Item = &'b Directive> {
        let target = |directive: &Directive| match directive.name.as_str() {
            "try_files" | "error_page" => directive.arguments.last().cloned(),
            "rewrite" => directive.arguments.get(1).cloned(),
            "index" => directive.arguments.last().map(|file| format!("/{file}")),
            _ => None,
        };
        let all =
            from.iter().chain(from.iter().filter(|inner| inner.name == "location").flat_map(|inner| &inner.block));
        all.filter(move |directive| {
            let target = target(directive).filter(|target| target.starts_with('/'));
            target.is_some_and(|target| self.scope.paths.covers(target.split('?').next().unwrap_or_default()))
        })
    }

    /// Returns whether one of these settings stands in the block.
    pub(super) fn has_settings(&self, status: &str, dry_run: &str) -> bool {
        self.own(status).chain(self.own(dry_run)).next().is_some()
    }

    /// The directives by which requests leave the block before nginx counts them, under a condition.
    pub(super) fn leave_before(&self) -> impl Iterator<Item = &'d Directive> + use<'d> {
        let leaves = |directive: &Directive| ["return", "rewrite"].contains(&directive.name.as_str());
        let ifs = self.own("if").filter(move |condition| condition.block.iter().any(leaves));
        ifs.chain(self.own("rewrite").filter(|rewrite| rewrite.arguments.last().is_none_or(|flag| flag != "break")))
    }

    /// Returns whether it is a named location, which takes no requests by their path.
    pub(super) fn is_named(&self) -> bool {
        self.directive.is_some_and(|location| location.argument(0).starts_with('@'))
    }

    /// Returns true if nginx answers in the phase before it counts.
    pub(super) fn answers(&self) -> bool {
        self.directive.is_some() && self.own("return").next().is_some()
    }
}

/// The hosts of a server: its names, or all that no other server has, if it is the default one. `None` if `match` cannot name them.
fn hosts(server: &Directive, servers: &[&Directive]) -> (Option<Condition>, Vec<String>) {
    let mut notes = Vec::new();
    let is_pattern = |name: &&String| name.starts_with('~') || name.ends_with(".*");
    for pattern in names(server).iter().filter(is_pattern) {
        notes.push(server.origin.note(format!("{} has no equivalent: `host` has names and `*.NAME`.", piece(pattern))));
    }
    let own = tests(&names(server));
    let shares = |other: &Directive| listens(other).iter().any(|listen| listens(server).contains(listen));
    let others = || servers.iter().filter(|other| !std::ptr::eq(**other, server));
    let beside: Vec<&Directive> = others().copied().filter(|other| shares(other)).collect();
    let is_elsewhere = others().any(|other| {
        !shares(other) && tests(&names(other)).iter().any(|name| !own.contains(name))
            || !shares(other) && own.is_empty()
    });
    if is_elsewhere {
        notes.push(server.origin.note("servers on other ports have other names or none; Weir sees hosts, not ports."));
    }
    let is_first = |listen: &String| {
        servers.iter().find(|other| listens(other).contains(listen)).is_some_and(|first| std::ptr::eq(*first, server))
    };
    let is_marked = |server: &Directive| {
        let listens = server.block.iter().filter(|directive| directive.name == "listen");
        listens.flat_map(|directive| &directive.arguments).any(|word| word.starts_with("default"))
    };
    let is_default =
        is_marked(server) || listens(server).iter().any(is_first) && !beside.iter().any(|other| is_marked(other));
    let taken = tests(&beside.iter().flat_map(|other| names(other)).collect::<Vec<_>>());
    if is_default && (own.is_empty() || !is_elsewhere) {
        let taken = taken.into_iter().filter(|name| !own.contains(name));
        for other in beside.iter().filter(|other| names(other).iter().any(|name| is_pattern(&name))) {
            notes.push(
                other.origin.note("hosts with names by this server's pattern count for the default server here."),
            );
        }
        return (Some(Condition::except(taken)), notes);
    }
    // A name beats a `*.NAME`, and a longer one of these a shorter.
    let inside = taken.iter().filter(|name| !own.contains(name) && own.iter().any(|own| name.is_within(own)));
    let not: Vec<Test> = inside.cloned().collect();
    ((!own.is_empty()).then_some(Condition { any: own, not }), notes)
}

/// The names of servers that `host` can have. `_` and others without a dot are those of no host.
fn tests(names: &[String]) -> Vec<Test> {
    let is_host = |name: &&String| !name.starts_with('~') && !name.ends_with(".*") && !name.is_empty() && *name != "_";
    let both = |name: &String| match name.strip_prefix('.') {
        Some(below) => vec![Test::is(below), Test::is(format!("*{name}"))],
        None => vec![Test::is(name.as_str())],
    };
    names.iter().filter(is_host).flat_map(both).collect()
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

/// A location's modifier and its path.
fn pattern(location: &Directive) -> (&str, &str) {
    match location.arguments.as_slice() {
        [modifier, path] => (modifier, path),
        _ => ["^~", "~*", "~", "="]
            .iter()
            .find_map(|modifier| Some((*modifier, location.argument(0).strip_prefix(modifier)?)))
            .unwrap_or(("", location.argument(0))),
    }
}

fn test(location: &Directive) -> Test {
    match pattern(location) {
        ("=", path) => Test::is(path),
        ("~", regex) => Test::Regex(regex.to_owned()),
        ("~*", regex) => Test::Regex(format!("(?i){regex}")),
        (_, path) => Test::below(path),
    }
}

/// Returns false if no limit depends on which requests a location takes. Then nothing is computed: a server may have thousands.
fn matters(location: &Directive) -> bool {
    let is_it = |directive: &Directive| {
        directive.name.starts_with("limit_") || directive.name == "return" || matters(directive)
    };
    location.block.iter().any(is_it)
}

/// The locations in a block. nginx takes the exact one, else the longest prefix, unless a regular expression matches; the first
/// of those counts.
fn locations<'d>(directives: &'d [Directive], outer: &Scope) -> Vec<Block<'d>> {
    let all: Vec<&Directive> = directives.iter().filter(|inner| inner.name == "location").collect();
    let mut blocks = Vec::new();
    for (place, location) in all.iter().enumerate() {
        let mut notes = Vec::new();
        let (modifier, path) = pattern(location);
        let is_below = |other: &str| other.starts_with(path) || other == path.trim_end_matches('/');
        let own = (path != "/").then(|| test(location));
        let mut scope = Scope { paths: Condition::of(own), ..Scope::default() };
        let is_needed = matters(location);
        for (other_place, other) in all.iter().enumerate().filter(|(other, _)| is_needed && *other != place) {
            let (other_modifier, other_path) = pattern(other);
            let is_regex = |modifier: &str| modifier.starts_with('~');
            let takes = match (modifier, other_modifier) {
                _ if other_path.starts_with('@') => false,
                ("=", _) => false,
                (own, "=") => is_regex(own) || is_below(other_path),
                (own, other) if is_regex(own) && is_regex(other) => other_place < place,
                (own, other) if is_regex(own) => other == "^~",
                (own, other) if is_regex(other) => own != "^~",
                _ => other_path.len() > path.len() && is_below(other_path),
            };
            if takes {
                scope.paths.exclude(&[test(other)]);
            }
        }
        let mut is_reached = !path.starts_with('@');
        if !is_reached {
            notes
                .push(location.origin.note("nginx sends requests here from elsewhere, which their paths do not tell."));
        }
        let whole = outer.and(&scope).unwrap_or_else(|| {
            is_reached = false;
            notes.push(location.origin.note("its path cannot be joined with the one around it."));
            Scope { paths: scope.paths.clone(), ..outer.clone() }
        });
        let inner = locations(&location.block, &whole);
        blocks.push(Block {
            directive: Some(location),
            directives: &location.block,
            scope: whole,
            is_reached,
            notes,
            inner,
        });
    }
    blocks
}
