#!/usr/bin/env bash
# Makes the archive and the packages of a release out of the image's contents, so all of them have the same binary.
#
#   integration/release/packages.sh archive IMAGE WEIR OUT
#   integration/release/packages.sh deb IMAGE WEIR OUT
#   integration/release/packages.sh rpm IMAGE WEIR OUT
#
# IMAGE is the directory with the image's contents (integration/image/build.sh), WEIR a binary of the same version that runs on
# this machine and generates man pages and completions, OUT the directory of the result. `deb` needs dpkg-deb, `rpm` needs rpmbuild
# (Debian's package `rpm`). The same SOURCE_DATE_EPOCH makes the same bytes again.
# shellcheck disable=SC2016 # the packages' scripts expand their own arguments
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
*X86-64) cpu=x86_64 debian=amd64 ;;
AArch64) cpu=aarch64 debian=arm64 ;;
*)
    echo "$image/usr/bin/weir is for \`$machine\`, expected x86-64 or AArch64" >&2
    exit 1
    ;;
esac
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-0}
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
    tar --create --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
        --directory "$work" "$name" | gzip --no-name >"$out/$name.tar.gz"
}

# In both packages, the sample configuration names an application that is not there, so nothing is enabled or started.
summary="Rate limiter in front of APIs"
description="\
Weir decides for every request whether it may pass and reports the client's
remaining quota. It is a reverse proxy that enforces limits by itself, and the
decision service of Envoy, Istio, nginx, HAProxy, Traefik and Caddy. Counts
live in memory or in Redis."
reload='[ ! -d /run/systemd/system ] || systemctl daemon-reload || true'
restart='[ ! -d /run/systemd/system ] || systemctl try-restart weir.service || true'
disable='[ ! -d /run/systemd/system ] || systemctl disable --now weir.socket weir.service || true'
settings="/etc/weir/limits.yaml /etc/weir/weir.yaml"
homepage=$(integration/release/names.py | sed -n 's/^site=//p')
# A prerelease, such as 1.0.0-rc.1, is older than its release.
packaged=${version/-/\~}

# Puts the files of a package at their places below a directory. Debian and Fedora look for completions in different ones.
stage() { # ROOT ZSH LICENSES
    local root=$1
    integration/release/generated.sh "$weir" "$work/generated"
    install -D --mode=0755 "$image/usr/bin/weir" "$root/usr/bin/weir"
    install -D --mode=0644 --target-directory="$root/etc/weir" limits.yaml systemd/weir.yaml
    install -D --mode=0644 --target-directory="$root/usr/lib/systemd/system" systemd/weir.service systemd/weir.socket
    install -D --mode=0644 --target-directory="$root/usr/share/man/man1" "$work"/generated/man/*
    gzip --no-name --best "$root"/usr/share/man/man1/*
    install -D --mode=0644 "$work/generated/completions/weir.bash" "$root/usr/share/bash-completion/completions/weir"
    install -D --mode=0644 "$work/generated/completions/weir.fish" "$root/usr/share/fish/vendor_completions.d/weir.fish"
    install -D --mode=0644 "$work/generated/completions/_weir" "$root/usr/share/zsh/$2/_weir"
    install -D --mode=0644 --target-directory="$root/usr/share/doc/weir" CHANGELOG.md docs/systemd.md
    install -D --mode=0644 LICENSE "$root/$3"
    install -D --mode=0644 "$image/usr/share/doc/weir/THIRD-PARTY-LICENSES.txt" "$root/$(dirname "$3")/THIRD-PARTY-LICENSES.txt"
    find "$root" -exec touch --date="@$SOURCE_DATE_EPOCH" {} +
}

deb() {
    local root=$work/root control=$work/root/DEBIAN
    stage "$root" vendor-completions usr/share/doc/weir/copyright
    mkdir "$control"
    (cd "$root" && find etc usr -type f -exec md5sum {} + | sort --key=2) >"$control/md5sums"
    # shellcheck disable=SC2086 # two paths
    printf '%s\n' $settings >"$control/conffiles"
    {
        echo "Package: weir"
        echo "Version: $packaged-1"
        echo "Architecture: $debian"
        echo "Maintainer: Weir's contributors"
        echo "Section: net"
        echo "Priority: optional"
        echo "Installed-Size: $(du --summarize --apparent-size --block-size=1024 "$root" | cut -f1)"
        [ -z "$homepage" ] || echo "Homepage: $homepage"
        echo "Description: $summary"
        echo " ${description//$'\n'/$'\n' }"
    } >"$control/control"
    # The second argument is the version that is replaced.
    printf '#!/bin/sh\n%s\nif [ "$1" = configure ] && [ -n "$2" ]; then %s; fi\n' "$reload" "$restart" >"$control/postinst"
    printf '#!/bin/sh\nif [ "$1" = remove ]; then %s; fi\n' "$disable" >"$control/prerm"
    printf '#!/bin/sh\n%s\n' "$reload" >"$control/postrm"
    chmod 0755 "$control/postinst" "$control/prerm" "$control/postrm"
    dpkg-deb --root-owner-group --build "$root" "$out/weir_$packaged-1_$debian.deb"
}

rpm() {
    stage "$work/root" site-functions usr/share/licenses/weir/LICENSE
    {
        # Without a second package of debugging symbols, and without tools that change the binary.
        printf '%%global %s\n' 'debug_package %{nil}' '__os_install_post %{nil}' '_build_id_links none' '_buildhost weir' \
            'use_source_date_epoch_as_buildtime 1' "_rpmdir $out" \
            '_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm'
        printf '%s\n' "Name: weir" "Version: $packaged" "Release: 1" "Summary: $summary" "License: Apache-2.0" "AutoReqProv: no"
        [ -z "$homepage" ] || echo "URL: $homepage"
        printf '%%description\n%s\n' "$description"
        printf '%%install\ncp -a %s/. %%{buildroot}\n' "$work/root"
        printf '%%post\n%s\n' "$reload"
        # The argument is the number of versions that stay.
        printf '%%preun\nif [ "$1" = 0 ]; then %s; fi\n' "$disable"
        printf '%%postun\n%s\nif [ "$1" != 0 ]; then %s; fi\n' "$reload" "$restart"
        echo "%files"
        # shellcheck disable=SC2086 # two paths
        printf '%%config(noreplace) %s\n' $settings
        (cd "$work/root" && find usr -type f -printf '/%p\n' | sort)
    } >"$work/weir.spec"
    rpmbuild --quiet -bb --target "$cpu-linux" --define "_topdir $work/rpmbuild" "$work/weir.spec"
}

case $kind in
archive | deb | rpm) "$kind" ;;
*)
    echo "unknown kind \`$kind\`, expected archive, deb or rpm" >&2
    exit 1
    ;;
esac
