//! The URL of a store.

use std::path::PathBuf;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};

/// The right form of a URL, for errors.
const SINGLE: &str = "redis://user:password@host:port/db";
const SOCKET: &str = "unix:///path";
const CLUSTER: &str = "redis+cluster://user:password@host:port,host:port";
const SENTINEL: &str = "redis+sentinel://user:password@host:port,host:port/master-name/db";

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// A store's URL in its parts.
pub(super) struct StoreUrl {
    pub(super) servers: Servers,
    pub(super) has_tls: bool,
    /// User, password and database.
    pub(super) login: RedisConnectionInfo,
}

/// The servers that a URL names.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Servers {
    Socket(PathBuf),
    Single(HostPort),
    Cluster(Vec<HostPort>),
    Sentinels { sentinels: Vec<HostPort>, master: String, login: SentinelLogin },
}

/// An IPv6 host has no brackets.
pub(super) type HostPort = (String, u16);

/// Writes `host:port`, with brackets around an IPv6 address.
pub(super) fn host_and_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// The credentials for Sentinels.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct SentinelLogin {
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
}

impl std::fmt::Debug for SentinelLogin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SentinelLogin")
    }
}

impl StoreUrl {
    /// Errors show no secrets.
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let has_tls = scheme.starts_with("rediss");
        match scheme {
            "redis" | "rediss" => {
                let (host, login) = host_and_login(url, SINGLE, REDIS_PORT)?;
                Ok(Self { servers: Servers::Single(host), has_tls, login })
            }
            "unix" | "redis+unix" => socket(url),
            "redis+cluster" | "rediss+cluster" => Ok(Self { has_tls, ..cluster(rest)? }),
            "redis+sentinel" | "rediss+sentinel" => Ok(Self { has_tls, ..sentinels(rest)? }),
            _ if url.starts_with("unix:") || url.starts_with('/') => {
                let path = url.trim_start_matches("unix:").trim_start_matches('/');
                Err(format!("write a unix socket with three slashes and its full path: `unix:///{path}`"))
            }
            _ => Err("write `memory`, `redis://host:port/db`, `redis+cluster://host:port,host:port`, \
                      `redis+sentinel://host:port,host:port/master-name`, the same with `rediss` for TLS, or \
                      `unix:///path` for a socket"
                .into()),
        }
    }
}

fn socket(url: &str) -> Result<StoreUrl, String> {
    let (info, _) = read(url, SOCKET)?;
    let ConnectionAddr::Unix(path) = info.addr() else { return Err(expected(SOCKET)) };
    Ok(StoreUrl { servers: Servers::Socket(path.clone()), has_tls: false, login: info.redis_settings().clone() })
}

fn cluster(rest: &str) -> Result<StoreUrl, String> {
    let parts = Parts::split(rest, CLUSTER)?;
    let (nodes, login) = parts.hosts(CLUSTER, REDIS_PORT)?;
    if parts.query.is_some() {
        return Err(unexpected_query(CLUSTER));
    }
    let database = parts.path.trim_end_matches('/');
    if !matches!(database, "" | "0") {
        return Err(format!("a cluster has only database 0, not `{database}`; write `{CLUSTER}`"));
    }
    Ok(StoreUrl { servers: Servers::Cluster(nodes), has_tls: false, login })
}

fn sentinels(rest: &str) -> Result<StoreUrl, String> {
    let parts = Parts::split(rest, SENTINEL)?;
    let (sentinels, login) = parts.hosts(SENTINEL, SENTINEL_PORT)?;
    let (master, database) = parts.path.split_once('/').unwrap_or((parts.path, ""));
    if master.is_empty() {
        return Err(format!("the master's name is missing; write `{SENTINEL}`"));
    }
    if !master.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte)) {
        return Err(format!("the master's name `{master}` may contain only letters, digits, `.`, `-` and `_`"));
    }
    let database = database.trim_end_matches('/');
    check_database(database)?;
    let login = login.set_db(database.parse().unwrap_or(0));
    let given = parts.query.map(sentinel_login).transpose()?;
    let own = given.unwrap_or_else(|| SentinelLogin::of(&login));
    let servers = Servers::Sentinels { sentinels, master: master.to_owned(), login: own };
    Ok(StoreUrl { servers, has_tls: false, login })
}

