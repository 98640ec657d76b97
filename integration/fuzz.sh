#!/usr/bin/env bash
# Fuzzes Weir's own parsers: `integration/fuzz.sh [SECONDS [TARGET...]]`. SECONDS is per target and defaults to 60.
#
# Does what `cargo fuzz` does: builds with a nightly compiler that counts branches, and runs libFuzzer. It stops at the first
# finding and leaves the input in target/fuzz/; run the binary with that file to reproduce it. The properties are those of
# the parsers' proptests, see `weir::fuzzing`.
set -euo pipefail
cd "$(dirname "$0")/fuzz"

seconds=${1:-60}
shift || true
host=x86_64-unknown-linux-gnu
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/../../target}/fuzz
export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
# With an explicit target the flags do not apply to build scripts, which lack the coverage runtime.
cargo +nightly build --release --target "$host"
binary=$CARGO_TARGET_DIR/$host/release/weir-fuzz

for target in "${@:-$(WEIR_FUZZ=list "$binary")}"; do
    for name in $target; do
        echo "== $name"
        mkdir -p "$CARGO_TARGET_DIR/corpus/$name"
        WEIR_FUZZ=$name "$binary" "$CARGO_TARGET_DIR/corpus/$name" -max_total_time="$seconds" -max_len=4096 \
            -artifact_prefix="$CARGO_TARGET_DIR/$name-" -print_final_stats=1 -print_funcs=0 -verbosity=0
    done
done
