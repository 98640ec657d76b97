//! The ids that limits in shadow and candidates would deny, since they began.

use std::collections::BTreeMap;

use super::{TOKEN, ask_with, each_store};
use crate::support::eventually;
use crate::support::weir::Weir;
use crate::support::wire::{Message, Wire};

const LIMITS: &str = "\
limits:
  Even: { match: { path: /even }, by: { header: x-id }, burst: 1 }
  Log: { match: { path: /log }, by: [{ header: x-id }, ip], algorithm: sliding_log, count: 1, period: 10h, mode: shadow, missing: deny }
  Tried: { match: { path: /tried }, by: { header: x-id }, burst: 99, candidate: { burst: 1 } }
  Global: { match: { path: /global }, by: global, burst: 1, mode: shadow }
  Idle: { match: { path: /idle }, by: { header: x-id }, burst: 1, mode: shadow }
";

const COLUMNS: &str = "limit,denied_by,id,hash,denied,error,first,last,peak_denied,peak_denied_at,since";

/// A row by the names of its columns.
type Row = BTreeMap<String, String>;

fn serve(flags: &[&str]) -> Weir {
    let weir = Weir::serve(LIMITS, &[&["--workers", "2", "--admin-token", TOKEN], flags].concat());
    weir.until_connected();
    weir
}

fn impact(weir: &Weir, query: &str) -> Message {
    ask_with(weir, "GET", &format!("/impact.csv{query}"), &[], "")
}

fn rows(weir: &Weir, query: &str) -> Vec<Row> {
    let answer = impact(weir, query);
    assert_eq!((answer.status(), answer.header("content-type")), (200, Some("text/csv; charset=utf-8")), "{answer:?}");
    let mut reader = csv::Reader::from_reader(answer.text().as_bytes());
    let columns = reader.headers().unwrap().clone();
    assert_eq!(columns.iter().collect::<Vec<_>>().join(","), COLUMNS);
    let row =
        |record: csv::StringRecord| columns.iter().zip(&record).map(|(a, b)| (a.to_owned(), b.to_owned())).collect();
    reader.records().map(|record| row(record.unwrap())).collect()
}

/// `limit denied_by id denied error`
fn counts(weir: &Weir, query: &str) -> Vec<String> {
    let cells = |row: &Row| ["limit", "denied_by", "id", "denied", "error"].map(|name| row[name].clone()).join(" ");
    rows(weir, query).iter().map(cells).collect()
}

/// Sends requests of these ids, so many of each, on connections of both workers.
fn send(weir: &Weir, path: &str, ids: &[(&str, usize)]) {
    for (id, times) in ids {
        for _ in 0..*times {
            assert_eq!(weir.get(path, &[("x-id", id)]).status(), 200);
        }
    }
}

#[test]
fn who_would_be_denied_is_a_table_that_ends_with_the_others() {
    each_store(|store, name| {
        let weir = serve(store);
        send(&weir, "/log", &[("x:y", 2), ("=z", 4)]);
        for _ in 0..3 {
            assert_eq!(weir.get("/log", &[]).status(), 200, "{name}: it has no id");
            weir.get("/even", &[("x-id", "a")]);
        }
        send(&weir, "/tried", &[("a", 4), ("d", 2), ("e", 1)]);
        send(&weir, "/global", &[("a", 3), ("b", 1)]);
        let expected = [
            "Log shadow '=z:127.0.0.1 3 0",
            "Log shadow x%3Ay:127.0.0.1 1 0",
            "Log shadow (others) 3 0",
            "Tried candidate a 3 0",
            "Tried candidate d 1 0",
            "Tried candidate (others) 0 0",
            "Global shadow (all) 3 0",
            "Global shadow (others) 0 0",
            "Idle shadow (others) 0 0",
        ];
        assert_eq!(counts(&weir, ""), expected, "{name}");
        assert_eq!(counts(&weir, "?limit=Tried"), expected[3..6], "{name}");
        assert!(counts(&weir, "?limit=Even").is_empty(), "{name}: it is enforced");
        for row in rows(&weir, "").iter().filter(|row| row["id"] != "(others)") {
            assert!(row["since"] <= row["first"] && row["first"] <= row["last"], "{name}: {row:?}");
            assert!(
                row["peak_denied"].parse::<u32>().unwrap() >= 1 && row["peak_denied_at"].ends_with(":00Z"),
                "{row:?}"
            );
        }
    });
}

/// A spreadsheet would calculate the id of a limit by one part.
#[test]
fn ids_are_text_beside_the_hash_of_the_top_list() {
    let weir = serve(&[]);
    send(&weir, "/tried", &[("=HYPERLINK(\"x\")", 2)]);
    let rows = rows(&weir, "?limit=Tried");
    assert_eq!(rows[0]["id"], "'=HYPERLINK(\"x\")");
    let top = ask_with(&weir, "GET", "/top", &[], "");
    assert!(rows[0]["hash"].len() == 16 && top.text().contains(&rows[0]["hash"]), "{rows:?}, {top:?}");
    assert_eq!((rows[1]["id"].as_str(), rows[1]["hash"].as_str()), ("(others)", ""));
}

#[test]
fn the_rules_of_the_top_list_say_who_may_read_it() {
    let weir = serve(&[]);
    for (query, status, part) in
        [("?limit=Evn", 404, "there is no limit"), ("?n=1", 400, "unknown parameter `n`; there is `limit`")]
    {
        let answer = impact(&weir, query);
        assert!(answer.status() == status && answer.text().contains(part), "{query}: {answer:?}");
    }
    let silent = serve(&["--log-ids", "none"]);
    let answer = impact(&silent, "");
    assert!(answer.status() == 409 && answer.text().contains("--log-ids none"), "{answer:?}");

    let open = Weir::serve(LIMITS, &["--admin-token", TOKEN, "--admin", "0.0.0.0:0"]);
    let port = open.listener("admin").port();
    let ask = |headers: &str| {
        let mut wire = Wire::connect(([127, 0, 0, 1], port).into());
        wire.send(format!("GET /impact.csv HTTP/1.1\r\nhost: 127.0.0.1\r\n{headers}\r\n"));
        wire.response().status()
    };
    assert_eq!((ask(""), ask("authorization: Bearer no\r\n")), (401, 401));
    assert_eq!(ask(&format!("authorization: Bearer {TOKEN}\r\n")), 200);
}

#[test]
fn other_numbers_begin_a_new_list() {
    let weir = serve(&[]);
    send(&weir, "/log", &[("a", 2)]);
    send(&weir, "/tried", &[("a", 2)]);
    let before = rows(&weir, "");
    let since = |rows: &[Row], limit: &str| rows.iter().find(|row| row["limit"] == limit).unwrap()["since"].clone();
    let rules = LIMITS.replace("burst: 99, candidate: { burst: 1 }", "burst: 98, candidate: { burst: 2 }");
    std::fs::write(weir.limits_file(), rules).unwrap();
    weir.signal("HUP");
    eventually("the new rules are in force", || match counts(&weir, "?limit=Tried") {
        counts if counts == ["Tried candidate (others) 0 0"] => Ok(()),
        counts => Err(counts),
    });
    let after = rows(&weir, "");
    assert!(since(&after, "Tried") > since(&before, "Tried"), "{after:?}");
    assert_eq!(since(&after, "Log"), since(&before, "Log"));
    assert_eq!(counts(&weir, "?limit=Log"), ["Log shadow a:127.0.0.1 1 0", "Log shadow (others) 0 0"]);
}
