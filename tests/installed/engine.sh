#!/usr/bin/env bash
# engine.sh buildah|podman ARGUMENTS...: Debian's container engine with images and containers of its own below target/,
# without a daemon and without a manager of the system's cgroups. STORAGE_DRIVER=vfs where no overlay can be mounted.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../services/common.sh"

program="$1"
shift
store="$TARGET_DIR/installed/containers"
options=(--root "$store/storage" --runroot "$store/run" --storage-driver "${STORAGE_DRIVER:-overlay}")
if [ "$program" = podman ]; then
    options+=(--tmpdir "$store/tmp" --cgroup-manager cgroupfs --events-backend file --runtime runc)
fi
exec "$program" "${options[@]}" "$@"
