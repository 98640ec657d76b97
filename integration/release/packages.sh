#!/usr/bin/env bash
# Makes the archive and the packages of a release out of the image's contents, so all of them have the same binary.
#
#   integration/release/packages.sh archive IMAGE WEIR OUT
#   integration/release/packages.sh deb IMAGE WEIR OUT
#   integration/release/packages.sh rpm IMAGE WEIR OUT
#
# IMAGE is the directory with the image's contents (integration/image/build.sh), WEIR a binary of the same version that runs on
# this machine and generates man pages and completions, OUT the directory of the result. `deb` needs cargo-deb, `rpm` needs
# cargo-generate-rpm. Set SOURCE_DATE_EPOCH to get the same bytes again.
set -euo pipefail
umask 022
kind=$1
image=$(realpath "$2")
weir=$(realpath "$3")
out=$(realpath -m "$4")
cd "$(dirname "$0")/../.."
mkdir -p "$out"
out=$(realpath "$out")

version=$(sed -n '0,/^version = "\(.*\)"$/s//\1/p' Cargo.toml)
machine=$(readelf --file-header "$image/usr/bin/weir" | sed -n 's/^ *Machine: *//p')
case $machine in
*X86-64) cpu=x86_64 ;;
AArch64) cpu=aarch64 ;;
*)
    echo "$image/usr/bin/weir is for \`$machine\`, expected x86-64 or AArch64" >&2
    exit 1
    ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

archive() {
    local name=weir-$version-linux-$cpu
    local top=$work/$name
    mkdir -p "$top/systemd"
    install --mode=0755 "$image/usr/bin/weir" "$top/weir"
    install --mode=0644 "$image"/usr/share/doc/weir/* "$image/etc/weir/limits.yaml" README.md CHANGELOG.md "$top"
    install --mode=0644 systemd/weir.* docs/systemd.md "$top/systemd"
    integration/release/generated.sh "$weir" "$top"
    tar --create --sort=name --owner=0 --group=0 --numeric-owner --mtime="@${SOURCE_DATE_EPOCH:-0}" \
        --directory "$work" "$name" | gzip --no-name --best >"$out/$name.tar.gz"
}

# Puts the binary and the generated files where the assets in Cargo.toml are taken from.
assets() {
    target=${CARGO_TARGET_DIR:-target}
    rm -rf "$target/package"
    mkdir -p "$target/package" "$target/$cpu-unknown-linux-gnu/release"
    install --mode=0755 "$image/usr/bin/weir" "$target/$cpu-unknown-linux-gnu/release/weir"
    install --mode=0644 "$image/usr/share/doc/weir/THIRD-PARTY-LICENSES.txt" "$target/package"
    integration/release/generated.sh "$weir" "$target/package"
}

case $kind in
archive) archive ;;
deb)
    assets
    cargo deb --no-build --no-strip --target "$cpu-unknown-linux-gnu" --output "$out/"
    ;;
rpm)
    assets
    cargo generate-rpm --target "$cpu-unknown-linux-gnu" --output "$out/"
    ;;
*)
    echo "unknown kind \`$kind\`, expected archive, deb or rpm" >&2
    exit 1
    ;;
esac
