//! The verification of a token: of a new one, and of one that was seen before.

#![expect(clippy::unwrap_used, reason = "a benchmark stops where it cannot go on")]

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use criterion::{Criterion, criterion_group, criterion_main};
use serde_json::json;
use weir::config::{Files, load};
use weir::engine::algorithms::micros::Micros;
use weir::engine::limit::fingerprint::Fingerprinter;
use weir::engine::limit::rules::Rules;
use weir::jwt::Checker;
use weir::message::headers::Headers;

use self::signing::{TestKey, key_set};

#[path = "../../src/jwt/testing.rs"]
mod signing;

fn rules(folder: &Path, keys: &str) -> Rules {
    let text = "
        jwt: { main: { issuer: i, audiences: [a], jwks_file: keys.json } }
        limits: { One: { by: { claim: sub }, burst: 1 } }";
    std::fs::write(folder.join("limits.yaml"), text).unwrap();
    std::fs::write(folder.join("keys.json"), keys).unwrap();
    let files = Files { limits: Some(folder.join("limits.yaml")), ..Files::default() };
    load(&files.read().unwrap(), Fingerprinter::new((1, 2)), Micros(0)).rules.unwrap()
}

fn tokens(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().unwrap();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let claims = json!({ "iss": "i", "aud": "a", "exp": now.as_secs() + 3600, "sub": "user-1", "scope": "read write" });
    for (name, key) in
        [("es256", TestKey::es256("k1")), ("eddsa", TestKey::eddsa("k1")), ("rs256", TestKey::rsa("k1", false))]
    {
        let rules = rules(folder.path(), &key_set(&[&key]));
        let line = format!("Bearer {}", key.token("k1", &claims));
        let headers = Headers::from_iter([("authorization", line)]);
        let now = Micros(u64::try_from(now.as_micros()).unwrap());
        let check = |checker: &mut Checker| assert_eq!(checker.claims(&rules, &headers, now, |_| ()).len(), 1);
        criterion.bench_function(&format!("token {name}, cached"), |bencher| {
            let mut checker = Checker::new(Arc::default());
            bencher.iter(|| check(black_box(&mut checker)));
        });
        criterion.bench_function(&format!("token {name}, new"), |bencher| {
            let fresh = || {
                let mut checker = Checker::new(Arc::default());
                // Reads the keys.
                checker.claims(&rules, &Headers::new(), now, |_| ());
                checker
            };
            bencher.iter_batched_ref(fresh, check, criterion::BatchSize::SmallInput);
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(2));
    targets = tokens
}
criterion_main!(benches);