impl SentinelLogin {
    fn of(login: &RedisConnectionInfo) -> Self {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Self { user: owned(login.username()), password: owned(login.password()) }
    }
}

/// Reads `sentinel_user=..&sentinel_password=..`.
fn sentinel_login(query: &str) -> Result<SentinelLogin, String> {
    let (mut user, mut password) = ("", None);
    for pair in query.split('&') {
        match pair.split_once('=') {
            Some(("sentinel_user", value)) => user = value,
            Some(("sentinel_password", value)) => password = Some(value),
            _ => return Err("unexpected parameter; after `?` write `sentinel_user=..&sentinel_password=..`".into()),
        }
    }
    let Some(password) = password else { return Err("`sentinel_user` needs `sentinel_password`".into()) };
    let (_, login) = host_and_login(&format!("redis://{user}:{password}@h"), SENTINEL, SENTINEL_PORT)?;
    Ok(SentinelLogin::of(&login))
}

/// A URL with several hosts, after its scheme.
struct Parts<'u> {
    /// Ends with `@`, or is empty.
    credentials: &'u str,
    hosts: &'u str,
    path: &'u str,
    query: Option<&'u str>,
}

impl<'u> Parts<'u> {
    fn split(rest: &'u str, form: &str) -> Result<Self, String> {
        if rest.contains('#') {
            return Err(UNEXPECTED_FRAGMENT.into());
        }
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        // In a parameter, too: what is before the last `@` might be a password, and would be hidden in the log.
        if path.contains('@') || query.is_some_and(|query| query.contains('@')) {
            return Err(expected(form));
        }
        let (credentials, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        Ok(Self { credentials, hosts, path, query })
    }

    fn hosts(&self, form: &str, default_port: u16) -> Result<(Vec<HostPort>, RedisConnectionInfo), String> {
        let (mut hosts, mut login) = (Vec::new(), RedisConnectionInfo::default());
        for host in self.hosts.split(',') {
            let (host, given) = host_and_login(&format!("redis://{}{host}", self.credentials), form, default_port)?;
            login = given;
            if !hosts.contains(&host) {
                hosts.push(host);
            }
        }
        Ok((hosts, login))
    }
}

/// Reads a URL with one host.
fn host_and_login(url: &str, form: &str, default_port: u16) -> Result<(HostPort, RedisConnectionInfo), String> {
    let (info, port) = read(url, form)?;
    let (ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. }) = info.addr() else {
        return Err(expected(form));
    };
    Ok(((host.clone(), port.unwrap_or(default_port)), info.redis_settings().clone()))
}

/// Reads the URL of one host or socket. Returns its port as well, if it has one.
fn read(url: &str, form: &str) -> Result<(ConnectionInfo, Option<u16>), String> {
    let parsed = redis::parse_redis_url(url).ok_or_else(|| expected(form))?;
    let is_socket = parsed.scheme().ends_with("unix");
    if parsed.fragment().is_some() {
        return Err(UNEXPECTED_FRAGMENT.into());
    }
    if !is_socket && parsed.query().is_some() {
        return Err(unexpected_query(form));
    }
    if !is_socket && parsed.host_str().unwrap_or_default().is_empty() {
        return Err(format!("the host is missing; write `{form}`"));
    }
    if !parsed.username().is_empty() && parsed.password().is_none() {
        return Err("the user has no password; write a password without a user as `redis://:password@host`".into());
    }
    let of_socket = || parsed.query_pairs().find(|(name, _)| name == "db").map(|(_, database)| database.into_owned());
    let database =
        if is_socket { of_socket().unwrap_or_default() } else { parsed.path().trim_start_matches('/').to_owned() };
    check_database(&database)?;
    let port = parsed.port();
    let info = parsed.into_connection_info().map_err(|error| error.to_string())?;
    Ok((info, port))
}

fn check_database(database: &str) -> Result<(), String> {
    if database.is_empty() || database.parse::<u32>().is_ok() {
        return Ok(());
    }
    Err(format!("the database `{database}` is not a number, as the 2 in `redis://127.0.0.1:6379/2`"))
}

const UNEXPECTED_FRAGMENT: &str = "unexpected `#`; name your own certificate with --store-ca-file";

fn expected(form: &str) -> String {
    format!("expected `{form}`; percent-encode special characters in the user and the password, `@` as `%40`")
}

