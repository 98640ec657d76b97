//! The requests and their answers, the same through every gateway. The rules are those of the examples.

/// One client's requests, in order. No other row has its address or key.
pub(super) struct Row {
    pub(super) what: &'static str,
    /// The client's address: one of loopback's, or any if a load balancer names it.
    pub(super) client: &'static str,
    pub(super) steps: &'static [Step],
}

#[derive(Clone, Copy)]
pub(super) struct Step {
    pub(super) method: &'static str,
    pub(super) target: &'static str,
    pub(super) host: &'static str,
    pub(super) headers: &'static [(&'static str, &'static str)],
    pub(super) body: &'static str,
    pub(super) told: Told,
}

/// The answer. Times are in seconds and those of a bucket that has refilled for a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    pub(super) status: u16,
    pub(super) retry_after: Option<u64>,
    /// The limits in `RateLimit-Policy`.
    pub(super) policies: &'static [Policy],
    /// The members of `RateLimit`: name, remaining, seconds until reset.
    pub(super) left: &'static [(&'static str, u64, u64)],
    /// The limits in the problem document of a denial.
    pub(super) violated: &'static [&'static str],
}

/// A limit in `RateLimit-Policy`: name, `q` and `w`.
pub(super) type Policy = (&'static str, u64, u64);

pub(super) const ADDRESS: Policy = ("RequestsPerAddress", 5, 300);
const LOGINS: Policy = ("LoginsPerAddress", 2, 600);
const KEY: Policy = ("RequestsPerKey", 3, 180);

/// The application's own headers where the path is [`OWN`].
const APPLICATION: Policy = ("Application", 9, 60);

/// The path where the application sets its own headers.
pub(super) const OWN: &str = "/own";

pub(super) const OWN_FIELDS: &str =
    "ratelimit-policy: \"Application\";q=9;w=60\r\nratelimit: \"Application\";r=8;t=7\r\n";

const fn passes(policies: &'static [Policy], left: &'static [(&'static str, u64, u64)]) -> Told {
    Told { status: 200, retry_after: None, policies, left, violated: &[] }
}

/// A denial by one limit.
const fn denied(
    retry_after: u64,
    policies: &'static [Policy],
    left: &'static [(&'static str, u64, u64)],
    violated: &'static [&'static str],
) -> Told {
    Told { status: 429, retry_after: Some(retry_after), policies, left, violated }
}

const BAD_REQUEST: Told = Told { status: 400, retry_after: None, policies: &[], left: &[], violated: &[] };

const STEP: Step =
    Step { method: "GET", target: "/", host: "www.example.com", headers: &[], body: "", told: passes(&[ADDRESS], &[]) };

/// Requests covered only by the limit of addresses, by what remains after each.
const GET_4: Step = Step { told: passes(&[ADDRESS], &[("RequestsPerAddress", 4, 60)]), ..STEP };
const GET_3: Step = Step { told: passes(&[ADDRESS], &[("RequestsPerAddress", 3, 120)]), ..STEP };
const GET_2: Step = Step { told: passes(&[ADDRESS], &[("RequestsPerAddress", 2, 180)]), ..STEP };
const GET_1: Step = Step { told: passes(&[ADDRESS], &[("RequestsPerAddress", 1, 240)]), ..STEP };
const GET_0: Step = Step { told: passes(&[ADDRESS], &[("RequestsPerAddress", 0, 60)]), ..STEP };
const GET_DENIED: Step =
    Step { told: denied(60, &[ADDRESS], &[("RequestsPerAddress", 0, 60)], &["RequestsPerAddress"]), ..STEP };

/// Logins as a client's first requests.
const LOGIN_1: Step = Step {
    method: "POST",
    target: "/login",
    body: "user=a&password=b",
    told: passes(&[ADDRESS, LOGINS], &[("RequestsPerAddress", 4, 60), ("LoginsPerAddress", 1, 300)]),
    ..STEP
};
const LOGIN_0: Step = Step {
    told: passes(&[ADDRESS, LOGINS], &[("RequestsPerAddress", 3, 120), ("LoginsPerAddress", 0, 300)]),
    ..LOGIN_1
};
const LOGIN_DENIED: Step =
    Step { told: denied(300, &[ADDRESS, LOGINS], &[("LoginsPerAddress", 0, 300)], &["LoginsPerAddress"]), ..LOGIN_1 };

const READ_DIFFERENTLY: &str = "ambiguous requests are rejected and cost nothing";

const TWO_KEYS: &str = "two keys in one request make no key of their own";

