#!/usr/bin/env bash
# Checks rules files with annotations for GitHub. action.yml describes FILES, STRICT and VERSION. Without a `weir` on the PATH, installs
# the static binary of a release of REPOSITORY, for later steps as well.
set -euo pipefail

install_release() {
    if [ -z "$REPOSITORY" ]; then
        echo "there is no \`weir\` on the PATH, and an action in a checkout does not know where releases are" >&2
        exit 1
    fi
    local version=${VERSION:-$(sed -n '0,/^version = "\(.*\)"$/s//\1/p' "$GITHUB_ACTION_PATH/../../../Cargo.toml")}
    local name from place
    name=weir-$version-linux-$(uname -m)
    from=$GITHUB_SERVER_URL/$REPOSITORY/releases/download/v$version
    place=$(mktemp -d -p "$RUNNER_TEMP")
    cd "$place"
    curl --fail --silent --show-error --location --retry 3 --max-time 300 --remote-name-all "$from/SHA256SUMS" "$from/$name.tar.gz"
    sha256sum --check --quiet --ignore-missing SHA256SUMS
    tar -xzf "$name.tar.gz"
    cd "$OLDPWD"
    PATH=$place/$name:$PATH
    echo "$place/$name" >>"$GITHUB_PATH"
}

command -v weir >/dev/null || install_release
arguments=(--format github)
[ "$STRICT" != true ] || arguments+=(--strict)
# shellcheck disable=SC2206 # words and patterns
files=($FILES)
weir check "${arguments[@]}" "${files[@]}"
