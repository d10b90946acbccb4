#!/usr/bin/env bash
# Builds cargo-deny into target/tools unless one is there or on the PATH: about three minutes
# on two cores, once. Prints the path of the program.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

CARGO_DENY_VERSION="${CARGO_DENY_VERSION:-0.20.2}"
built="$TARGET_DIR/tools/bin/cargo-deny"

if [ -x "$built" ]; then
    printf '%s\n' "$built"
    exit 0
fi
if command -v cargo-deny; then
    exit 0
fi
if [ "${NO_INSTALL:-}" = 1 ]; then
    die "cargo-deny is missing (NO_INSTALL=1): cargo install --locked cargo-deny"
fi
say "building cargo-deny $CARGO_DENY_VERSION into target/tools (about three minutes, once)"
mkdir -p "$TARGET_DIR"
(
    flock 9
    # Whoever held the lock before may have built it.
    if [ ! -x "$built" ]; then
        # A target folder of its own would be thrown away; the shared one would rebuild.
        cd "$TARGET_DIR"
        env -u CARGO_TARGET_DIR cargo install --quiet --locked --root "$TARGET_DIR/tools" \
            --version "$CARGO_DENY_VERSION" cargo-deny </dev/null >&2
    fi
) 9>"$TARGET_DIR/.tools.lock"
printf '%s\n' "$built"
