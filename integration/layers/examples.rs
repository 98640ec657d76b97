//! Sources that the guard rejects, and sources that it accepts.

use super::source::{Crate, Files};
use super::{Mistakes, mistakes};

const MAP: &str = "pub mod clock; pub mod engine; pub mod http; pub mod limiter; pub mod message; pub mod store;";

/// Checks sources for exactly these mistakes. `MAP` is their `lib.rs`, and modules that they lack are empty.
#[track_caller]
fn check(sources: &[(&str, &str)], expected: &[&str]) {
    let found = find(sources);
    let names: Vec<&str> = found.keys().map(String::as_str).collect();
    assert_eq!(names, expected, "{found:#?}");
}

fn find(sources: &[(&str, &str)]) -> Mistakes {
    let modules = ["clock", "engine", "http", "limiter", "message", "store"];
    let mut files: Files = sources.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
    for name in modules {
        if !files.contains_key(&format!("{name}.rs")) {
            files.entry(format!("{name}/mod.rs")).or_default();
        }
    }
    files.entry("lib.rs".into()).or_insert_with(|| MAP.to_owned());
    mistakes(&Crate::parse(&files))
}

#[test]
fn imports_down_pass() {
    check(
        &[
            ("limiter/mod.rs", "use crate::engine::Limit; use crate::store::{self, Store}; fn f() { store::g() }"),
            ("engine/mod.rs", "pub struct Limit; pub use crate::message::Header;"),
            ("store/mod.rs", "pub struct Store; pub fn g() {}"),
            ("message/mod.rs", "pub struct Header;"),
        ],
        &[],
    );
}

#[test]
fn imports_up_are_found_however_they_are_written() {
    for text in [
        "use crate::limiter::Limiter;",
        "use crate::{engine, limiter::{Limiter as L}};",
        "use crate::limiter; fn f() -> limiter::Limiter { todo!() }",
        "use crate::limiter::*;",
        "use super::limiter::Limiter;",
        "use self::super::limiter::Limiter;",
        "fn f() -> crate::limiter::Limiter { todo!() }",
        "struct S(Vec<super::limiter::Limiter>);",
        "fn f() { let _ = crate::limiter::Limiter::new(); }",
        "fn f() { println!(\"{}\", crate::limiter::NAME); }",
        "macro_rules! m { () => { $crate::limiter::NAME } }",
        "mod inner { use super::super::limiter::Limiter; }",
        "fn f() { use crate::limiter::Limiter; }",
        "#[derive(crate::limiter::Limiter)] struct S;",
        "use crate as us; use us::limiter::Limiter;",
        "#[cfg(not(test))] use crate::limiter::Limiter;",
        "#[cfg(any(test, feature = \"x\"))] use crate::limiter::Limiter;",
        "#[cfg(test)] mod tests { fn a() {} } use crate::limiter::Limiter;",
        "impl crate::limiter::Limiter { fn f() {} }",
    ] {
        let found =
            find(&[("engine/mod.rs", text), ("limiter/mod.rs", "pub struct Limiter; pub const NAME: &str = \"\";")]);
        assert!(found.keys().eq(["engine imports limiter"]), "{text}: {found:#?}");
    }
}

#[test]
fn rooms_of_the_engine_import_those_before_them() {
    let engine = ("engine/mod.rs", "pub mod charging; pub mod limit;");
    let down = [
        engine,
        ("engine/charging/mod.rs", "use crate::engine::limit::Limit;"),
        ("engine/limit/mod.rs", "pub struct Limit;"),
    ];
    check(&down, &[]);
    let up =
        [engine, ("engine/limit/mod.rs", "use super::charging::Plan;"), ("engine/charging/mod.rs", "pub struct Plan;")];
    check(&up, &["engine/limit imports engine/charging"]);
}

#[test]
fn a_re_export_does_not_hide_a_file() {
    check(
        &[
            ("limiter/mod.rs", "pub use crate::http::Stream;"),
            ("http/mod.rs", "mod stream; pub use stream::Stream;"),
            ("http/stream.rs", "pub struct Stream;"),
        ],
        &["limiter imports http"],
    );
    check(
        &[
            ("store/mod.rs", "use crate::engine::Header;"),
            ("engine/mod.rs", "pub use crate::message::Header;"),
            ("message/mod.rs", "pub struct Header;"),
        ],
        &["store imports message"],
    );
}

