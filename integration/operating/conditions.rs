//! Conditions on requests, at every listener.

use super::each_store;
use super::listeners::at_listener;
use crate::support::weir::Weir;

#[test]
fn one_value_of_a_list_is_enough() {
    const LIMITS: &str = "\
limits:
  Plans: { match: { headers: { x-plan: [free, { prefix: trial- }] } }, by: ip, burst: 1 }
  Users: { match: { domain: api, descriptor: { user: [alice, 'c*', { regex: '^bo' }] } }, by: global, burst: 1 }
  Others: { match: { domain: api, descriptor: { user: [alice, carol] } }, by: global, deny: true }
";
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    each_store(|store, _| {
        let weir = Weir::serve(LIMITS, &[&["--grpc", "127.0.0.1:0"], store].concat());
        weir.until_connected();
        let plans = ["gold", "trial-2", "free", "gold", ""];
        let statuses = plans.map(|plan| weir.get("/", &[("x-plan", plan)]).status());
        assert_eq!(statuses, [200, 200, 429, 200, 200]);
        let asked = [0; 2].map(|_| runtime.block_on(at_listener(&weir, "rate limit service")).status);
        assert_eq!(asked, [200, 429]);
    });
}
