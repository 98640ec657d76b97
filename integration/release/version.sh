#!/usr/bin/env bash
# Prints `version=`, `prerelease=` and the names of integration/release/names.py for the release workflow, after a check that all
# places that have a version agree on it.
#
#   integration/release/version.sh tag v0.2.0      also refuses a tag that cannot be published as it is
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
for key in version appVersion; do
    found=$(sed -n "s/^$key: *\"\{0,1\}\([^\"]*\)\"\{0,1\}\$/\1/p" helm/weir/Chart.yaml)
    [ "$found" = "$version" ] || fail "helm/weir/Chart.yaml has $key $found, expected $version"
done
label=$(sed -n 's/.*org.opencontainers.image.version="\(.*\)".*/\1/p' Dockerfile)
[ "$label" = "$version" ] || fail "the Dockerfile has version $label, expected $version"
for path in integration/examples/compose/compose.yaml helm/weir/README.md docs/kubernetes.md; do
    grep -qw "weir:$version" $path || fail "$path does not use the image weir:$version"
done
names=$(integration/release/names.py)
integration/release/notes.py "$version" >/dev/null

if [ "$kind" = tag ]; then
    [ "$name" = "v$version" ] || fail "the tag is \`$name\` and Cargo.toml has version $version, expected \`v$version\`"
    repository=$(sed -n 's/^repository=//p' <<<"$names")
    [ -n "$repository" ] || fail "Cargo.toml has no \`repository\`, by which the image, the chart and the site are named"
    here=${GITHUB_REPOSITORY:+$GITHUB_SERVER_URL/$GITHUB_REPOSITORY}
    if [ -n "$here" ] && [ "$repository" != "$here" ]; then
        fail "\`repository\` in Cargo.toml is $repository, and this release would be published by $here"
    fi
    grep -qE "^## ${version//./\\.} - [0-9]{4}-[0-9]{2}-[0-9]{2}\$" CHANGELOG.md ||
        fail "CHANGELOG.md has no \`## $version - YYYY-MM-DD\`: the section of a release has its date"
    if integration/release/notes.py Unreleased >/dev/null 2>&1; then
        fail "CHANGELOG.md has entries under \`## Unreleased\`: a release leaves none there"
    fi
fi

echo "version=$version"
case $version in
*-*) echo prerelease=true ;;
*) echo prerelease=false ;;
esac
echo "$names"
