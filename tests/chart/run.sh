#!/usr/bin/env bash
# run.sh [CHECK...]: the checks of chart, alerts and dashboard, with the tools of tools.sh. Nothing is installed in a
# cluster; no network is used once the tools are there. A check is a name such as check_alerts or
# check_chart.Chart.test_every_case_lints.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
tools="$("$here/tools.sh")"
eval "$tools"
export HELM PROMTOOL
# Where the sources lie nothing is written.
export PYTHONDONTWRITEBYTECODE=1
cd "$here"
exec "$CHART_PYTHON" run.py "$@"
