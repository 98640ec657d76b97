#!/usr/bin/env bash
# Everything that must hold before a change lands: format, lints, documentation, tests. Installs what is missing first.
set -euo pipefail
cd "$(dirname "$0")/.."

integration/install.sh test
PATH="$PATH:/usr/sbin:/usr/local/sbin"

cargo fmt --check
cargo clippy --locked --all-targets -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --document-private-items
cargo test --locked --doc
# The benchmarks are among the targets: each runs once, on little data, so that they still work when they are wanted.
if cargo nextest --version >/dev/null 2>&1; then
    cargo nextest run --locked --all-targets --no-fail-fast
else
    cargo test --locked --all-targets --no-fail-fast
fi
