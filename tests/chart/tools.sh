#!/usr/bin/env bash
# Brings what the chart's checks need into target/tools, once: helm (built from its Go module, since no package
# ships it; minutes on two cores), promtool (taken out of Debian's prometheus package, which is not installed: it
# would leave a service behind), and Python packages with the schemas of several Kubernetes versions.
# A helm or promtool on the PATH is used as it is. Prints the variables HELM, PROMTOOL and CHART_PYTHON.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../services/common.sh"

HELM_VERSION="${HELM_VERSION:-v3.19.5}"
TOOLS="$TARGET_DIR/tools"
CHART_SCRIPTS="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
REQUIREMENTS="$CHART_SCRIPTS/requirements.txt"

refuse_if_not_allowed() {
    [ "${NO_INSTALL:-}" != 1 ] || die "$1 is missing (NO_INSTALL=1)"
}

python_packages() {
    local venv="$TOOLS/chart-python"
    if ! cmp -s "$REQUIREMENTS" "$venv/requirements.txt"; then
        refuse_if_not_allowed "a Python environment with tests/chart/requirements.txt"
        say "installing the Kubernetes schemas into target/tools (once)"
        rm -rf "$venv"
        python3 -m venv "$venv" >&2
        "$venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$REQUIREMENTS" >&2
        cp "$REQUIREMENTS" "$venv/requirements.txt"
    fi
    printf '%s\n' "$venv/bin/python"
}

helm_program() {
    local built="$TOOLS/bin/helm" go
    if [ -x "$built" ]; then
        printf '%s\n' "$built"
        return
    fi
    if command -v helm; then
        return
    fi
    refuse_if_not_allowed "helm"
    go="$("$CHART_SCRIPTS/go.sh")"
    say "building helm $HELM_VERSION into target/tools (minutes, once)"
    GOBIN="$TOOLS/bin" GOFLAGS=-mod=mod GOTOOLCHAIN=local "$go" install -trimpath "helm.sh/helm/v3/cmd/helm@$HELM_VERSION" </dev/null >&2
    printf '%s\n' "$built"
}

promtool_program() {
    local taken="$TOOLS/bin/promtool" scratch
    if [ -x "$taken" ]; then
        printf '%s\n' "$taken"
        return
    fi
    if command -v promtool; then
        return
    fi
    refuse_if_not_allowed "promtool"
    say "taking promtool out of Debian's prometheus package into target/tools (once)"
    scratch="$(mktemp -d "$TOOLS/promtool.XXXXXXXX")"
    # apt's own user may not write into a folder of ours, so the download runs as whoever calls.
    (cd "$scratch" && apt-get -q -o APT::Sandbox::User="$(id -un)" download prometheus </dev/null >&2)
    dpkg-deb --fsys-tarfile "$scratch"/prometheus_*.deb | tar -x -C "$scratch" ./usr/bin/promtool
    install -D "$scratch/usr/bin/promtool" "$taken"
    rm -rf "$scratch"
    printf '%s\n' "$taken"
}

mkdir -p "$TOOLS/bin"
exec 9>"$TARGET_DIR/.chart-tools.lock"
flock 9
# Each on a line of its own: a failure in a substitution must end the script.
python="$(python_packages)"
promtool="$(promtool_program)"
helm="$(helm_program)"
printf 'HELM=%q PROMTOOL=%q CHART_PYTHON=%q\n' "$helm" "$promtool" "$python"
