//! The live page, in headless Chromium.

use crate::support::programs::client;
use crate::support::weir::Weir;

/// An id of `Watched` passes once.
const LIMITS: &str = "\
limits:
  Watched: { match: { path: /watched }, by: { header: x-id }, burst: 1, count: 1, period: 1h }
  Shadowed: { match: { path: /shadowed }, by: { header: x-id }, burst: 1, count: 1, period: 1h, mode: shadow }
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
    let (proxy, admin, limits) = (weir.proxy.to_string(), weir.admin.to_string(), weir.limits_file());
    let flags = ["--proxy", &proxy, "--admin", &admin, "--limits", limits.to_str().unwrap(), "--public", &at_public];
    let checks = client("../page/checks.py", &flags);
    assert!(checks["passed"].as_array().is_some_and(|passed| passed.len() > 5), "{checks}");
}
