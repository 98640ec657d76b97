#!/usr/bin/env bash
# Builds what the image holds: a static `weir`, its licence, the sample rules and the image's own settings, in a directory
# as they are in the image. The Dockerfile builds with this and profile `release`, the tests with this and profile `dev`.
#
#   integration/image/build.sh PROFILE DIRECTORY
#
# The C library is glibc, of 2.34 or later: since then a static program resolves names by /etc/hosts and DNS without
# loading a library. So the image has the C library that all other tests run with, and not musl.
set -euo pipefail
umask 022 # readable by everybody, whatever the builder's umask
profile=$1
root=$(realpath -m "$2")
cd "$(dirname "$0")/../.."

# Only the program itself is compiled for static linking: what it depends on is the same either way, so the tests' build
# of it serves here too. `target/debug/weir` stays what it is: the result goes to a directory of its own.
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
CARGO_BUILD_BUILD_DIR=${CARGO_BUILD_BUILD_DIR:-$target} CARGO_TARGET_DIR=$target/image \
    cargo rustc --locked --features otel --profile "$profile" --bin weir -- -C target-feature=+crt-static -C strip=debuginfo
case $profile in
dev) binary=$target/image/debug/weir ;;
*) binary=$target/image/$profile/weir ;;
esac

# There is no loader in the image.
if readelf --program-headers "$binary" | grep -q INTERP; then
    echo "$binary is not static: it wants a loader" >&2
    exit 1
fi
install -D --mode=0755 "$binary" "$root/usr/bin/weir"
install -D --mode=0644 LICENSE "$root/usr/share/doc/weir/LICENSE"
install -D --mode=0644 limits.yaml "$root/etc/weir/limits.yaml"
install -D --mode=0644 integration/image/weir.yaml "$root/usr/share/weir/weir.yaml"
