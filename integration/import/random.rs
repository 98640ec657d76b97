//! Random configurations of nginx beside Weir with the import of them, request for request.

use std::fmt::Write as _;

use super::beside::{Holding, send, start};
use crate::support::binary::run_in;
use crate::support::programs::Program;
use crate::support::weir::Weir;

const CONFIGURATIONS: u64 = 40;

const REQUESTS: usize = 40;

/// Each zone is used in one place: nginx counts several together, which the import tells.
const KEYS: [&str; 12] = [
    "$binary_remote_addr",
    "$http_x_key",
    "$uri",
    "$request_method",
    "$binary_remote_addr$http_x_key",
    "$host",
    "$arg_k",
    "$cookie_k",
    "$by_header",
    "$by_path",
    "$by_host$arg_k",
    "$by_place",
];

const MAPS: &str = r#"
map $http_x_key $by_header { default $binary_remote_addr; "" ""; 1 ""; ~^3 $uri; }
map $uri $by_path { default ""; /a $binary_remote_addr; ~*\.php$ $host; ~^/d $http_x_key; }
map $host $by_host { default all; a.example ""; ~^x\. x; }
geo $place { default far; 127.0.0.2 near; }
map $place $by_place { near ""; default $request_method; }
"#;

const LOCATIONS: [&str; 9] = ["= /", "= /a", "/a", "/a/b", "^~ /a/c", "~ \\.php$", "~* ^/a/.*\\.txt$", "^~ /d", "/e"];

const NAMES: [&str; 5] = ["a.example", "*.b.example", "x.b.example", "b.example a.b.example", ".c.example"];

const PATHS: [&str; 12] =
    ["/", "/a", "/a/b", "/a/b/c.php", "/a/c/d.php", "/a/x.TXT", "/b.php", "/d", "/d/e.php", "/e", "/ab", "/f"];

const HOSTS: [&str; 7] =
    ["a.example", "x.b.example", "y.x.b.example", "b.example", "a.b.example", "c.example", "none.example"];

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % bound
    }

    fn is(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }

    fn of<'t>(&mut self, all: &[&'t str]) -> &'t str {
        all[self.below(all.len())]
    }
}

/// A configuration, its zones apart.
struct Configuration<'r> {
    random: &'r mut Random,
    zones: String,
    number: usize,
}

impl Configuration<'_> {
    /// `limit_req` with a zone of its own, or nothing.
    fn limit(&mut self, one_in: usize) -> String {
        if !self.random.is(one_in) {
            return String::new();
        }
        self.number += 1;
        let (number, key) = (self.number, self.random.of(&KEYS));
        let _ = writeln!(self.zones, "limit_req_zone {key} zone=z{number}:1m rate=1r/m;");
        let burst = self.random.below(3);
        let burst = if burst == 0 { String::new() } else { format!(" burst={burst} nodelay") };
        format!("limit_req zone=z{number}{burst}; ")
    }

    fn location(&mut self, name: &str) -> String {
        let limit = self.limit(2);
        format!("location {name} {{ {limit}proxy_pass http://UPSTREAM; }}\n")
    }

    fn server(&mut self, name: &str) -> String {
        let limit = self.limit(2);
        let mut all: Vec<&str> = LOCATIONS.into_iter().filter(|_| self.random.is(3)).collect();
        all.push("/");
        // nginx asks regular expressions in their order.
        if self.random.is(2) {
            all.reverse();
        }
        let locations: String = all.into_iter().map(|location| self.location(location)).collect();
        format!("server {{ listen LISTEN; server_name {name}; {limit}\n{locations}}}\n")
    }

    fn text(mut self) -> String {
        let limit = self.limit(4);
        let mut names: Vec<&str> = NAMES.into_iter().filter(|_| self.random.is(3)).collect();
        if names.is_empty() {
            names.push("_");
        }
        let servers: String = names.into_iter().map(|name| self.server(name)).collect();
        format!("events {{ worker_connections 256; }}\nhttp {{{MAPS}{}{limit}\n{servers}}}\n", self.zones)
    }
}

fn request(random: &mut Random) -> String {
    let method = random.of(&["GET", "GET", "GET", "POST"]);
    let (path, host) = (random.of(&PATHS), random.of(&HOSTS));
    let from = random.of(&["127.0.0.1", "127.0.0.1", "127.0.0.2"]);
    let argument = random.of(&["", "", "?k=1", "?k=2&k=1"]);
    let key = random.of(&["", "", " x-key=1", " x-key=2", " x-key=3a"]);
    let cookie = random.of(&["", "", " cookie=k=1", " cookie=k=2"]);
    format!("{method} {path}{argument} host={host} from={from}{key}{cookie}")
}

/// Returns whether standard error tells of nothing that decides.
fn is_silent(told: &str) -> bool {
    told.trim_end()
        .lines()
        .rev()
        .skip(1)
        .all(|line| line.ends_with("nothing in these files uses it where nginx counts."))
}

#[test]
fn nginx_decides_as_the_import_of_random_configurations() {
    let mut compared = 0;
    for seed in 0..CONFIGURATIONS {
        let random = &mut Random(seed);
        let text = Configuration { random, zones: String::new(), number: 0 }.text();
        let (holding, folder) = (Holding::start(), tempfile::tempdir().unwrap());
        let template = text.replace("UPSTREAM", &holding.upstream.address.to_string());
        let (nginx, _nginx) = start(Program::Nginx, "nginx.conf", &template, folder.path());
        let imported = run_in(folder.path(), &["import", "nginx", "nginx.conf"]);
        assert_eq!(imported.code, Some(0), "{text}\n{}", imported.text());
        if !is_silent(&imported.err) {
            continue;
        }
        compared += 1;
        let weir = Weir::serve(&imported.out, &["--upstream", &format!("http://{}", holding.upstream.address)]);
        let mut sent = String::new();
        for _ in 0..REQUESTS {
            let line = request(random);
            let [theirs, ours] = [nginx, weir.proxy].map(|to| send(to, &line).response().status() == 200);
            let _ = writeln!(sent, "{line}: {}", if theirs { "passes" } else { "denied" });
            assert_eq!(ours, theirs, "seed {seed}\n{sent}{text}\n{}", imported.out.split("\ntests:").next().unwrap());
        }
    }
    assert!(compared > CONFIGURATIONS / 2, "{compared} of {CONFIGURATIONS} imports tell of no difference");
}
