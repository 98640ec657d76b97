#!/usr/bin/env bash
# Makes the archive of examples: configurations of gateways, and a Compose file with the image of the release.
#
#   integration/release/examples.sh OUT
#
# Set SOURCE_DATE_EPOCH to get the same bytes again.
set -euo pipefail
umask 022
mkdir -p "$1"
out=$(realpath "$1")
cd "$(dirname "$0")/../.."
name=weir-$(sed -n '0,/^version = "\(.*\)"$/s//\1/p' Cargo.toml)-examples
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

integration/release/names.py write "$work/$name"
# Compose mounts these two; the chart has a package of its own.
find "$work/$name/helm/weir" -mindepth 1 -maxdepth 1 ! -name alerts ! -name dashboards -exec rm -r {} +
tar --create --sort=name --owner=0 --group=0 --numeric-owner --mtime="@${SOURCE_DATE_EPOCH:-0}" \
    --directory "$work" "$name" | gzip --no-name --best >"$out/$name.tar.gz"
