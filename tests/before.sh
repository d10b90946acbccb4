#!/usr/bin/env bash
# before.sh: builds the last relay whose schema was version 1 from this repository's history to
# target/before/outbox-relay, for tests of updates.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

BEFORE_COMMIT="${BEFORE_COMMIT:-bd01bb1}"
target="${CARGO_TARGET_DIR:-$PWD/target}"
if [ -x "$target/before/outbox-relay" ] && [ "$(cat "$target/before/commit" 2>/dev/null)" = "$BEFORE_COMMIT" ]; then
    exit 0
fi
git cat-file -e "$BEFORE_COMMIT^{commit}" 2>/dev/null || {
    echo "before.sh: commit $BEFORE_COMMIT is not here: fetch the whole history" >&2
    exit 1
}
rm -rf "$target/before"
mkdir -p "$target/before/src"
git archive "$BEFORE_COMMIT" | tar -x -C "$target/before/src"
# Its own target directory: both builds would write the same files.
CARGO_TARGET_DIR="$target/before/target" cargo build --locked --manifest-path "$target/before/src/Cargo.toml" -p outbox-relay
install "$target/before/target/debug/outbox-relay" "$target/before/outbox-relay"
rm -rf "$target/before/target" "$target/before/src"
echo "$BEFORE_COMMIT" >"$target/before/commit"
