//! Overrides by URL: in force from the start, polled, and none but good ones.

use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::done;
use crate::support::becomes;
use crate::support::binary;
use crate::support::upstream::Upstream;
use crate::support::weir::Weir;

const RULES: &str = "limits: { PerKey: { by: { header: x-key }, burst: 1 } }";

/// A server of overrides, and its answer.
struct Server {
    upstream: Upstream,
    answer: Arc<Mutex<String>>,
}

/// An answer with a validator, which the server answers with 304 if the client has it.
fn good(text: &str) -> String {
    format!("HTTP/1.1 200 OK\r\netag: \"{}\"\r\ncontent-length: {}\r\n\r\n{text}", text.len(), text.len())
}

impl Server {
    fn start(answer: String) -> Self {
        let answer = Arc::new(Mutex::new(answer));
        let given = answer.clone();
        let upstream = Upstream::answering(move |request| {
            let answer = given.lock().unwrap().clone();
            match request.header("if-none-match") {
                Some(known) if answer.contains(&format!("etag: {known}\r\n")) => {
                    "HTTP/1.1 304 Not Modified\r\n\r\n".to_owned()
                }
                _ if request.header("authorization") != Some("Bearer s3cret") => {
                    "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n".to_owned()
                }
                _ => answer,
            }
        });
        Self { upstream, answer }
    }

    fn url(&self) -> String {
        format!("http://{}/overrides.yaml", self.upstream.address)
    }

    fn set(&self, answer: String) {
        *self.answer.lock().unwrap() = answer;
    }
}

/// A gateway that keeps its copies in `cache`.
fn serve(url: &str, cache: &Path) -> Weir {
    let token = cache.join("token");
    std::fs::write(&token, "s3cret\n").unwrap();
    let (cache, token) = (cache.to_str().unwrap(), token.to_str().unwrap());
    let flags =
        ["--overrides", url, "--overrides-cache", cache, "--overrides-interval", "1s", "--overrides-token-file", token];
    Weir::serve(RULES, &flags)
}

/// The tokens of an untouched bucket.
fn burst(weir: &Weir, key: &str) -> Value {
    done(weir, "GET", &format!("/buckets/PerKey:{key}"), "")["windows"][0]["remaining"].clone()
}

fn fetches(weir: &Weir, result: &str) -> u64 {
    weir.metric(&format!("weir_overrides_fetches_total{{result=\"{result}\"}}"))
}

#[test]
fn overrides_of_a_url_are_in_force_from_the_start_and_polled() {
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start(good("PerKey:a: { burst: 5 }\n"));
    let weir = serve(&server.url(), cache.path());
    assert_eq!((burst(&weir, "a"), burst(&weir, "b")), (json!(5), json!(1)));
    becomes("nothing has changed", 1, || fetches(&weir, "unchanged").min(1));
    assert_eq!(fetches(&weir, "changed"), 1);
    server.set(good("PerKey:a: { burst: 50 }\nPerKey:b: { burst: 7 }\n"));
    becomes("the new ones", 50, || burst(&weir, "a").as_u64().unwrap());
    assert_eq!(burst(&weir, "b"), 7);

    let explained = done(&weir, "GET", "/buckets/PerKey:b", "")["given_by"]["place"].clone();
    assert_eq!(explained, json!(format!("{}:2", server.url())));
}

#[test]
fn the_last_good_overrides_stay_whatever_the_server_does() {
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start(good("PerKey:a: { burst: 5 }\n"));
    let weir = serve(&server.url(), cache.path());
    let answer = |body: &str| format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    for (answer, result, log) in [
        (answer("PerKey:a: { burst: five }\n"), "broken", "`five` is not a whole number"),
        (answer("limits: {}\n"), "broken", "without this key"),
        (answer("a: &a [*a, *a]\n"), "broken", "aliases"),
        (
            "HTTP/1.1 302 Found\r\nlocation: file:///etc/passwd\r\ncontent-length: 0\r\n\r\n".into(),
            "failure",
            "redirects",
        ),
        ("HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n".into(), "failure", "got 500"),
        ("not HTTP\r\n\r\n".into(), "failure", "cannot fetch"),
    ] {
        let before = fetches(&weir, result);
        server.set(answer);
        becomes(log, 1, || (fetches(&weir, result) - before).min(1));
        weir.until_logged(log);
        assert_eq!((burst(&weir, "a"), weir.metric("weir_overrides_failing")), (json!(5), 1), "{log}");
        assert_eq!(weir.get("/", &[("x-key", log)]).status(), 200, "requests go on");
    }
    let address = server.upstream.address;
    drop(server);
    let later = serve(&format!("http://{address}/overrides.yaml"), cache.path());
    assert_eq!((burst(&later, "a"), fetches(&later, "failure") > 0), (json!(5), true), "the copy survives a restart");
}

#[test]
fn without_a_copy_the_limits_hold_and_other_commands_say_so() {
    let cache = tempfile::tempdir().unwrap();
    let url = "http://127.0.0.1:1/overrides.yaml";
    let weir = serve(url, cache.path());
    assert_eq!((burst(&weir, "a"), weir.metric("weir_overrides_failing")), (json!(1), 1));
    let cache = cache.path().to_str().unwrap();
    let limits = weir.limits_file();
    let limits = limits.to_str().unwrap();
    let check = |flags: &[&str]| {
        let output = binary::run(&[&["check", limits], flags].concat());
        (output.code, output.err)
    };
    let (code, told) = check(&["--overrides", url]);
    assert!(code == Some(2) && told.contains("add --overrides-cache DIRECTORY"), "{told}");
    let (code, told) = check(&["--overrides", url, "--overrides-cache", cache]);
    assert!(code == Some(0) && told.contains("`weir serve` has not fetched these overrides yet"), "{told}");
    let (code, told) = check(&["--overrides", "file:///etc/passwd", "--overrides-cache", cache]);
    assert!(code == Some(2) && told.contains("must begin with `https://` or `http://`"), "{told}");
    let (code, told) = check(&["--overrides", url, "--overrides-cache", "/nonexistent"]);
    assert!(code == Some(2) && told.contains("not a directory; create it"), "{told}");
}
