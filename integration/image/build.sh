#!/usr/bin/env bash
# Builds the image's contents in a directory: a static `weir`, its licence, the sample rules and the image's settings. The
# Dockerfile runs it with profile `release`, the tests with profile `dev`.
#
#   integration/image/build.sh PROFILE DIRECTORY
#
# The C library is glibc 2.34 or later, which resolves names in a static program by /etc/hosts and DNS without loading a
# library. So the image has the C library that all other tests run with, not musl.
set -euo pipefail
umask 022 # readable by everybody, whatever the builder's umask
profile=$1
root=$(realpath -m "$2")
cd "$(dirname "$0")/../.."

# Only the program itself is compiled for static linking, so the tests' build of its dependencies is reused. The result has
# its own directory, so `target/debug/weir` is not replaced.
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
CARGO_BUILD_BUILD_DIR=${CARGO_BUILD_BUILD_DIR:-$target} CARGO_TARGET_DIR=$target/image \
    cargo rustc --locked --features otel --profile "$profile" --bin weir -- -C target-feature=+crt-static -C strip=debuginfo
case $profile in
dev) binary=$target/image/debug/weir ;;
*) binary=$target/image/$profile/weir ;;
esac

# The image has no dynamic loader.
if readelf --program-headers "$binary" | grep -q INTERP; then
    echo "$binary is not static: it wants a loader" >&2
    exit 1
fi
install -D --mode=0755 "$binary" "$root/usr/bin/weir"
install -D --mode=0644 LICENSE "$root/usr/share/doc/weir/LICENSE"
install -D --mode=0644 limits.yaml "$root/etc/weir/limits.yaml"
install -D --mode=0644 integration/image/weir.yaml "$root/usr/share/weir/weir.yaml"
