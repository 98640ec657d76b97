#!/usr/bin/env bash
# Builds the image's contents in a directory: a static `weir`, its license and those of its libraries, the sample rules and
# the image's settings. The Dockerfile runs it with profile `dist`, the tests with profile `dev`. Archives and packages of
# a release have the same binary.
#
#   integration/image/build.sh PROFILE DIRECTORY [ARCHITECTURE]
#
# ARCHITECTURE is `amd64` or `arm64` and defaults to this machine's. For another one than this machine's, run
# integration/image/toolchain.sh first.
#
# The C library is glibc 2.34 or later, which resolves names in a static program by /etc/hosts and DNS without loading a
# library. So the image has the C library that all other tests run with, not musl.
set -euo pipefail
umask 022 # readable by everybody, whatever the builder's umask
profile=$1
root=$(realpath -m "$2")
here=$(rustc --print host-tuple)
case ${3:-} in
'') tuple=$here ;;
amd64) tuple=x86_64-unknown-linux-gnu ;;
arm64) tuple=aarch64-unknown-linux-gnu ;;
*)
    echo "unknown architecture \`$3\`, expected amd64 or arm64" >&2
    exit 1
    ;;
esac
cd "$(dirname "$0")/../.."
export REVISION=${REVISION-$(git rev-parse HEAD 2>/dev/null || true)}

cross=()
if [ "$tuple" != "$here" ]; then
    cross=(--target "$tuple")
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
    export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER=x86_64-linux-gnu-gcc
fi

# Only the program itself is compiled for static linking, so the tests' build of its dependencies is reused. The result has
# its own directory, so `target/debug/weir` is not replaced.
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
CARGO_BUILD_BUILD_DIR=${CARGO_BUILD_BUILD_DIR:-$target} CARGO_TARGET_DIR=$target/image \
    cargo rustc --locked --profile "$profile" --bin weir "${cross[@]}" -- \
    -C target-feature=+crt-static -C strip=debuginfo
case $profile in
dev) folder=debug ;;
*) folder=$profile ;;
esac
binary=$target/image${cross:+/$tuple}/$folder/weir

# The image has no dynamic loader.
if readelf --program-headers "$binary" | grep -q INTERP; then
    echo "$binary is not static: it wants a loader" >&2
    exit 1
fi
install -D --mode=0755 "$binary" "$root/usr/bin/weir"
# Envoy Gateway starts its rate limit service by this name.
install -d "$root/bin"
ln -sf ../usr/bin/weir "$root/bin/ratelimit"
install -D --mode=0644 LICENSE "$root/usr/share/doc/weir/LICENSE"
python3 integration/release/licenses.py "$tuple" >"$root/usr/share/doc/weir/THIRD-PARTY-LICENSES.txt"
install -D --mode=0644 limits.yaml "$root/etc/weir/limits.yaml"
install -D --mode=0644 integration/image/weir.yaml "$root/usr/share/weir/weir.yaml"
