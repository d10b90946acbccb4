#!/usr/bin/env bash
# debian.sh NAME PACKAGE...: a tree of Debian 12 with these packages, made by debootstrap from where the machine's own
# apt gets them, once. Prints its folder.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../services/common.sh"

name="$1"
shift
tree="$TARGET_DIR/installed/$name"
mkdir -p "$TARGET_DIR/installed/packages"
exec 9>"$tree.lock"
flock 9
if [ "$(cat "$tree.packages" 2>/dev/null)" != "$*" ]; then
    # shellcheck disable=SC2016 # The names are apt's.
    mirror="$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Codename: bookworm' | sed -n 1p)"
    [ -n "$mirror" ] || die "apt knows no place of Debian 12's packages"
    say "making a Debian 12 with: $* (about a minute, once)"
    # A debootstrap that was killed may have left its /proc mounted there.
    rm -rf --one-file-system "$tree" "$tree.packages"
    debootstrap --variant=minbase --cache-dir="$TARGET_DIR/installed/packages" \
        --include="$(IFS=,; printf '%s' "$*")" bookworm "$tree" "$mirror" </dev/null >"$tree.log" 2>&1 ||
        { show_tail "$tree.log"; die "debootstrap failed"; }
    printf '%s\n' "$*" >"$tree.packages"
fi
printf '%s\n' "$tree"
