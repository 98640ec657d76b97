#!/usr/bin/env bash
# Writes the files that `weir` generates for archives and packages: man pages and completions.
#
#   integration/release/generated.sh WEIR DIRECTORY
#
# WEIR is a binary of the same version that runs on this machine.
set -euo pipefail
umask 022
weir=$1
directory=$2
mkdir -p "$directory/man" "$directory/completions"
"$weir" man --dir "$directory/man"
"$weir" completions bash >"$directory/completions/weir.bash"
"$weir" completions zsh >"$directory/completions/_weir"
"$weir" completions fish >"$directory/completions/weir.fish"
