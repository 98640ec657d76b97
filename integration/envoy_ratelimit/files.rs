//! Its directory of limits, and its health with `HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED`.

use std::fs;
use std::net::SocketAddr;

use tonic::transport::Endpoint;
use tonic_prost::ProstCodec;

use super::{RULES, ask, get, in_memory, ports, ratelimit};
use crate::support::process::{Finished, finish};
use crate::support::{becomes, eventually};
use crate::xds::management_server::ManagementServer;
use crate::xds::{config, descriptor};

const TWO: &str = "domain: two\ndescriptors:\n- { key: user, rate_limit: { unit: hour, requests_per_unit: 1 } }\n";

/// The next start would fail with them.
#[test]
fn a_reload_refuses_files_that_would_be_lost() {
    let weir = in_memory(&[]);
    let [http, debug] = ports(&weir);
    let folder = weir.directory().join("data/ratelimit/config");
    let before = get(debug, "/rlconfig").text().to_owned();
    let team = folder.join("team");
    fs::write(&team, TWO).unwrap();
    weir.until_logged("RUNTIME_ROOT: `");
    let log = weir.log();
    assert!(log.contains("config/team` would not be read") && log.contains("the last good ones stay"), "{log}");
    fs::write(folder.join("web.yaml"), RULES.replace("requests_per_unit: 5", "requests_per_unit: 6")).unwrap();
    assert_eq!(weir.admin("/readyz").text().matches("degraded").count(), 1);
    assert_eq!((get(debug, "/rlconfig").text(), get(http, "/healthcheck").status()), (&*before, 200));

    fs::rename(&team, folder.join("team.yaml")).unwrap();
    let in_force = |text: &str| get(debug, "/rlconfig").text().contains(text);
    becomes("the moved file is read", [true, true], || [in_force("two.user: "), in_force("requests_per_unit=6")]);
    assert_eq!(ask(http, "bob").0, 200);

    // Without a file there are no limits, as there.
    for name in ["team.yaml", "web.yaml"] {
        fs::remove_file(folder.join(name)).unwrap();
    }
    becomes("no limits", true, || get(debug, "/rlconfig").text().is_empty());
    assert_eq!(get(http, "/healthcheck").status(), 200);
}

#[test]
fn a_start_refuses_files_that_would_be_lost_and_a_missing_directory() {
    let root = tempfile::tempdir().unwrap();
    let start = |arguments: &[&str]| {
        let mut command = ratelimit(root.path());
        finish(command.args(arguments).envs([("WEIR_STORE", "memory")]).env("RUNTIME_ROOT", root.path()))
    };
    let Finished { code, err, .. } = start(&[]);
    assert!(code == Some(1) && err.contains("RUNTIME_ROOT: this directory cannot be read: "), "{code:?} {err}");
    fs::create_dir(root.path().join("config")).unwrap();
    let Finished { code, out, err } = start(&["--dry-run"]);
    assert!(code == Some(0) && out.contains("0 limits"), "{code:?} {out}{err}");
    fs::write(root.path().join("config.yaml"), TWO).unwrap();
    for arguments in [&[][..], &["--dry-run"]] {
        let Finished { code, err, .. } = start(arguments);
        assert!(code == Some(1) && err.contains("/config.yaml` would not be read"), "{code:?} {err}");
    }
}

/// The status of the gRPC health service: 1 is serving, 2 is not.
fn grpc_health(address: SocketAddr) -> i32 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        let mut client = tonic::client::Grpc::new(endpoint.connect().await.unwrap());
        client.ready().await.unwrap();
        // The messages have one field at most, as those in their place do.
        let (path, codec) = ("/grpc.health.v1.Health/Check", ProstCodec::<(), i32>::default());
        client.unary(tonic::Request::new(()), path.parse().unwrap(), codec).await.unwrap().into_inner()
    })
}

#[test]
fn without_a_domain_it_is_unhealthy_if_it_needs_one() {
    let server = ManagementServer::start();
    let url = server.address.to_string();
    server.set("default", "1", &[]);
    let weir = in_memory(&[
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", &url),
        ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true"),
    ]);
    server.until_accepted("1");
    let ([http, _], grpc) = (ports(&weir), weir.listener("grpc"));
    let health = || (get(http, "/healthcheck").status(), grpc_health(grpc));
    assert_eq!(health(), (500, 2));
    for (version, configs, expected) in
        [("2", vec![config("web", vec![descriptor("user", "", 1)])], (200, 1)), ("3", vec![], (500, 2))]
    {
        server.set("default", version, &configs);
        server.until_accepted(version);
        becomes("the health follows", expected, health);
    }

    let of_files = in_memory(&[("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true")]);
    let health = || get(ports(&of_files)[0], "/healthcheck").status();
    assert_eq!(health(), 200);
    fs::remove_file(of_files.directory().join("data/ratelimit/config/web.yaml")).unwrap();
    eventually("it has no domain", || if health() == 500 { Ok(()) } else { Err(of_files.log()) });
}
