//! The live page, in headless Chromium.

use crate::support::programs::client;
use crate::support::weir::Weir;

/// An id of `Watched` passes once.
const LIMITS: &str = "\
limits:
  Watched: { match: { path: /watched }, by: { header: x-id }, burst: 1, count: 1, period: 1h }
  Shadowed: { match: { path: /shadowed }, by: { header: x-id }, burst: 1, count: 1, period: 1h, mode: shadow }
  Tried: { match: { path: /tried }, count: 10, period: 1h, candidate: { count: 5, period: 1h } }
  Moved: { match: { path: /moved }, count: 10, period: 1h, candidate: { count: 5, period: 1h, enforce_for: 100% } }
  Several: { match: { path: /several }, count: 10, period: 1h, candidates: { low: { count: 1, period: 1h }, high: { count: 7, period: 1h } } }
  Raised: { match: { path: /raised }, count: 2, period: 1h, elevated: { burst: 9, count: 9, period: 1h, for: 15m, activations_per_month: 2 } }
  Windows: { match: { path: /windows }, rates: [{ count: 2, period: 1s }, { count: 9, period: 1h }] }
  Fixed: { match: { path: /fixed }, by: global, burst: 3 }
  Part: { match: { path: /part }, count: 2, period: 1h, enforce_for: 12.5%, review_by: 2020-01-31 }
  Free: { match: { path: /free }, unlimited: true }
  Closed: { match: { path: /closed }, deny: true }
  Keyed: { match: { path: /keyed }, by: { header: x-id }, missing: deny, count: 2, period: 1h }
  Given: { match: { path: /given } }
  CertificatesPerDomainPerAccount: { match: { path: /certificatesperdomainperaccount }, by: { header: x-id }, count: 2, period: 1h, candidate: { count: 1, period: 1h } }
  Unused: { match: { path: /unused }, count: 2, period: 1h, mode: off }
overrides:
  - Watched:
      burst: 1
      count: 1
      period: 1h
      ids: [{ id: \"<img src=x onerror=document.title='taken'>\", comment: \"<img src=x onerror=document.title='taken'>\" }]
";

#[test]
fn an_operator_uses_the_page() {
    let weir = Weir::serve(LIMITS, &["--admin-token", "s3cret", "--log-ids", "clear"]);
    let public = Weir::serve(LIMITS, &["--admin-token", "s3cret", "--admin", "0.0.0.0:0"]);
    let at_public = format!("127.0.0.1:{}", public.admin.port());
    // Nothing listens on port 1.
    let flags =
        ["--store", "redis://127.0.0.1:1", "--upstream", "http://127.0.0.1:1,http://127.0.0.1:2", "--log-ids", "none"];
    let ailing = Weir::serve("limits: {}", &flags);
    let [at_ailing, at_failing] = [ailing.admin, ailing.proxy].map(|address| address.to_string());
    let (proxy, admin, limits) = (weir.proxy.to_string(), weir.admin.to_string(), weir.limits_file());
    let flags = ["--proxy", &proxy, "--admin", &admin, "--public", &at_public, "--ailing", &at_ailing];
    let flags = [&flags[..], &["--failing", &at_failing, "--limits", limits.to_str().unwrap()]].concat();
    let checks = client("../page/checks.py", &flags);
    assert!(checks["passed"].as_array().is_some_and(|passed| passed.len() > 5), "{checks}");
}
