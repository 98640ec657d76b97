#!/usr/bin/env bash
# Installs what integration/image/build.sh needs in the image of the Rust compiler: Python, and for another architecture than
# this machine's a C compiler, a C library and Rust's standard library.
#
#   integration/image/toolchain.sh ARCHITECTURE
set -euo pipefail
packages=(python3)
case $1-$(dpkg --print-architecture) in
amd64-amd64 | arm64-arm64) ;;
amd64-*)
    packages+=(gcc-x86-64-linux-gnu libc6-dev-amd64-cross)
    rustup target add x86_64-unknown-linux-gnu
    ;;
arm64-*)
    packages+=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross)
    rustup target add aarch64-unknown-linux-gnu
    ;;
*)
    echo "unknown architecture \`$1\`, expected amd64 or arm64" >&2
    exit 1
    ;;
esac
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}"
rm -rf /var/lib/apt/lists/*
