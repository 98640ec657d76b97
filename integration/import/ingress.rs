//! nginx with what ingress-nginx writes for Ingresses, beside Weir with the import of them.

use super::beside::{Holding, send, start};
use crate::support::binary::run_in;
use crate::support::programs::{Program, repository};
use crate::support::weir::Weir;

/// Compares the verdicts of three requests of each kind. The Ingresses and nginx' configuration have the same name, in
/// integration/cases/import/beside/ingress.
#[track_caller]
fn check(name: &str, lines: &[&str]) {
    let (holding, folder) = (Holding::start(), tempfile::tempdir().unwrap());
    let cases = repository().join("integration/cases/import/beside/ingress");
    let template = std::fs::read_to_string(cases.join(format!("{name}.conf"))).unwrap();
    let template = template.replace("UPSTREAM", &holding.upstream.address.to_string());
    let (nginx, _nginx) = start(Program::Nginx, name, &template, folder.path());
    let imported = run_in(&cases, &["import", "ingress-nginx", &format!("{name}.yaml")]);
    assert_eq!(imported.code, Some(0), "{}", imported.text());
    let weir = Weir::serve(&imported.out, &["--upstream", &format!("http://{}", holding.upstream.address)]);
    for line in lines {
        let [theirs, ours] = [nginx, weir.proxy].map(|to| [(); 3].map(|()| send(to, line).response().status() == 200));
        assert_eq!(ours, theirs, "{line}\n{}", imported.out);
    }
}

#[test]
fn aliases_hold_for_all_ingresses_of_the_host() {
    check(
        "aliases",
        &[
            "GET /api/x host=www.a.example",
            "GET /api from=127.0.0.2",
            "GET /x host=www.a.example",
            "GET /open/x host=b.example",
            "GET /open host=www.b.example",
            "GET /x host=www.b.example",
        ],
    );
}

#[test]
fn paths_are_regular_expressions_beside_a_rewrite_to_another_path() {
    check(
        "rewrites",
        &[
            "GET /api/x",
            "GET /apix from=127.0.0.2",
            "GET /API/x from=127.0.0.3",
            "GET /newer host=b.example",
            "GET /NEW host=b.example from=127.0.0.2",
        ],
    );
}
