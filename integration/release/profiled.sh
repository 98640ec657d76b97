#!/usr/bin/env bash
# Builds `weir` with a profile of its own work (profile-guided optimization): a first build counts which branches the benchmarks'
# load takes, and the second one is laid out by these counts.
#
#   integration/release/profiled.sh OUT
#
# OUT is the directory of the binary, `weir`, and of the profile, `weir.profdata`. Takes two release builds and a minute of load. What the load
# needs comes with integration/install.sh.
#
# `llvm-profdata` must be of the compiler's LLVM: `rustup component add llvm-tools`, or name the program in LLVM_PROFDATA.
set -euo pipefail
out=$(realpath -m "$1")
cd "$(dirname "$0")/../.."
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
RUSTFLAGS="-Cprofile-generate=$counts" CARGO_TARGET_DIR=$target/counting CARGO_PROFILE_RELEASE_LTO=off \
    cargo build --locked --release --bin weir --target "$tuple"
counting=$target/counting/$tuple/release/weir
for variant in "" --tls --http2; do
    python3 integration/bench/proxies.py --weir "$counting" --only weir --rounds 1 --seconds 2 ${variant:+"$variant"}
done
python3 integration/bench/proxies.py --weir "$counting" --only weir+redis --rounds 1 --seconds 2
# It exits with 1 because a counting program is slow.
python3 integration/bench/grpc.py --weir "$counting" --rounds 1 --seconds 2 || [ $? -eq 1 ]
"$profdata" merge -o "$out/weir.profdata" "$counts"

RUSTFLAGS="-Cprofile-use=$out/weir.profdata" CARGO_TARGET_DIR=$target/using \
    cargo build --locked --release --bin weir --target "$tuple"
install --mode=0755 "$target/using/$tuple/release/weir" "$out/weir"
