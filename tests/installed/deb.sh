#!/usr/bin/env bash
# deb.sh BINARY: the Debian package of this binary, made as the release makes it. Prints its path. Builds cargo-deb into
# target/tools unless one is there or on the PATH: minutes, once.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../services/common.sh"

binary="$1"
CARGO_DEB_VERSION="${CARGO_DEB_VERSION:-3.8.0}"
program="$TARGET_DIR/tools/bin/cargo-deb"
if [ ! -x "$program" ] && ! program="$(command -v cargo-deb)"; then
    program="$TARGET_DIR/tools/bin/cargo-deb"
    [ "${NO_INSTALL:-}" != 1 ] || die "cargo-deb is missing (NO_INSTALL=1)"
    say "building cargo-deb $CARGO_DEB_VERSION into target/tools (minutes, once)"
    (cd "$TARGET_DIR" && env -u CARGO_TARGET_DIR cargo install --quiet --locked --root "$TARGET_DIR/tools" \
        --version "$CARGO_DEB_VERSION" cargo-deb </dev/null >&2)
fi

# A target folder of its own: the package's binary must not become that of this checkout.
target="$TARGET_DIR/installed/deb"
rm -rf "$target"
install -D -m 755 "$binary" "$target/release/outbox-relay"
cd "$REPO_ROOT"
packaging/assets.sh "$binary" target/packaging
env -u CARGO_BUILD_TARGET CARGO_TARGET_DIR="$target" "$program" deb --locked --no-build --package outbox-relay \
    --output "$target/outbox-relay.deb" </dev/null >&2
printf '%s\n' "$target/outbox-relay.deb"
