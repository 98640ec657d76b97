//! Gateways with their own limits beside Weir with the import of them: verdict for verdict.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};
use socket2::{Domain, Socket, Type};

use crate::support::becomes;
use crate::support::binary::run_in;
use crate::support::process::{Process, on_free_port};
use crate::support::programs::{Program, repository};
use crate::support::upstream::{Upstream, ok};
use crate::support::weir::Weir;
use crate::support::wire::Wire;

/// Requests of a case: each kind of them is answered alike by both, or compared as said.
enum Ask {
    /// One after the other; their verdicts are compared in order.
    Each(usize, &'static str),
    /// Answered by the gateway itself. What it and Weir count of them shows in later ones.
    Uncounted(usize, &'static str),
    /// All at once; how many pass is compared.
    Together(usize, &'static str),
    /// Each stays in flight until all of these are there; the verdicts are compared in order.
    Held(usize, &'static str),
}

use Ask::{Each, Held, Together, Uncounted};

struct Beside {
    program: Program,
    /// In integration/cases/import/beside. `LISTEN` and `UPSTREAM` in it stand for addresses.
    file: &'static str,
    asks: &'static [Ask],
}

const fn nginx(file: &'static str, asks: &'static [Ask]) -> Beside {
    Beside { program: Program::Nginx, file, asks }
}

const NGINX: &[Beside] = &[
    nginx(
        "burst.conf",
        &[
            Each(5, "GET /"),
            Each(2, "GET /x from=127.0.0.2"),
            Each(7, "POST /api/a"),
            Each(2, "GET /api?b"),
            Each(2, "GET /api/ from=127.0.0.3"),
        ],
    ),
    nginx("no-burst.conf", &[Each(2, "GET /"), Each(2, "GET / from=127.0.0.4")]),
    nginx(
        "prefixes.conf",
        &[
            Each(3, "GET /api"),
            Each(3, "GET /apix/y"),
            Each(3, "GET /folder/a"),
            Each(3, "GET /folder2"),
            Each(3, "GET //%61pi/./z"),
        ],
    ),
    nginx(
        "precedence.conf",
        &[
            Each(2, "GET /exact"),
            Each(2, "GET /exact/more"),
            Each(2, "GET /static/a.php"),
            Each(3, "GET /a.php"),
            Each(2, "GET /images/b.JPG"),
            Each(2, "GET /images/c.txt"),
            Each(3, "GET /d"),
        ],
    ),
    nginx(
        "header.conf",
        &[
            Each(4, "GET / x-api-key=a"),
            Each(3, "GET / x-api-key=b"),
            Each(3, "GET /"),
            Each(3, "GET / from=127.0.0.2"),
        ],
    ),
    nginx(
        "whitelist.conf",
        &[
            Each(3, "GET /"),
            Each(5, "GET / from=127.0.0.9"),
            Each(3, "GET / from=127.0.8.1"),
            Each(5, "GET / from=127.0.8.9"),
        ],
    ),
    nginx(
        "nested-networks.conf",
        &[
            Each(3, "GET /"),
            Each(3, "GET / from=127.0.0.2"),
            Each(3, "GET / from=127.0.0.3"),
            Each(3, "GET / from=127.0.0.9"),
        ],
    ),
    nginx("dry-run-inside.conf", &[Each(3, "GET /tried"), Each(3, "GET / from=127.0.0.2")]),
    nginx("methods.conf", &[Each(4, "GET /"), Each(4, "POST /"), Each(2, "PUT /"), Each(3, "DELETE /")]),
    nginx(
        "agents.conf",
        &[
            Each(3, "GET / user-agent=GoodBot/2"),
            Each(3, "GET / user-agent=Mozilla"),
            Each(3, "GET / user-agent=spider from=127.0.0.2"),
            Each(3, "GET /"),
        ],
    ),
    nginx(
        "servers.conf",
        &[
            Each(3, "GET / host=a.example"),
            Each(4, "GET / host=x.b.example"),
            Each(4, "GET / host=www.x.b.example"),
            Each(3, "GET / host=c.example"),
            Each(3, "GET / host=b.example"),
            Each(3, "GET / host=A.EXAMPLE:80 from=127.0.0.2"),
        ],
    ),
    nginx("delay.conf", &[Together(6, "GET /all"), Together(6, "GET /some"), Together(6, "GET /none")]),
    nginx(
        "in-flight.conf",
        &[Held(4, "GET /"), Held(2, "GET / from=127.0.0.2"), Held(3, "GET /big"), Each(3, "GET /")],
    ),
    nginx("dry-run.conf", &[Each(4, "GET /"), Each(3, "GET /enforced")]),
    nginx(
        "tenants.conf",
        &[
            Each(3, "GET / x-tenant=a"),
            Each(3, "GET / x-tenant=b"),
            Each(3, "GET /"),
            Each(3, "GET / x-tenant=a from=127.0.0.2"),
        ],
    ),
    nginx("several.conf", &[Each(4, "GET /a"), Each(3, "GET /b"), Each(3, "GET /c from=127.0.0.2")]),
    nginx(
        "answered.conf",
        &[Each(4, "GET /health"), Each(3, "GET /inner/deep/x"), Each(3, "GET /inner/y"), Each(3, "GET /z")],
    ),
    nginx(
        "inherited.conf",
        &[
            Each(4, "GET /"),
            Each(3, "GET /open/x host=b.example from=127.0.0.2"),
            Each(2, "GET /x host=b.example from=127.0.0.2"),
            Each(4, "GET /open/answered/x host=b.example from=127.0.0.6"),
            Each(3, "GET /open/y host=b.example from=127.0.0.6"),
            Each(3, "GET /old/keep/x host=c.example from=127.0.0.3"),
            Each(3, "GET /old/x host=c.example from=127.0.0.3"),
            Each(3, "GET / host=d.example from=127.0.0.4"),
            Each(4, "GET /api/x host=e.example from=127.0.0.5"),
            Each(3, "GET /api/health host=e.example from=127.0.0.5"),
        ],
    ),
    nginx(
        "locations.conf",
        &[
            Each(2, "GET /"),
            Each(3, "GET /x"),
            Each(3, "GET /inside/x.php"),
            Each(4, "GET /inside/y.php"),
            Each(3, "GET /raw/a.php from=127.0.0.2"),
            Each(4, "GET /raw/not/a.php from=127.0.0.2"),
            Each(3, "GET /slash/"),
            Each(2, "GET /v/x"),
            Each(5, "GET /{v}/x"),
            Each(3, "GET /a%20b%20"),
            Each(3, "GET /a%20b%2520"),
            Each(3, "GET /within/upload host=c.example"),
            Each(3, "GET /upload host=c.example"),
            Each(4, "GET /z host=b.example"),
        ],
    ),
    nginx(
        "names.conf",
        &[
            Each(3, "GET / host=www.a.example"),
            Each(3, "GET / host=y.a.example"),
            Each(2, "GET / host=other.example from=127.0.0.2"),
            Each(3, "GET / host=x.b.c.example"),
            Each(3, "GET / host=y.b.c.example"),
            Each(2, "GET / host=y.c.example from=127.0.0.2"),
        ],
    ),
    nginx(
        "slashes.conf",
        &[
            Each(3, "GET /login/"),
            Each(3, "GET /register/x from=127.0.0.2"),
            Each(2, "GET /API/"),
            Each(2, "GET /api/x/y from=127.0.0.2"),
            Each(2, "GET /a%20b/"),
            Each(2, "GET /%C3%A9 from=127.0.0.2"),
            Each(3, "GET /static/"),
            Each(2, "GET /admin/ from=127.0.0.3"),
            Each(3, "GET /logins from=127.0.0.4"),
        ],
    ),
    nginx(
        "methods-by-regex.conf",
        &[
            Each(3, "GET /write"),
            Each(2, "HEAD /write"),
            Each(3, "POST /write"),
            Each(3, "GET /read"),
            Each(3, "PUT /read"),
        ],
    ),
    nginx("patterns.conf", &[Each(3, "GET /"), Each(3, "GET / host=other.example")]),
    nginx(
        "empty.conf",
        &[
            Each(2, "GET /text x-key=1"),
            Each(2, "GET /text"),
            Each(2, "GET /text x-key= from=127.0.0.2"),
            Each(2, "GET /two x-a=1 x-b=2"),
            Each(2, "GET /two x-a=1"),
            Each(2, "GET /two x-a=1 x-b="),
            Each(2, "GET /two x-b=9"),
            Each(2, "GET /two"),
            Each(2, "GET /two x-a= x-b="),
            Each(2, "GET /headers x-a=1 x-b=2"),
            Each(2, "GET /headers x-a= x-b=3"),
            Each(2, "GET /headers x-a=4"),
            Each(3, "GET /headers"),
            Each(2, "GET /key x-key="),
            Each(2, "GET /key"),
            Each(2, "GET /key x-key=k"),
            Each(3, "GET /kind x-kind=FREE"),
            Each(3, "GET /kind x-kind="),
            Each(3, "GET /kind"),
            Each(2, "GET /kind x-kind=paid"),
            Each(2, "GET /robot from=127.0.0.2"),
            Each(2, "GET /robot user-agent=curl/8"),
            Each(3, "GET /robot user-agent=x"),
        ],
    ),
    nginx(
        "maps.conf",
        &[
            Each(3, "GET /bytes"),
            Each(2, "GET /network"),
            Each(3, "GET /network from=127.0.0.9"),
            Each(3, "GET /path/OPEN"),
            Each(2, "GET /path/x"),
            Each(3, "POST /method"),
            Each(2, "GET /method"),
            Each(3, "GET /placed from=127.0.0.9"),
            Each(2, "GET /placed"),
            Each(2, "GET /placed from=127.0.0.3"),
            Each(3, "GET /text x=foo"),
            Each(2, "GET /text x=fox"),
            Each(3, "GET /arg_k?k=1"),
            Each(2, "GET /arg_k y=b"),
            Each(2, "POST /login"),
            Each(2, "GET /login"),
        ],
    ),
    nginx("by-server.conf", &[Each(3, "GET /"), Each(5, "GET / host=b.example")]),
];

const fn haproxy(file: &'static str, asks: &'static [Ask]) -> Beside {
    Beside { program: Program::Haproxy, file, asks }
}

const HAPROXY: &[Beside] = &[
    haproxy("by-address.cfg", &[Each(5, "GET /"), Each(5, "GET /a from=127.0.0.2"), Each(2, "GET /b")]),
    haproxy(
        "paths.cfg",
        &[
            Each(4, "GET /api/a"),
            Each(4, "GET /apix"),
            Each(4, "GET /"),
            Each(4, "POST /login"),
            Each(4, "GET /login from=127.0.0.2"),
        ],
    ),
    haproxy("key.cfg", &[Each(4, "GET / x-api-key=a"), Each(4, "GET / x-api-key=b"), Each(4, "GET /")]),
    haproxy(
        "backends.cfg",
        &[
            Each(4, "GET / host=api.example"),
            Each(5, "GET / host=b.api.example"),
            Each(4, "GET /static/a host=api.example"),
            Each(4, "GET / host=other.example"),
        ],
    ),
    haproxy("looked-up.cfg", &[Each(5, "GET /"), Each(5, "GET / from=127.0.0.9"), Each(5, "GET / from=127.0.0.3")]),
    haproxy(
        "fallback.cfg",
        &[
            Each(3, "GET /keyed x-key=a"),
            Each(3, "GET /keyed x-key=b"),
            Each(3, "GET /"),
            Each(2, "GET /x from=127.0.0.2"),
        ],
    ),
    // Denied either way, and not counted.
    haproxy(
        "denied-before.cfg",
        &[Each(1, "GET /"), Uncounted(3, "GET /no"), Uncounted(3, "GET /moved"), Each(2, "GET /")],
    ),
    haproxy(
        "denied-by-another.cfg",
        &[
            Each(5, "GET /login from=127.0.0.66"),
            Each(1, "GET /login from=127.0.0.2"),
            Each(1, "GET /login from=127.0.0.3"),
            Each(1, "GET /login from=127.0.0.4"),
            Each(2, "GET /shared/a from=127.0.0.66"),
            Each(2, "GET /shared/b from=127.0.0.5"),
            Each(1, "GET /shared/c from=127.0.0.6"),
            Each(1, "GET /shared/d from=127.0.0.7"),
        ],
    ),
    haproxy(
        "backslashes.cfg",
        &[
            Each(1, "GET /a.php"),
            Each(4, "GET /xphp"),
            Each(4, "GET /item/12 from=127.0.0.2"),
            Each(4, "GET / user-agent=my-crawl/1 from=127.0.0.3"),
            Each(4, "GET / user-agent=crawler from=127.0.0.4"),
            Each(4, "GET / x-t=a-b from=127.0.0.5"),
        ],
    ),
    // TCP rules come before HTTP rules, and before the request is counted.
    haproxy(
        "tcp-rules.cfg",
        &[
            Each(5, "GET /closed from=127.0.0.2"),
            Each(4, "GET /counted from=127.0.0.3"),
            Each(4, "GET /looked-up from=127.0.0.4"),
        ],
    ),
    haproxy("other-actions.cfg", &[Each(2, "GET /changed"), Each(3, "GET /"), Each(5, "GET / from=127.0.0.2")]),
    haproxy(
        "answered.cfg",
        &[Uncounted(3, "GET /health"), Uncounted(3, "GET /no"), Uncounted(3, "GET /metrics"), Each(3, "GET /open")],
    ),
    haproxy(
        "same-counter.cfg",
        &[Each(5, "GET / x-key=a"), Each(1, "GET / x-key=b"), Each(4, "GET / x-key=c from=127.0.0.2")],
    ),
    haproxy(
        "values.cfg",
        &[
            Each(3, "GET / x-plan=other,free"),
            Each(3, "GET / x-plan=trial from=127.0.0.2"),
            Each(3, "GET / x-plan=freely from=127.0.0.3"),
            Each(3, "GET / x-beta=YES,no from=127.0.0.4"),
            Each(3, "GET / x-client=a,v1 from=127.0.0.5"),
            Each(3, "GET / x-client=v3 from=127.0.0.6"),
            Each(3, "GET / x-speed=SLOW from=127.0.0.7"),
            Each(3, "GET /a/b from=127.0.0.8"),
            Each(3, "GET /a/{id} from=127.0.0.9"),
        ],
    ),
    haproxy(
        "regexes.cfg",
        &[
            Each(3, "GET /users/"),
            Each(3, "GET /Admin/ from=127.0.0.3"),
            Each(3, "GET /api/v1/ from=127.0.0.4"),
            Each(3, "GET /a/inner/ from=127.0.0.5"),
            Each(3, "GET / user-agent=Mozilla,gecko from=127.0.0.6"),
            Each(3, "GET / user-agent=Mozilla/gecko from=127.0.0.7"),
        ],
    ),
    haproxy("in-flight.cfg", &[Held(4, "GET /"), Held(3, "GET / from=127.0.0.2"), Each(3, "GET /")]),
];

#[test]
fn haproxy_decides_as_the_import_of_its_configuration() {
    for case in HAPROXY {
        case.run("haproxy");
    }
}

#[test]
fn nginx_decides_as_the_import_of_its_configuration() {
    for case in NGINX {
        case.run("nginx");
    }
}

/// A gateway without limits of its own gets them: it asks Weir with the import of nginx' configuration.
#[test]
fn caddy_that_asks_weir_decides_as_nginx_did() {
    for case in NGINX.iter().filter(|case| ["burst.conf", "precedence.conf", "header.conf"].contains(&case.file)) {
        let holding = Holding::start();
        let folder = tempfile::tempdir().unwrap();
        let (nginx, _nginx) = start(Program::Nginx, case.file, &case.template(&holding), folder.path());
        let imported = run_in(folder.path(), &["import", "nginx", case.file]);
        let weir = Weir::serve(&imported.out, &["--check", "127.0.0.1:0", "--trusted-proxies", "127.0.0.1"]);
        let (check, upstream) = (weir.listener("check"), holding.upstream.address);
        let (caddy, _caddy) = on_free_port("caddy", |address| {
            let file = folder.path().join("Caddyfile");
            let asks = format!("forward_auth {check} {{\n uri /forward\n}}\nreverse_proxy {upstream}");
            std::fs::write(
                &file,
                format!(
                    "{{\n admin off\n}}\nhttp://:{} {{\n bind 127.0.0.1\n route {{\n{asks}\n}}\n}}\n",
                    address.port()
                ),
            )
            .unwrap();
            let mut command = Program::Caddy.command(&file);
            Some((address, Process::listening(command.stderr(Stdio::null()), address)?))
        });
        for ask in case.asks {
            let (theirs, ours) = (holding.verdicts(nginx, ask), holding.verdicts(caddy, ask));
            assert_eq!(ours, theirs, "{}: {}\n{}", case.file, ask.line(), imported.out);
        }
    }
}

/// An upstream that can hold its answers back.
pub(super) struct Holding {
    pub(super) upstream: Upstream,
    gate: Arc<(Mutex<bool>, Condvar)>,
    /// The requests that have arrived.
    arrived: Arc<AtomicUsize>,
}

impl Holding {
    pub(super) fn start() -> Self {
        let gate: Arc<(Mutex<bool>, Condvar)> = Arc::new((Mutex::new(true), Condvar::new()));
        let (seen, arrived) = (Arc::clone(&gate), Arc::new(AtomicUsize::new(0)));
        let counter = Arc::clone(&arrived);
        let upstream = Upstream::answering(move |_| {
            counter.fetch_add(1, Ordering::SeqCst);
            let mut is_open = seen.0.lock();
            while !*is_open {
                seen.1.wait(&mut is_open);
            }
            ok("upstream")
        });
        Self { upstream, gate, arrived }
    }

    fn open(&self, is_open: bool) {
        *self.gate.0.lock() = is_open;
        self.gate.1.notify_all();
    }
}

impl Beside {
    #[track_caller]
    fn run(&self, format: &str) {
        let holding = Holding::start();
        let folder = tempfile::tempdir().unwrap();
        let (address, _gateway) = start(self.program, self.file, &self.template(&holding), folder.path());
        let imported = run_in(folder.path(), &["import", format, self.file]);
        assert_eq!(imported.code, Some(0), "{}: {}", self.file, imported.text());
        let url = format!("http://{}", holding.upstream.address);
        let weir = Weir::serve(&imported.out, &["--upstream", &url]);
        for ask in self.asks {
            let (theirs, ours) = (holding.verdicts(address, ask), holding.verdicts(weir.proxy, ask));
            assert_eq!(ours, theirs, "{}: {}\n{}", self.file, ask.line(), imported.out);
            assert!(!theirs.is_empty());
        }
    }

    fn template(&self, holding: &Holding) -> String {
        let file = repository().join("integration/cases/import/beside").join(self.file);
        std::fs::read_to_string(file).unwrap().replace("UPSTREAM", &holding.upstream.address.to_string())
    }
}

/// Starts a gateway with a configuration, which is a file in this folder then.
pub(super) fn start(program: Program, name: &str, template: &str, folder: &Path) -> (SocketAddr, Process) {
    let file = folder.join(name);
    on_free_port(name, |address| {
        let path = folder.display();
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {path}/{kind}; "))
            .concat();
        let text = template.replace("LISTEN", &address.to_string()).replacen(
            "http {",
            &format!("pid {path}/pid;\nhttp {{\n{temporary}"),
            1,
        );
        std::fs::write(&file, text).unwrap();
        let mut command = program.command(&file);
        if program == Program::Nginx {
            command.args(["-g", "daemon off; master_process off; error_log stderr;"]).stderr(Stdio::null());
        }
        Some((address, Process::listening(&mut command, address)?))
    })
}

impl Ask {
    const fn line(&self) -> &'static str {
        let (Each(_, line) | Uncounted(_, line) | Together(_, line) | Held(_, line)) = self;
        line
    }
}

/// A request such as `GET /a host=b from=127.0.0.2 x-key=c`, sent from its address.
pub(super) fn send(to: SocketAddr, line: &str) -> Wire {
    let mut words = line.split(' ');
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let words: Vec<(&str, &str)> = words.map(|word| word.split_once('=').unwrap()).collect();
    let word = |name: &str| words.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
    let from: Ipv4Addr = word("from").unwrap_or("127.0.0.1").parse().unwrap();
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let mut wire = Wire::new(socket.into());
    let headers = words.iter().filter(|(name, _)| !["from", "host"].contains(name));
    let headers = headers.map(|(name, value)| format!("{name}: {value}\r\n")).collect::<Vec<_>>().concat();
    let length = if method == "GET" { "" } else { "content-length: 0\r\n" };
    let host = word("host").unwrap_or("a.example");
    wire.send(format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n{headers}{length}connection: close\r\n\r\n"));
    wire
}

impl Holding {
    /// Returns 1 for each request that passes and 0 for others, or the number of requests at once that pass.
    fn verdicts(&self, to: SocketAddr, ask: &Ask) -> Vec<usize> {
        // A connection that is closed without an answer is a denial.
        let passes = |mut wire: Wire| usize::from(wire.head().is_some_and(|head| head.status() == 200));
        match *ask {
            Each(number, line) => (0..number).map(|_| passes(send(to, line))).collect(),
            Uncounted(number, line) => {
                (0..number).for_each(|_| drop(send(to, line).response()));
                vec![0]
            }
            Together(number, line) => {
                let all: Vec<Wire> = (0..number).map(|_| send(to, line)).collect();
                vec![all.into_iter().map(passes).sum()]
            }
            Held(number, line) => {
                self.open(false);
                let before = self.arrived.load(Ordering::SeqCst);
                let mut held = 0;
                let wires: Vec<(Wire, bool)> = (0..number)
                    .map(|_| {
                        let wire = send(to, line);
                        becomes("it is in flight or answered", true, || {
                            self.arrived.load(Ordering::SeqCst) > before + held || is_answered(&wire)
                        });
                        let is_held = !is_answered(&wire);
                        held += usize::from(is_held);
                        (wire, is_held)
                    })
                    .collect();
                self.open(true);
                wires.into_iter().map(|(wire, is_held)| usize::from(is_held) * passes(wire)).collect()
            }
        }
    }
}

fn is_answered(wire: &Wire) -> bool {
    wire.stream.set_nonblocking(true).unwrap();
    let is_answered = wire.stream.peek(&mut [0]).is_ok();
    wire.stream.set_nonblocking(false).unwrap();
    is_answered
}