#[test]
fn modules_that_are_not_on_the_map_may_import_nothing() {
    check(
        &[
            ("lib.rs", "mod engine; mod extra; mod clock; mod http; mod limiter; mod message; mod store;"),
            ("extra.rs", "use crate::engine::Limit;"),
            ("engine/mod.rs", "pub struct Limit;"),
        ],
        &["extra imports engine"],
    );
}

#[test]
fn the_binary_imports_the_library_by_its_name() {
    check(
        &[("main.rs", "fn main() { weir::store::run() }"), ("store/mod.rs", "pub fn run() {}")],
        &["main imports store"],
    );
}

#[test]
fn test_code_is_skipped() {
    for text in [
        "#[cfg(test)] mod tests { use crate::limiter::Limiter; }",
        "#[cfg(test)] use crate::limiter::Limiter;",
        "#[cfg(any(test, fuzzing))] mod properties { use crate::limiter::Limiter; }",
        "#[cfg(all(test, feature = \"x\"))] fn f() { crate::limiter::run() }",
        "struct S; impl S { #[cfg(test)] fn f() { crate::limiter::run() } }",
        "struct S { #[cfg(test)] limiter: crate::limiter::Limiter }",
        "fn f() { #[cfg(test)] let x = crate::limiter::run(); }",
        "/// See [`crate::limiter::Limiter`].\npub(in crate::engine) fn f() {}",
    ] {
        check(&[("engine/mod.rs", text), ("limiter/mod.rs", "pub struct Limiter; pub fn run() {}")], &[]);
    }
    let file = [
        ("engine/mod.rs", "#[cfg(test)] mod tests;"),
        ("engine/tests.rs", "use crate::limiter::Limiter;"),
        ("limiter/mod.rs", "pub struct Limiter;"),
    ];
    check(&file, &[]);
}

#[test]
fn crates_are_named_in_their_places_only() {
    check(&[("http/mod.rs", "use h2::server; use tokio::time;"), ("store/redis.rs", ""), ("store/mod.rs", "")], &[]);
    for (text, name) in [
        ("use h2::server::Connection;", "h2"),
        ("use {std::fmt, h2 as http2};", "h2"),
        ("use ::httparse::Request;", "httparse"),
        ("type T = tokio_rustls::TlsStream<()>;", "tokio_rustls"),
        ("fn f() { prometheus::gather(); }", "prometheus"),
        ("fn f() { tracing::info!(\"x\"); }", "tracing"),
        ("use tokio::sync; fn f() { sync::channel() }", "tokio"),
        ("#[derive(redis::FromRedisValue)] struct S;", "redis"),
        ("use std::time::{Duration, Instant};", "std::time::Instant"),
        ("use std::time; fn f() { time::SystemTime::now(); }", "std::time::SystemTime"),
        ("use jiff::Timestamp as T; fn f() { T::now(); }", "jiff::Timestamp::now"),
    ] {
        check(&[("engine/mod.rs", text)], &[&format!("engine/mod.rs names {name}")]);
    }
}

#[test]
fn modules_and_variables_with_the_name_of_a_crate_are_no_crates() {
    check(
        &[
            (
                "store/mod.rs",
                "mod redis; use redis::Link; fn f(redis: &Link) { redis.call(); g!(redis, x.redis::<u8>()); }",
            ),
            ("store/redis/mod.rs", "use redis::Client; pub struct Link;"),
        ],
        &[],
    );
}

#[test]
fn parts_of_a_layer_may_be_kept_apart() {
    check(
        &[
            ("http/mod.rs", "mod http1; mod upstream;"),
            ("http/http1/mod.rs", "use super::upstream::Pool;"),
            ("http/upstream/mod.rs", "mod pool; pub use pool::Pool;"),
            ("http/upstream/pool.rs", "pub struct Pool;"),
        ],
        &["http/http1 imports http/upstream"],
    );
}

#[test]
fn a_cycle_between_folders_is_found_with_its_lines() {
    let found = find(&[
        ("http/mod.rs", "mod http1; mod tls;"),
        ("http/http1/mod.rs", "pub mod client; pub mod head;"),
        ("http/http1/client.rs", "use super::head::Head;\npub struct Client;"),
        ("http/http1/head.rs", "\nuse super::super::tls::Tls;\npub struct Head;"),
        ("http/tls.rs", "\n\nfn f() {\n    crate::http::http1::client::Client\n}\npub struct Tls;"),
    ]);
    let places: Vec<&str> = found["cycle in http"].iter().map(String::as_str).collect();
    let expected = [
        " 1. src/http/http1/head.rs:2 imports http/tls.rs",
        " 2. src/http/tls.rs:4 imports http/http1/client.rs",
        " 3. src/http/http1/client.rs:1 imports http/http1/head.rs",
    ];
    assert_eq!(places[..3], expected, "{found:#?}");
}

