#!/usr/bin/env bash
# Fuzzes what Weir parses itself: `integration/fuzz.sh [SECONDS [TARGET...]]`, each target for so many seconds (60).
#
# What `cargo fuzz` would do, without it: a nightly compiler that counts the branches taken, and libFuzzer around it. A
# finding ends it, with the input in target/fuzz/; run the binary with that file to see it again. The properties are
# those of the proptests beside the parsers, see `weir::fuzzing`.
set -euo pipefail
cd "$(dirname "$0")/fuzz"

seconds=${1:-60}
shift || true
host=x86_64-unknown-linux-gnu
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/../../target}/fuzz
export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
# With a target named, the flags are not for build scripts, which have nobody to count for.
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
