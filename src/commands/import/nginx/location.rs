//! Blocks: which requests end in a server or location.

use super::super::path_regex::{escaped, has_equivalent, path_regex};
use super::super::scope::{Condition, Scope, Test};
use super::super::text::piece;
use super::Kind;
use super::grammar::Directive;
use super::server::{Server, Taken};

/// A block that limits can stand in.
pub(super) struct Block<'d> {
    pub(super) directive: Option<&'d Directive>,
    pub(super) directives: &'d [Directive],
    /// The requests that end here or in a block inside.
    pub(super) taken: Taken,
    pub(super) inner: Vec<Block<'d>>,
}

impl<'d> Block<'d> {
    /// The `http` block, with its servers.
    pub(super) fn http(directives: &'d [Directive]) -> Self {
        let servers = Server::all(directives);
        let inner = servers.iter().map(|server| {
            let mut taken = server.taken(&servers);
            let block = &server.directive.block;
            // They hold for the limits of its locations, too.
            taken.notes.extend(leaves(block).map(left));
            let inner = locations(block, &taken, &taken.scope, false);
            Block { directive: Some(server.directive), directives: block, taken, inner }
        });
        let taken = Taken { is_reached: true, ..Taken::default() };
        // A file that a server includes may have locations alone.
        let inner = inner.chain(locations(directives, &taken, &taken.scope, false)).collect();
        Self { directive: None, directives, taken, inner }
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
            target.is_some_and(|target| self.taken.scope.paths.covers(target.split('?').next().unwrap_or_default()))
        })
    }

    /// Returns whether it has other settings of this kind.
    pub(super) fn has_settings(&self, kind: &Kind) -> bool {
        self.own(kind.status).chain(self.own(kind.dry_run)).next().is_some()
    }

    /// Notes on directives that take requests out of a server or a location before nginx counts them.
    pub(super) fn leaves(&self) -> impl Iterator<Item = String> + use<'d> {
        self.directive.map(|_| leaves(self.directives).map(left)).into_iter().flatten()
    }

    /// Returns whether it is a named location, which takes no requests by their path.
    pub(super) fn is_named(&self) -> bool {
        self.directive.is_some_and(|location| location.argument(0).starts_with('@'))
    }

    /// Returns true if nginx answers before it counts.
    pub(super) fn answers(&self) -> bool {
        self.directive.is_some() && self.own("return").next().is_some() || self.is_internal()
    }

    /// Returns true if nginx also answers for all blocks inside.
    pub(super) fn answers_inside(&self) -> bool {
        self.answers() && (self.is_internal() || self.directive.is_some_and(|directive| directive.name == "server"))
    }

    fn is_internal(&self) -> bool {
        self.directive.is_some() && self.own("internal").next().is_some()
    }

    fn modifier(&self) -> &'d str {
        self.directive.map_or("", |directive| pattern(directive).0)
    }

    /// Returns true if a block inside takes all requests, of those that no others inside take.
    pub(super) fn is_filled_by(&self, inner: &Self) -> bool {
        !inner.is_named() && inner.taken.scope.paths.any == self.taken.scope.paths.any
    }
}

/// The directives by which requests leave a block before nginx counts them, under a condition.
fn leaves(directives: &[Directive]) -> impl Iterator<Item = &Directive> {
    let leaves = |directive: &Directive| ["return", "rewrite"].contains(&directive.name.as_str());
    directives.iter().filter(move |directive| match directive.name.as_str() {
        "if" => directive.block.iter().any(leaves),
        "rewrite" => directive.arguments.last().is_none_or(|flag| flag != "break"),
        _ => false,
    })
}

fn left(directive: &Directive) -> String {
    let what = "nginx does not count what {} answers or sends elsewhere; here it counts.";
    directive.origin.note(what.replace("{}", &piece(&directive.text())))
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
        ("=", path) => Test::Is(escaped(path)),
        ("~", regex) => path_regex(regex, ""),
        ("~*", regex) => path_regex(regex, "(?i)"),
        (_, path) => Test::below(&escaped(path)),
    }
}

fn is_regex(modifier: &str) -> bool {
    modifier.starts_with('~')
}

/// Returns false if no limit depends on which requests a location takes. Then nothing is computed: a server may have thousands.
fn matters(location: &Directive) -> bool {
    let is_it = |directive: &Directive| {
        directive.name.starts_with("limit_")
            || ["return", "internal"].contains(&directive.name.as_str())
            || matters(directive)
    };
    location.block.iter().any(is_it)
}

