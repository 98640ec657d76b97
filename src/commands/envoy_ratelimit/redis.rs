//! The store's flags, of the settings `REDIS_*`.

use super::environment::Environment;
use crate::message::percent;

/// Adds the flags of the store. Its URL, with the password in it, stays inside the process.
pub(super) fn flags(environment: &mut Environment<'_>, flags: &mut Vec<(&'static str, String)>) {
    let socket = environment.text("REDIS_SOCKET_TYPE");
    if !["unix", "tcp", "tls"].contains(&socket.as_str()) {
        environment.wrong("REDIS_SOCKET_TYPE", "expected tcp, tls or unix");
    }
    let has_tls = environment.is_true("REDIS_TLS") || socket == "tls";
    let Some(store) = url(environment, has_tls) else { return };
    flags.push(("store", store));
    if has_tls {
        let [cert, key] = environment.both(["REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY"]);
        let ca = environment.given("REDIS_TLS_CACERT");
        for (flag, file) in [("store-cert-file", cert), ("store-key-file", key), ("store-ca-file", ca)] {
            flags.extend(file.map(|file| (flag, file)));
        }
    }
}

fn url(environment: &mut Environment<'_>, has_tls: bool) -> Option<String> {
    let servers = environment.text("REDIS_URL");
    let (user, password) = login(environment, "REDIS_AUTH");
    let redis = if has_tls || servers.contains("rediss://") { "rediss" } else { "redis" };
    let credentials = if password.is_empty() { String::new() } else { format!("{user}:{password}@") };
    match environment.text("REDIS_TYPE").to_ascii_uppercase().as_str() {
        // A URL, with credentials of its own or with those of `REDIS_AUTH`.
        "SINGLE" if servers.contains("://") => {
            let (scheme, rest) = servers.split_once("://")?;
            let scheme = if scheme == "redis" { redis } else { scheme };
            let credentials = if rest.contains('@') { "" } else { &credentials };
            Some(format!("{scheme}://{credentials}{rest}"))
        }
        "SINGLE" if environment.text("REDIS_SOCKET_TYPE") == "unix" => {
            let Some(path) = servers.strip_prefix('/') else {
                let why = "REDIS_URL: expected the path of a socket, as REDIS_SOCKET_TYPE is unix; a server needs tcp";
                environment.mistakes.push(why.into());
                return None;
            };
            let query = match (user.is_empty(), password.is_empty()) {
                (_, true) => String::new(),
                (true, false) => format!("?pass={password}"),
                (false, false) => format!("?user={user}&pass={password}"),
            };
            Some(format!("unix:///{path}{query}"))
        }
        "SINGLE" => Some(format!("{redis}://{credentials}{servers}")),
        "CLUSTER" => {
            let (servers, own) = listed(environment, &servers)?;
            let credentials = if own.is_empty() { credentials } else { format!("{own}@") };
            Some(format!("{redis}+cluster://{credentials}{servers}"))
        }
        "SENTINEL" => {
            let Some((master, sentinels)) = servers.split_once(',').filter(|(master, _)| !master.contains("://"))
            else {
                environment.mistakes.push("REDIS_URL: expected `master-name,host:port,host:port` for Sentinels".into());
                return None;
            };
            let (sentinels, own) = listed(environment, sentinels)?;
            let (user, password) = own.split_once(':').unwrap_or((&own, ""));
            let own = [user, password].map(|text| encoded(&percent::decode(text))).into();
            let query = match Some(login(environment, "REDIS_SENTINEL_AUTH"))
                .filter(|login| !login.1.is_empty())
                .unwrap_or(own)
            {
                (_, password) if password.is_empty() => String::new(),
                (user, password) if user.is_empty() => format!("?sentinel_password={password}"),
                (user, password) => format!("?sentinel_user={user}&sentinel_password={password}"),
            };
            Some(format!("{redis}+sentinel://{credentials}{sentinels}/{master}{query}"))
        }
        _ => {
            environment.wrong("REDIS_TYPE", "expected SINGLE, SENTINEL or CLUSTER");
            None
        }
    }
}

/// Takes a list of servers apart, each `host:port` or a URL. Returns them without schemes, and the user and the password of the URLs.
fn listed(environment: &mut Environment<'_>, servers: &str) -> Option<(String, String)> {
    let server = |server: &str| {
        let rest = server.split_once("://").map_or(server, |(_, rest)| rest).to_owned();
        let (login, host) = rest.rsplit_once('@').unwrap_or(("", &rest));
        let host = host.strip_suffix("/0").unwrap_or(host).trim_end_matches('/');
        (login.to_owned(), host.to_owned())
    };
    let (logins, hosts): (Vec<_>, Vec<_>) = servers.split(',').map(server).unzip();
    let wrong = if hosts.iter().any(|host| host.contains('/')) {
        "REDIS_URL: expected no database in the URLs of a list"
    } else if logins.iter().any(|login| *login != logins[0]) {
        "REDIS_URL: expected the same user and password in each URL of the list"
    } else {
        return Some((hosts.join(","), logins[0].clone()));
    };
    environment.mistakes.push(wrong.to_owned());
    None
}

/// Returns user and password, percent-encoded. They are written `password` or `user:password`.
fn login(environment: &Environment<'_>, name: &str) -> (String, String) {
    let login = environment.given(name).unwrap_or_default();
    let (user, password) = login.split_once(':').unwrap_or(("", &login));
    (encoded(user), encoded(password))
}

fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    percent::encode(text.as_bytes(), |byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte), &mut encoded);
    encoded
}
