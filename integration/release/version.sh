#!/usr/bin/env bash
# Prints `version=` and `prerelease=` for the release workflow, after a check that everything that has a version agrees on it.
#
#   integration/release/version.sh tag v0.2.0
#   integration/release/version.sh branch main     a rehearsal: the version of Cargo.toml
set -euo pipefail
kind=$1
name=$2
cd "$(dirname "$0")/../.."

fail() {
    echo "$1" >&2
    exit 1
}

version=$(sed -n '0,/^version = "\(.*\)"$/s//\1/p' Cargo.toml)
if [ "$kind" = tag ] && [ "$name" != "v$version" ]; then
    fail "the tag is \`$name\` and Cargo.toml has version $version, expected \`v$version\`"
fi
for key in version appVersion; do
    found=$(sed -n "s/^$key: *\"\{0,1\}\([^\"]*\)\"\{0,1\}\$/\1/p" helm/weir/Chart.yaml)
    [ "$found" = "$version" ] || fail "helm/weir/Chart.yaml has $key $found, expected $version"
done
label=$(sed -n 's/.*org.opencontainers.image.version="\(.*\)".*/\1/p' Dockerfile)
[ "$label" = "$version" ] || fail "the Dockerfile has version $label, expected $version"
compose=integration/examples/compose/compose.yaml
grep -q " image: ghcr.io/weir/weir:$version\$" $compose || fail "$compose does not use ghcr.io/weir/weir:$version"
integration/release/notes.py "$version" >/dev/null

echo "version=$version"
case $version in
*-*) echo prerelease=true ;;
*) echo prerelease=false ;;
esac
