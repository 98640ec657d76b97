//! The fuzzer: the property that is named by `WEIR_FUZZ` is what every input must have. See ../fuzz.sh.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use weir::config::properties::{duration, rules};
use weir::listeners::http_check::properties::ALL as CHECK;
use weir::listeners::grpc::properties::ALL as GRPC;
use weir::http::properties::{ALL as HTTP, Property};
use weir::listeners::spoe;

/// Those that are beside what they are about.
const OTHERS: [(&str, Property); 3] = [
    ("rules", |bytes| of_text(bytes, rules)),
    ("duration", |bytes| of_text(bytes, duration)),
    ("spoe", spoe::properties::frames),
];

fn of_text(bytes: &[u8], property: fn(&str)) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        property(text);
    }
}

static PROPERTY: LazyLock<Property> = LazyLock::new(|| {
    let name = std::env::var("WEIR_FUZZ").unwrap_or_default();
    let all = HTTP.iter().chain(&CHECK).chain(&GRPC).chain(&OTHERS);
    match all.clone().find(|(given, _)| *given == name) {
        Some((_, property)) => *property,
        None => {
            println!("{}", all.map(|(name, _)| *name).collect::<Vec<_>>().join(" "));
            std::process::exit(if name == "list" { 0 } else { 2 });
        }
    }
});

fuzz_target!(init: { LazyLock::force(&PROPERTY); }, |data: &[u8]| PROPERTY(data));