fn unexpected_query(form: &str) -> String {
    format!("unexpected `?`; write `{form}`")
}

/// Returns the URL with everything hidden that may be a secret, even if the URL is invalid.
pub(super) fn redacted(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (scheme, rest));
    let separator = if scheme.is_empty() { "" } else { "://" };
    // The last `@`, because one inside a password that is not percent-encoded must not reveal the rest of it.
    let (credentials, place) = rest.rsplit_once('@').map_or(("", rest), |(_, place)| ("***@", place));
    if rest.find('?').is_some_and(|query| query + place.len() < rest.len()) {
        // Either the password contains `?`, or a parameter contains `@`.
        return format!("{scheme}{separator}***");
    }
    let (place, query) = place.split_once('?').map_or((place, ""), |(place, _)| (place, "?***"));
    format!("{scheme}{separator}{credentials}{place}{query}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(host: &str, port: u16) -> HostPort {
        (host.into(), port)
    }

    fn sentinels_of(url: &str) -> (Vec<HostPort>, String, [String; 2], [String; 2], i64) {
        let StoreUrl { servers, login, .. } = StoreUrl::parse(url).unwrap();
        let Servers::Sentinels { sentinels, master, login: own } = servers else { panic!("{servers:?}") };
        let text = |text: Option<&str>| text.unwrap_or("-").to_owned();
        let ours = [text(login.username()), text(login.password())];
        (sentinels, master, ours, [text(own.user.as_deref()), text(own.password.as_deref())], login.db())
    }

    #[test]
    fn hosts_have_default_ports_and_ipv6_needs_brackets() {
        for (url, expected) in [
            ("redis://h", Servers::Single(host("h", 6379))),
            ("rediss://[::1]:7/2", Servers::Single(host("::1", 7))),
            ("unix:///run/redis.sock?db=1", Servers::Socket("/run/redis.sock".into())),
            ("redis+cluster://h", Servers::Cluster(vec![host("h", 6379)])),
            (
                "rediss+cluster://u:p@a:1,[2001:db8::1],c:3,a:1/0",
                Servers::Cluster(vec![host("a", 1), host("2001:db8::1", 6379), host("c", 3)]),
            ),
        ] {
            let parsed = StoreUrl::parse(url).unwrap();
            assert_eq!((parsed.servers, parsed.has_tls), (expected, url.starts_with("rediss")), "{url}");
        }
    }

    #[test]
    fn sentinels_have_the_credentials_of_the_master_unless_they_are_given_others() {
        let words = |user: &str, password: &str| [user.to_owned(), password.to_owned()];
        let hosts = vec![host("a", 26379), host("::1", 5)];
        let expected = |ours, own, database| (hosts.clone(), "my-master.1".to_owned(), ours, own, database);
        for (url, expected) in [
            ("redis+sentinel://a,[::1]:5/my-master.1", expected(words("-", "-"), words("-", "-"), 0)),
            (
                "redis+sentinel://weir:p%40,/w@a,[::1]:5/my-master.1/3",
                expected(words("weir", "p@,/w"), words("weir", "p@,/w"), 3),
            ),
            (
                "redis+sentinel://:p@a,[::1]:5/my-master.1/?sentinel_password=a%26b%3d+",
                expected(words("-", "p"), words("-", "a&b=+"), 0),
            ),
            (
                "rediss+sentinel://a,[::1]:5/my-master.1?sentinel_user=s&sentinel_password=q",
                expected(words("-", "-"), words("s", "q"), 0),
            ),
        ] {
            let url = url.replace(",/w", "%2C%2Fw");
            assert_eq!(sentinels_of(&url), expected, "{url}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        for (url, shown) in [
            ("redis://u:secret@h:1/2", "redis://***@h:1/2"),
            ("redis://:sec@ret@h", "redis://***@h"),
            ("redis://:sec?ret@h", "redis://***"),
            ("redis+cluster://:secret@a:1,b:2", "redis+cluster://***@a:1,b:2"),
            ("redis+sentinel://:secret@a,b/m?sentinel_password=secret", "redis+sentinel://***@a,b/m?***"),
            ("redis+sentinel://a,b/m?sentinel_password=sec@ret", "redis+sentinel://***"),
            (":secret@h", "***@h"),
        ] {
            assert_eq!(redacted(url), shown);
        }
    }
}