/// The locations in a block. nginx takes the exact one, else the longest prefix, unless a regular expression matches; the first
/// of those counts. Exact ones and regular expressions inside a location precede regular expressions outside: their outer
/// scope is `before`.
fn locations<'d>(directives: &'d [Directive], outer: &Taken, before: &Scope, mut all_matter: bool) -> Vec<Block<'d>> {
    let all: Vec<&Directive> = directives.iter().filter(|inner| inner.name == "location").collect();
    // Beside a location that takes the rest, the others have the limits around them.
    all_matter |= all.iter().any(|location| {
        let is_whole = pattern(location).1 == "/" || outer.scope.paths.any == [test(location)];
        is_whole && ["", "^~"].contains(&pattern(location).0) && matters(location)
    });
    let mut blocks: Vec<(usize, Block<'d>)> = Vec::new();
    let (regexes, others): (Vec<_>, Vec<_>) =
        all.iter().enumerate().partition(|(_, location)| is_regex(pattern(location).0));
    for (place, location) in others.into_iter().chain(regexes) {
        let (modifier, path) = pattern(location);
        let mut taken = Taken { scope: Scope::default(), ..outer.clone() };
        if is_regex(modifier) || modifier == "=" || path != "/" {
            taken.scope.paths.any.push(test(location));
        }
        let mut before_regexes = taken.scope.clone();
        if all_matter || matters(location) {
            take(&mut taken, &mut before_regexes, place, &all);
        }
        let around = if modifier == "=" || is_regex(modifier) { before } else { &outer.scope };
        taken.scope = join(around, &taken.scope).unwrap_or_default();
        before_regexes = join(before, &before_regexes).unwrap_or_default();
        if is_regex(modifier) {
            before_regexes.clone_from(&taken.scope);
            let first =
                |block: &&Block<'_>| block.directive.is_some_and(|inner| ["=", "~", "~*"].contains(&pattern(inner).0));
            let inside = blocks
                .iter()
                .filter(|(_, block)| !is_regex(block.modifier()))
                .flat_map(|(_, block)| &block.inner)
                .filter(first);
            if !taken.scope.subtract_all(inside.map(|block| &block.taken.scope)) {
                taken
                    .wider
                    .push(location.origin.note("it also covers what regular expressions inside other locations take."));
            }
        }
        if location.argument(0).starts_with('@') || location.block.iter().any(|inner| inner.name == "internal") {
            taken.is_reached = false;
            taken
                .notes
                .push(location.origin.note("nginx sends requests here from elsewhere, which their paths do not tell."));
        } else if is_regex(modifier) && !has_equivalent(path) {
            taken.is_reached = false;
            taken.notes.push(location.origin.note("`match` cannot say this regular expression."));
        }
        let inner = locations(&location.block, &taken, &before_regexes, all_matter);
        blocks.push((place, Block { directive: Some(location), directives: &location.block, taken, inner }));
    }
    blocks.sort_by_key(|(place, _)| *place);
    blocks.into_iter().map(|(_, block)| block).collect()
}

/// Takes what other locations take away from one.
fn take(taken: &mut Taken, before_regexes: &mut Scope, place: usize, all: &[&Directive]) {
    let Some(location) = all.get(place) else { return };
    let (modifier, path) = pattern(location);
    let is_below = |other: &str, path: &str| other.starts_with(path) || other == path.trim_end_matches('/');
    for (other_place, other) in all.iter().enumerate().filter(|(other, _)| *other != place) {
        let (other_modifier, other_path) = pattern(other);
        let takes = match (modifier, other_modifier) {
            _ if other_path.starts_with('@') => false,
            ("=", _) => false,
            (own, "=") => is_regex(own) || is_below(other_path, path),
            (own, other) if is_regex(own) && is_regex(other) => other_place < place,
            (own, other) if is_regex(own) => other == "^~",
            (own, other) if is_regex(other) => own != "^~",
            _ => other_path.len() > path.len() && is_below(other_path, path),
        };
        if !takes {
            continue;
        }
        if is_regex(other_modifier) && !has_equivalent(other_path) {
            taken.wider.push(other.origin.note(format!("`match` cannot except what {} takes.", piece(&other.text()))));
            continue;
        }
        // Below `^~` a longer location without it is open to regular expressions again.
        let inside = all.iter().filter(|_| is_regex(modifier) && other_modifier == "^~");
        let again = inside.filter(|inner| {
            pattern(inner).0.is_empty()
                && pattern(inner).1.len() > other_path.len()
                && is_below(pattern(inner).1, other_path)
        });
        let not: Vec<Test> = again.map(|inner| test(inner)).collect();
        if not.is_empty() {
            taken.scope.paths.exclude(&[test(other)]);
        } else {
            let paths = Condition { any: vec![test(other)], not };
            taken.scope.except.push(Scope { paths, ..Scope::default() });
        }
        if !is_regex(other_modifier) {
            before_regexes.paths.exclude(&[test(other)]);
        }
    }
}

/// The requests of a scope that an outer one covers, too; `None` if `match` and exceptions cannot say that.
pub(super) fn join(outer: &Scope, scope: &Scope) -> Option<Scope> {
    let without_paths = |scope: &Scope| Scope { paths: Condition::default(), ..scope.clone() };
    outer.and(scope).or_else(|| {
        let mut both = without_paths(outer).and(&without_paths(scope))?;
        both.paths = scope.paths.clone();
        both.paths.exclude(&outer.paths.not);
        // What is not below the paths around it is excepted.
        both.except.push(Scope { paths: Condition::except(outer.paths.any.clone()), ..Scope::default() });
        Some(both)
    })
}
