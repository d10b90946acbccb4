#!/bin/sh
# check-version.sh vX.Y.Z: a release's tag must be the version of the workspace and of the chart's application.
set -eu
cd "$(dirname "$0")/.."

tag="${1#v}"
workspace="$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"$/\1/p' Cargo.toml)"
chart="$(sed -n 's/^appVersion: "\(.*\)"$/\1/p' charts/outbox-relay/Chart.yaml)"
if [ "$tag" != "$workspace" ] || [ "$tag" != "$chart" ]; then
    echo "the tag says $tag, Cargo.toml $workspace, the chart $chart" >&2
    exit 1
fi