/// The same with the rate limit service: Envoy joins the lines first, so two keys become a third one.
pub(super) const JOINED_KEYS: Row = Row {
    what: TWO_KEYS,
    client: "127.0.0.15",
    steps: &[
        Step {
            headers: &[("x-api-key", "junk1"), ("x-api-key", "gamma")],
            told: passes(&[ADDRESS, KEY], &[("RequestsPerAddress", 4, 60), ("RequestsPerKey", 2, 60)]),
            ..STEP
        },
        Step {
            headers: &[("x-api-key", "junk2"), ("x-api-key", "gamma")],
            told: passes(&[ADDRESS, KEY], &[("RequestsPerAddress", 3, 120), ("RequestsPerKey", 2, 60)]),
            ..STEP
        },
    ],
};

/// The rate limit service's answer there: it does not get the path, and Envoy knows one of the two itself.
pub(super) const UNSEEN_PATHS: Row = Row {
    what: READ_DIFFERENTLY,
    client: "127.0.0.13",
    steps: &[Step { target: "/a%00", told: BAD_REQUEST, ..STEP }, Step { target: "/%g0", ..GET_4 }, GET_3],
};

/// For clients on this machine.
pub(super) const AT_THE_EDGE: &[Row] = &[
    Row {
        what: "five pass at once, and the sixth is told when to come again",
        client: "127.0.0.2",
        steps: &[GET_4, GET_3, GET_2, GET_1, GET_0, GET_DENIED, GET_DENIED],
    },
    Row {
        what: "two limits: a denial by one costs the other nothing",
        client: "127.0.0.3",
        steps: &[LOGIN_1, LOGIN_0, LOGIN_DENIED, LOGIN_DENIED, GET_2],
    },
    Row {
        what: "a limit by a header",
        client: "127.0.0.4",
        steps: &[
            Step {
                headers: &[("x-api-key", "alpha")],
                told: passes(&[ADDRESS, KEY], &[("RequestsPerAddress", 4, 60), ("RequestsPerKey", 2, 60)]),
                ..STEP
            },
            Step {
                headers: &[("X-API-Key", "alpha")],
                told: passes(&[ADDRESS, KEY], &[("RequestsPerAddress", 3, 120), ("RequestsPerKey", 1, 120)]),
                ..STEP
            },
            Step {
                headers: &[("x-api-key", "beta")],
                told: passes(&[ADDRESS, KEY], &[("RequestsPerAddress", 2, 180), ("RequestsPerKey", 2, 60)]),
                ..STEP
            },
            GET_1,
        ],
    },
    Row {
        what: "the key is charged wherever it comes from",
        client: "127.0.0.5",
        steps: &[
            Step {
                headers: &[("x-api-key", "alpha")],
                told: passes(&[ADDRESS, KEY], &[("RequestsPerAddress", 4, 60), ("RequestsPerKey", 0, 60)]),
                ..STEP
            },
            Step {
                headers: &[("x-api-key", "alpha")],
                told: denied(60, &[ADDRESS, KEY], &[("RequestsPerKey", 0, 60)], &["RequestsPerKey"]),
                ..STEP
            },
            GET_3,
        ],
    },
    Row {
        what: "an override without a limit, and one that lets nothing pass",
        client: "127.0.0.6",
        steps: &[
            Step { headers: &[("x-api-key", "partner")], ..GET_4 },
            Step { headers: &[("x-api-key", "partner")], ..GET_3 },
            Step { headers: &[("x-api-key", "partner")], ..GET_2 },
            Step { headers: &[("x-api-key", "partner")], ..GET_1 },
            Step {
                headers: &[("x-api-key", "stolen")],
                told: Told { status: 429, retry_after: None, policies: &[], left: &[], violated: &["RequestsPerKey"] },
                ..STEP
            },
        ],
    },
    Row {
        what: "a path in other spellings is the same path",
        client: "127.0.0.7",
        steps: &[
            Step { target: "//login/./?next=%2Fhome", ..LOGIN_1 },
            Step { target: "/a/%2e%2e/%6Cogin", ..LOGIN_0 },
            Step { target: "/login?", ..LOGIN_DENIED },
            Step { method: "POST", target: "/login%2f", ..GET_2 },
        ],
    },
    Row {
        what: "a host in other spellings is the same host, and one that no limit names",
        client: "127.0.0.8",
        steps: &[
            Step { host: "WWW.Example.com:8000", ..LOGIN_1 },
            Step { host: "www.example.com:80", ..LOGIN_0 },
            Step { host: "unknown.test", method: "POST", target: "/login", ..GET_2 },
            LOGIN_DENIED,
        ],
    },
    Row {
        what: "other methods: HEAD, and one that another limit does not cover",
        client: "127.0.0.9",
        steps: &[
            Step { method: "HEAD", ..GET_4 },
            Step { target: "/login", ..GET_3 },
            Step { method: "DELETE", target: "/v1/things?id=1&id=2", ..GET_2 },
            Step { method: "PUT", body: "0123456789", ..GET_1 },
            Step { method: "OPTIONS", ..GET_0 },
            Step { method: "HEAD", ..GET_DENIED },
        ],
    },
    Row {
        what: "what a client says of its address is not believed",
        client: "127.0.0.10",
        steps: &[
            Step { headers: &[("x-forwarded-for", "192.0.2.1")], ..GET_4 },
            Step { headers: &[("x-forwarded-for", "192.0.2.2, 192.0.2.3")], ..GET_3 },
            Step { headers: &[("x-real-ip", "192.0.2.4"), ("forwarded", "for=192.0.2.5")], ..GET_2 },
            Step { headers: &[("x-envoy-external-address", "192.0.2.6"), ("x-client-ip", "192.0.2.7")], ..GET_1 },
        ],
    },
    Row {
        what: "nor is what it says of the rest",
        client: "127.0.0.11",
        steps: &[
            Step {
                headers: &[
                    ("x-forwarded-method", "GET"),
                    ("x-forwarded-uri", "/"),
                    ("x-forwarded-host", "unknown.test"),
                ],
                ..LOGIN_1
            },
            Step {
                headers: &[("x-original-method", "GET"), ("x-original-uri", "/"), ("x-original-host", "unknown.test")],
                ..LOGIN_0
            },
            Step { headers: &[("x-original-url", "http://unknown.test/"), ("x-original-path", "/")], ..LOGIN_DENIED },
        ],
    },
    Row {
        what: "a name with underscores, which an application may take for the key, does not reach it",
        client: "127.0.0.14",
        steps: &[
            Step { headers: &[("x_api_key", "alpha")], ..GET_4 },
            Step { headers: &[("X_API_Key", "stolen")], ..GET_3 },
        ],
    },
    Row {
        what: TWO_KEYS,
        client: "127.0.0.15",
        steps: &[
            Step {
                headers: &[("x-api-key", "junk1"), ("x-api-key", "gamma")],
                told: passes(&[ADDRESS, KEY], &[("RequestsPerAddress", 4, 60), ("RequestsPerKey", 2, 60)]),
                ..STEP
            },
            Step {
                headers: &[("x-api-key", "junk2"), ("x-api-key", "gamma")],
                told: passes(&[ADDRESS, KEY], &[("RequestsPerAddress", 3, 120), ("RequestsPerKey", 1, 120)]),
                ..STEP
            },
        ],
    },
    Row {
        what: READ_DIFFERENTLY,
        client: "127.0.0.13",
        steps: &[
            Step { target: "/a%00", told: BAD_REQUEST, ..STEP },
            Step { target: "/%g0", told: BAD_REQUEST, ..STEP },
            GET_4,
        ],
    },
    Row {
        what: "the application's own fields are kept beside Weir's",
        client: "127.0.0.12",
        steps: &[Step {
            target: OWN,
            told: passes(&[ADDRESS, APPLICATION], &[("RequestsPerAddress", 4, 60), ("Application", 8, 7)]),
            ..STEP
        }],
    },
];

/// For clients named by a load balancer, which is this machine.
pub(super) const BEHIND_A_LOAD_BALANCER: &[Row] = &[
    Row {
        what: "an address of version 4",
        client: "192.0.2.1",
        steps: &[GET_4, GET_3, GET_2, GET_1, GET_0, GET_DENIED],
    },
    Row { what: "another one has a bucket of its own", client: "192.0.2.2", steps: &[LOGIN_1, LOGIN_0, LOGIN_DENIED] },
    Row { what: "an address of version 6", client: "2001:db8:0:1::1", steps: &[GET_4, GET_3] },
    Row {
        what: "another one of the same network",
        client: "2001:db8:0:1:ffff::2",
        steps: &[GET_2, GET_1, GET_0, GET_DENIED],
    },
    Row { what: "one of another network", client: "2001:db8:0:2::1", steps: &[GET_4] },
    Row { what: "only what the load balancer adds is believed", client: "203.0.113.9, 192.0.2.3", steps: &[GET_4] },
    Row { what: "and not what stands before it", client: "203.0.113.10, 192.0.2.3", steps: &[GET_3] },
    Row { what: "whatever bytes those are", client: "\u{e9}, 192.0.2.3", steps: &[GET_2] },
];
