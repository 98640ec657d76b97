#!/usr/bin/env bash
# Checks rules files with annotations for GitHub. action.yml describes FILES, STRICT and VERSION. With a VERSION, or
# without a `weir` on the PATH, installs the static binary of a release of REPOSITORY, for later steps as well.
set -euo pipefail

install_release() {
    if [ -z "$REPOSITORY" ]; then
        echo "no \`weir\` can be installed: an action in a checkout does not know where releases are; put one on the PATH" >&2
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

if [ -n "$VERSION" ] || ! command -v weir >/dev/null; then install_release; fi
arguments=(--format github)
case $STRICT in
true) arguments+=(--strict) ;;
false) ;;
*)
    echo "\`strict\` is \`$STRICT\`, expected true or false" >&2
    exit 1
    ;;
esac
# shellcheck disable=SC2206 # words and patterns
files=($FILES)
weir check "${arguments[@]}" "${files[@]}"