#[test]
fn a_parent_and_its_child_make_a_cycle_if_each_uses_the_other() {
    let child = ("http/http1/mod.rs", "use super::Limits; pub struct Server; pub fn f(_: Limits) {}");
    check(
        &[("http/mod.rs", "mod http1; pub struct Limits; fn f() -> http1::Server { todo!() }"), child],
        &["cycle in http"],
    );
    // The same parent as `http.rs`.
    check(
        &[("http.rs", "mod http1; use http1::Server; pub struct Limits; fn f() -> Server { todo!() }"), child],
        &["cycle in http"],
    );
    // Declaring a child and passing its names on is no use of them, and a name that comes back through the parent leads to the
    // file that defines it.
    check(&[("http/mod.rs", "mod http1; pub use http1::Server; pub struct Limits;"), child], &[]);
    check(
        &[
            ("http/mod.rs", "mod http1; mod tls; pub use http1::Server; pub use tls::Tls;"),
            (
                "http/http1/mod.rs",
                "use super::Tls; use crate::http; pub struct Server; pub fn f() -> http::Tls { Tls }",
            ),
            ("http/tls.rs", "pub struct Tls;"),
        ],
        &[],
    );
}

#[test]
fn a_cycle_within_a_folder_passes() {
    check(
        &[
            ("http/mod.rs", "mod a; mod b;"),
            ("http/a.rs", "use super::b::B; pub struct A;"),
            ("http/b.rs", "use super::a::A; pub struct B;"),
        ],
        &[],
    );
}

#[test]
fn long_files_and_functions_are_found_without_their_tests() {
    let lines = |count: usize| "\n".repeat(count);
    let function = |count: usize| format!("fn long() {{{}}}", lines(count - 1));
    check(&[("engine/mod.rs", &lines(400))], &[]);
    check(&[("engine/mod.rs", &lines(401))], &["engine/mod.rs has more than 400 lines"]);
    check(&[("engine/mod.rs", &format!("#[cfg(test)]\nmod tests {{ {} }}", lines(500)))], &[]);
    check(&[("engine/mod.rs", &function(70))], &[]);
    check(&[("engine/mod.rs", &function(71))], &["long in engine/mod.rs has more than 70 lines"]);
    let method = format!("struct S; impl S {{ {} }}", function(71));
    check(&[("engine/mod.rs", &method)], &["long in engine/mod.rs has more than 70 lines"]);
    check(&[("engine/mod.rs", &format!("#[cfg(test)] mod tests {{ {} }}", function(71)))], &[]);
    let file =
        [("engine/mod.rs", "#[cfg(any(test, fuzzing))] mod properties;"), ("engine/properties.rs", &*lines(500))];
    check(&file, &[]);
}

#[test]
fn a_broad_name_stands_for_types_of_one_module() {
    let engine = ("engine/mod.rs", "pub mod limit; pub struct State;");
    let of_engine = ("engine/limit/mod.rs", "enum State {} impl std::ops::Deref for Limit { type Target = State; }");
    check(&[engine, of_engine, ("store/mod.rs", "struct NodeState; #[cfg(test)] mod tests { struct State; }")], &[]);
    for text in [
        "struct State;",
        "type State = u8;",
        "fn f() { enum State {} }",
        "mod node { pub struct State; }",
        "labels! { pub enum State { Up } }",
    ] {
        check(&[engine, of_engine, ("store/mod.rs", text)], &["State names types of 2 modules"]);
    }
    let deref = "impl std::ops::Deref for Store { type Target = u8; } struct Store;";
    check(&[("store/mod.rs", deref), ("http/mod.rs", "pub struct Target;")], &[]);
}

#[test]
fn one_word_stands_for_one_thing() {
    for text in ["pub struct Ruling;", "type Ruling = u8;", "mod inner { enum Ruling {} }"] {
        check(&[("limiter/mod.rs", text)], &["Ruling is another word for a verdict"]);
    }
    // A variant is no type: Redis answers ASK.
    check(&[("store/mod.rs", "enum Redirect { Ask { node: String } }")], &[]);
}
