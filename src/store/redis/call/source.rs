//! The script that decides: `lua/decide.lua` with the files that it includes. `lua/assemble` prints the same for people.

use std::sync::LazyLock;

use redis::Script;

/// The files of `lua/` with these names, and their texts.
macro_rules! files {
    ($($name:literal)*) => { [$(($name, include_str!(concat!("../../../../lua/", $name)))),*] };
}

/// The script, and a line for each file that it includes.
const FILES: [(&str, &str); 14] = files![
    "decide.lua"
    "prelude.lua"
    "levels.lua"
    "leases.lua"
    "holds.lua"
    "gcra.lua"
    "fixed_window.lua"
    "sliding_log.lua"
    "sliding_window.lua"
    "concurrency.lua"
    "queue.lua"
    "script.lua"
    "elevated.lua"
    "requests.lua"
];

const INCLUDE: &str = "--[[ include ";
const INCLUDE_END: &str = " ]]";

// An include of a file that is not in the list does not compile.
const _: () = {
    let mut file = 0;
    while file < FILES.len() {
        check_includes(FILES[file].1.as_bytes());
        file += 1;
    }
};

/// Panics if a text includes a file that is not in [`FILES`].
const fn check_includes(text: &[u8]) {
    let mut at = 0;
    while at < text.len() {
        if text[at] == b'-' && begins_with(text, at, INCLUDE.as_bytes()) {
            let (name, mut file) = (at + INCLUDE.len(), 0);
            while !is_named(text, name, FILES[file].0) {
                file += 1;
                assert!(file < FILES.len(), "a file of lua/ includes one that is not in FILES");
            }
        }
        at += 1;
    }
}

const fn is_named(text: &[u8], at: usize, name: &str) -> bool {
    begins_with(text, at, name.as_bytes()) && begins_with(text, at + name.len(), INCLUDE_END.as_bytes())
}

const fn begins_with(text: &[u8], at: usize, part: &[u8]) -> bool {
    let mut matched = 0;
    while matched < part.len() && at + matched < text.len() && text[at + matched] == part[matched] {
        matched += 1;
    }
    matched == part.len()
}

/// A script, and the SHA-1 under which a server keeps it. Hashing takes longer than a decision.
#[derive(Debug)]
pub(super) struct HashedScript {
    pub(super) source: String,
    pub(super) hash: String,
}

impl HashedScript {
    pub(super) fn new(source: String) -> Self {
        Self { hash: Script::new(&source).get_hash().to_owned(), source }
    }
}

/// The script without user scripts.
pub(super) static PLAIN: LazyLock<HashedScript> = LazyLock::new(|| HashedScript::new(assembled(FILES[0].1)));

/// A script with the files that it includes, without comments.
pub(in super::super) fn assembled(script: &str) -> String {
    let mut source = String::with_capacity(64 * 1024);
    push_file(&mut source, script.lines());
    source
}

fn push_file<'a>(source: &mut String, lines: impl Iterator<Item = &'a str>) {
    for line in lines {
        let include = line.split_once(INCLUDE).and_then(|(before, rest)| Some((before, rest.split_once(INCLUDE_END)?)));
        let Some((before, (name, after))) = include else {
            push_code(source, line);
            continue;
        };
        push_code(source, before);
        for (_, text) in FILES.iter().filter(|(file, _)| *file == name) {
            let shared = text.lines().skip_while(|line| *line != "-- Shared").take_while(|line| *line != "-- Alone");
            push_file(source, Box::new(shared) as Box<dyn Iterator<Item = &str>>);
        }
        push_code(source, after);
    }
}

fn push_code(source: &mut String, line: &str) {
    let code = line.trim();
    if !code.is_empty() && !code.starts_with("--") {
        source.push_str(code);
        source.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_has_each_file_once_and_no_comment() {
        for (name, text) in &FILES[1..] {
            let (_, shared) = text.split_once("\n-- Shared\n").unwrap_or_else(|| panic!("{name} shares nothing"));
            let is_definition = |line: &&str| line.contains("function ") && !line.starts_with("--");
            let first = shared.lines().map(str::trim).find(is_definition).unwrap();
            let places = PLAIN.source.lines().filter(|line| *line == first).count();
            // Algorithms have functions of the same names.
            assert!(places == 1 || first.starts_with("function algorithm.") && places > 1, "{name}: {first}");
        }
        let source = &PLAIN.source;
        assert!(source.starts_with("local scripts = {}\n") && !source.contains(INCLUDE));
        assert!(source.lines().all(|line| !line.is_empty() && !line.starts_with("--")));
    }

    #[test]
    #[should_panic(expected = "not in FILES")]
    fn an_include_of_an_unknown_file_does_not_compile() {
        check_includes(b"local x --[[ include nothing.lua ]]");
    }
}
