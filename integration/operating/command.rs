//! `weir bucket`, as an operator runs it.

use super::{LIMITS, TOKEN, each_store, spend};
use crate::support::binary;
use crate::support::process::{Finished, finish, free_port};
use crate::support::weir::Weir;

fn run(words: &[&str], environment: &[(&str, &str)]) -> Finished {
    finish(binary::command(&["bucket"]).args(words).envs(environment.iter().copied()))
}

#[test]
fn an_operator_looks_and_changes() {
    each_store(|store, _| {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokens");
        std::fs::write(&file, format!("alice {TOKEN}\n")).unwrap();
        let file = file.to_str().unwrap();
        let weir = Weir::serve(LIMITS, &[&["--admin-token-file", file], store].concat());
        let admin = format!("http://{}", weir.admin);
        let environment = [("WEIR_ADMIN", admin.as_str()), ("WEIR_ADMIN_TOKEN_FILE", file)];
        let good = |words: &[&str]| {
            let Finished { code, out, err } = run(words, &environment);
            assert_eq!((code, err.as_str()), (Some(0), ""), "{words:?}: {out}");
            out
        };
        crate::support::eventually("the store is there", || match run(&["get", "Even:7"], &environment) {
            Finished { code: Some(0), .. } => Ok(()),
            other => Err(other),
        });
        assert!(spend(&weir, "/log", &[("x-id", "7")]));
        let page = "Log:7\n  allows                      remaining  used  fits    full\n  \
                    sliding_log, 10 in any 10h          9     1   now  in 10h\n";
        assert_eq!(good(&["get", "Log:7"]), page);
        assert!(good(&["set", "Log:7", "--remaining", "2"]).contains("          2     8   now  in 10h\n"));
        assert!(good(&["refund", "Log:7", "--cost", "3"]).contains("          5     5   now  in 10h\n"));
        assert!(good(&["reset", "Log:7"]).contains("         10     0   now   now\n"));
        let blocked = good(&["block", "Log:7", "--for", "90m", "--reason", "scraping"]);
        assert!(
            blocked.contains("  blocked   until 20") && blocked.contains("1h 30m left, by alice: scraping\n"),
            "{blocked}"
        );
        assert!(!spend(&weir, "/log", &[("x-id", "7")]));
        assert!(good(&["blocks"]).starts_with("Log:7  until 20"));
        let list: serde_json::Value = serde_json::from_str(&good(&["blocks", "--json"])).unwrap();
        assert_eq!(list["blocks"][0]["by"], "alice");
        good(&["unblock", "Log:7"]);
        assert!(spend(&weir, "/log", &[("x-id", "7")]));
        assert_eq!(good(&["blocks"]), "nothing is blocked\n");
        let state: serde_json::Value = serde_json::from_str(&good(&["get", "Even:partner", "--json"])).unwrap();
        assert_eq!(state["windows"][0]["remaining"], 50);
    });
}

#[test]
fn exit_codes_say_whose_fault_it_is() {
    let weir = Weir::serve(LIMITS, &["--admin-token", TOKEN]);
    let (admin, proxy) = (weir.admin.to_string(), weir.proxy.to_string());
    let nobody = format!("127.0.0.1:{}", free_port());
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty");
    std::fs::write(&empty, "# nothing\n").unwrap();
    let empty = empty.to_str().unwrap();
    for (words, expected, part) in [
        (&["get", "Even:7", "--admin", &admin][..], 0, ""),
        (&["--admin", &admin, "get", "Evne:7"], 1, "error: there is no limit `Evne`; did you mean `Even`?\n"),
        (&["get", "Even", "--admin", &admin], 1, "it is missing"),
        (&["reset", "Even:7", "--admin", &admin], 1, "TOKEN` (--admin-token, --admin-token-file)"),
        (&["reset", "Even:7", "--admin", &admin, "--admin-token", "wrong"], 1, "unknown token"),
        (&["reset", "Even:7", "--admin", &admin, "--admin-token", TOKEN], 0, ""),
        (
            &["set", "Even:7", "--remaining", "11", "--admin", &admin, "--admin-token", TOKEN],
            1,
            "`remaining` must be at most 10",
        ),
        (&["get", "Even:7", "--admin", &nobody], 3, "cannot reach the admin listener at 127.0.0.1:"),
        (&["get", "Even:7", "--admin", &proxy], 3, "is not an admin listener's"),
        (&["get", "Even:7", "--admin", "ftp://a"], 2, "only http:// and https:// are supported"),
        (&["get", "Even:7", "--admin-token-file", "/nowhere"], 2, "--admin-token-file `/nowhere`"),
        (&["get", "Even:7", "--admin-token-file", empty], 2, "the file has no token"),
        (&["get", "Even:7", "--admin-token-file", empty, "--admin-token", "x"], 2, "cannot be combined"),
        (&["block", "Even:7", "--for", "90"], 2, "has no unit"),
        (&["block", "Even:7"], 2, "--for"),
        (&["forget", "Even:7"], 2, "forget"),
    ] {
        let finished = run(words, &[]);
        assert_eq!(finished.code, Some(expected), "{words:?}: {}", finished.text());
        assert!(finished.err.contains(part), "{words:?}: {}", finished.err);
    }
    let serve = binary::fails_to_serve(LIMITS, &["--admin-token-file", empty]);
    assert_eq!(serve.code, Some(2), "{}", serve.err);
}
