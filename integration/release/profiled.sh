#!/usr/bin/env bash
# Builds `weir` with a profile of its own work (profile-guided optimization): an instrumented build counts which branches the
# benchmarks' load takes, and the second build is laid out by these counts.
#
#   integration/release/profiled.sh OUT
#
# OUT is the directory of the binary, `weir`, and of the profile, `weir.profdata`. This takes two release builds and the load
# in between. integration/install.sh installs what the load needs.
#
# `llvm-profdata` must be of the compiler's LLVM: `rustup component add llvm-tools`, or name the program in LLVM_PROFDATA, such as
# `llvm-profdata-22` of Debian's package `llvm-22` for Rust 1.95.
set -euo pipefail
out=$(realpath -m "$1")
cd "$(dirname "$0")/../.."
export REVISION=${REVISION-$(git rev-parse HEAD 2>/dev/null || true)}
tuple=$(rustc --print host-tuple)
profdata=${LLVM_PROFDATA:-$(rustc --print sysroot)/lib/rustlib/$tuple/bin/llvm-profdata}
if ! command -v "$profdata" >/dev/null; then
    echo "there is no $profdata; run \`rustup component add llvm-tools\`, or set LLVM_PROFDATA" >&2
    exit 1
fi
mkdir -p "$out"
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/profiled
counts=$target/counts
rm -rf "$counts"

# With a target, RUSTFLAGS apply to the program and not to build scripts. The counts are made before the link, so the first
# build needs no optimization across crates.
RUSTFLAGS="-Cprofile-generate=$counts" CARGO_TARGET_DIR=$target/instrumented CARGO_PROFILE_DIST_LTO=off \
    cargo build --locked --profile dist --bin weir --target "$tuple"
instrumented=$target/instrumented/$tuple/dist/weir
for variant in "" --tls --http2; do
    python3 integration/bench/proxies.py --weir "$instrumented" --only weir --rounds 1 --seconds 2 ${variant:+"$variant"}
done
python3 integration/bench/proxies.py --weir "$instrumented" --only weir+redis --rounds 1 --seconds 2
# It exits with 1 when a figure misses its goal, as those of an instrumented program do.
python3 integration/bench/grpc.py --weir "$instrumented" --rounds 1 --seconds 2 || [ $? -eq 1 ]
"$profdata" merge -o "$out/weir.profdata" "$counts"

RUSTFLAGS="-Cprofile-use=$out/weir.profdata" CARGO_TARGET_DIR=$target/optimized \
    cargo build --locked --profile dist --bin weir --target "$tuple"
install --mode=0755 "$target/optimized/$tuple/dist/weir" "$out/weir"
