#!/usr/bin/env bash
# Builds Kubernetes' API server from its Go module into target/tools, since no package ships it: ten minutes on two busy
# cores, once. Prints the path of the program.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
. "$here/../services/common.sh"

version="$(sed -n 's/^\tk8s.io\/kubernetes //p' "$here/apiserver/go.mod")"
built="$TARGET_DIR/tools/bin/kube-apiserver-$version"
if [ ! -x "$built" ]; then
    [ "${NO_INSTALL:-}" != 1 ] || die "the API server is missing (NO_INSTALL=1)"
    go="$("$here/../chart/go.sh")"
    say "building Kubernetes' API server $version into target/tools (minutes, once)"
    # What it says its version is comes from the linker's command line.
    IFS=. read -r major minor _ <<<"${version#v}"
    names="k8s.io/component-base/version"
    (cd "$here/apiserver" && GOFLAGS=-mod=readonly GOTOOLCHAIN=local "$go" build -trimpath -o "$built" -ldflags \
        "-s -w -X $names.gitVersion=$version -X $names.gitMajor=$major -X $names.gitMinor=$minor" . </dev/null >&2)
fi
printf '%s\n' "$built"
