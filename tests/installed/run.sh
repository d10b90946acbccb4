#!/usr/bin/env bash
# run.sh [PYTEST ARGUMENTS...]: the relay as people install it, against the services of TEST_DATABASE_URL and
# TEST_AMQP_URL: the image, built from the Dockerfile by buildah and run by podman; the Debian package, run by a systemd
# of its own; the chart, installed in Kubernetes' API server. For root only. The closing line is one of
# `make test-slow`'s result lines.
#
# TEST_IMAGE names an image of engine.sh's store, and TEST_PACKAGE a Debian package, that is tested instead of a new
# one.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
. "$here/../services/common.sh"
cd "$here"
store="$TARGET_DIR/installed/containers"

# Containers are gone with their tests; what a killed run left is removed too, and nothing stays mounted.
finish() {
    if [ -d "$store" ]; then
        ./engine.sh podman rm --all --force --time 0 >/dev/null || true
        ./engine.sh buildah rm --all >/dev/null || true
    fi
    awk -v below="$TARGET_DIR/installed/" 'index($5, below) == 1 { print $5 }' /proc/self/mountinfo | tac |
        while read -r mount; do umount "$mount" || true; done
}

is_root || die "engines and systemd are started by root only"
# Two runs would take each other's containers and mounts away.
mkdir -p "$TARGET_DIR/installed"
exec 7>"$TARGET_DIR/installed/run.lock"
flock 7
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
finish
if [ -n "${TEST_IMAGE:-}" ]; then
    say "testing the image $TEST_IMAGE"
else
    export TEST_IMAGE=localhost/outbox-relay:test
    ./image.sh "$TEST_IMAGE"
fi
APISERVER="$(./apiserver.sh)"
tools="$(../chart/tools.sh)"
eval "$tools"
export APISERVER HELM
PYTHONPATH="$REPO_ROOT/tests/pytest" /usr/bin/python3 -B -m pytest -q -p no:cacheprovider -p result_line --durations=5 "$@"
