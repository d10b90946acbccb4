#!/usr/bin/env bash
# run.sh [--slow]: everything that `make test` does, in order, to the end, also after a failure:
# install, format, clippy, cargo deny, build, all tests against real services, the examples, the schema's and the
# session's tests on the oldest and newest PostgreSQL, the checks of chart and packaging. The last line is the summary.
#
# --slow runs only what takes minutes: the tests that are marked #[ignore], and those of tests/installed.
# NO_INSTALL=1 installs nothing. TEST_DATABASE_URL, TEST_AMQP_URL and TEST_KAFKA_BROKERS make
# the tests use given services. Arguments after -- go to the test binaries.
#
# shellcheck disable=SC2317 # Functions are called by name through step and tests.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

slow=no
if [ "${1:-}" = --slow ]; then
    slow=yes
    shift
fi
[ "${1:-}" != -- ] || shift

target="${CARGO_TARGET_DIR:-$PWD/target}"
mkdir -p "$target"
scratch="$(mktemp -d "$target/run.XXXXXXXX")"
trap 'rm -rf "$scratch"' EXIT
results="$scratch/results"
: >"$results"
export OUTBOX_TEST_SKIPS="$scratch/skips"
: >"$OUTBOX_TEST_SKIPS"
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-never}"
# A hung test must end before CI's own limit, so that the summary is still printed.
deadline="${TEST_DEADLINE_SECONDS:-$([ "$slow" = yes ] && echo 14400 || echo 3600)}"
broken=()

heading() { printf '\n=== %s (%s s) ===\n' "$1" "$SECONDS"; }

# step NAME COMMAND...: a step that is not a test counts only when it fails.
step() {
    local name="$1"
    shift
    heading "$name"
    if ! "$@" </dev/null; then
        printf '!!! %s failed\n' "$name"
        broken+=("$name")
        return 1
    fi
}

# tests NAME COMMAND...: like a step, and its result lines are collected.
tests() {
    local name="$1" failed_before failed_after
    shift
    failed_before="$(total 'failed')"
    heading "$name"
    "$@" </dev/null 2>&1 | tee "$scratch/output"
    local code="${PIPESTATUS[0]}"
    grep '^test result: ' "$scratch/output" >>"$results"
    reasons "$scratch/output" >>"$scratch/reasons"
    failed_after="$(total 'failed')"
    # A test binary that crashed, did not compile or ran too long has no failed test to show.
    if [ "$code" -ne 0 ]; then
        printf '!!! %s failed (exit %s)\n' "$name" "$code"
        [ "$failed_after" -gt "$failed_before" ] || broken+=("$name")
    fi
}

# reasons FILE: of each failed test its name and what it said, without logs and stack traces.
reasons() {
    awk '/^---- .* stdout ----$/ { name = $2; said = 0 }
        /^(Error:|Caused by:)/ || /panicked at/ { said = 4 }
        /^(stack backtrace|Stack backtrace|note: )/ { said = 0 }
        name != "" && said-- > 0 && NF { print "    " name ": " substr($0, 1, 600) }
        /^test result: / { name = "" }' "$1"
}

# total WORD: the sum of the numbers before WORD in all result lines.
total() {
    awk -v word="$1" '{ for (i = 2; i <= NF; i++) if ($i == word ";") sum += $(i - 1) } END { print sum + 0 }' "$results"
}

finish() {
    local passed failed skipped loud name
    loud="$(wc -l <"$OUTBOX_TEST_SKIPS")"
    passed=$(($(total passed) - loud))
    failed=$(($(total failed) + ${#broken[@]}))
    skipped=$(($(total ignored) + loud))
    printf '\n'
    for name in ${broken[@]+"${broken[@]}"}; do
        printf 'failed: %s\n' "$name"
    done
    if [ -s "$scratch/reasons" ]; then
        printf 'what failed tests said:\n'
        cat "$scratch/reasons"
    fi
    if [ "$loud" -gt 0 ]; then
        printf '!!! %s tests were skipped because Kafka is missing !!!\n' "$loud"
    fi
    printf 'took %s s\n' "$SECONDS"
    if [ "$failed" -eq 0 ] && [ "$passed" -eq 0 ]; then
        failed=1
        printf 'failed: no test ran\n'
    fi
    printf '%s passed, %s failed, %s skipped\n' "$passed" "$failed" "$skipped"
    [ "$failed" -eq 0 ]
    exit
}

install_needed() {
    local -a parts=(build) optional=(kafka)
    [ -n "${TEST_DATABASE_URL:-}" ] || parts+=(postgres)
    [ -n "${TEST_AMQP_URL:-}" ] || parts+=(rabbitmq)
    [ -z "${TEST_KAFKA_BROKERS:-}" ] || optional=()
    [ "$slow" = yes ] || optional+=(embedded examples chart)
    # Where nothing may be installed, only what is indispensable makes the check fail.
    if [ "${NO_INSTALL:-}" != 1 ] || [ "${CI:-}" = true ]; then
        parts+=(${optional[@]+"${optional[@]}"})
    fi
    tests/services/install.sh "${parts[@]}"
}

deny() {
    local program
    program="$(tests/services/tools.sh)" || return 1
    # Everything the lock file names must lie here before the check may do without a network.
    cargo fetch --locked && "$program" --offline check bans licenses sources
}

cargo_test() { tests/services/with.sh postgres rabbitmq kafka -- timeout "$deadline" cargo test --locked --workspace --features outbox-relay/otel --no-fail-fast "$@"; }

# A copy of the relay that can break a rule on purpose, for the tests that must catch it. It has no spans, so that what
# such a build says of an endpoint is tested too.
build_mutants() {
    cargo build --locked -p outbox-relay --features mutants &&
        install -D "$target/debug/outbox-relay" "$target/mutants/outbox-relay"
}

# The examples in other languages, each run twice, at once, and killed between its steps.
examples() {
    if ! tests/services/install.sh examples 2>/dev/null && [ "${CI:-}" != true ]; then
        printf '\n!!! THE EXAMPLES ARE SKIPPED: tests/services/install.sh examples installs what they need !!!\n'
        return
    fi
    tests "examples" tests/services/with.sh postgres rabbitmq kafka -- timeout "$deadline" schema/examples/tests/run.sh
}

versions() {
    local version
    if ! command -v npm >/dev/null && [ "${CI:-}" != true ]; then
        printf '\n!!! OTHER VERSIONS OF POSTGRESQL ARE SKIPPED: no npm here !!!\n'
        return
    fi
    for version in 14 18; do
        tests "schema and session on PostgreSQL $version" tests/services/embedded-postgres.sh "$version" -- \
            timeout "$deadline" cargo test --locked -p outbox-schema -p outbox-postgres --no-fail-fast
    done
}

# On a fresh machine the tools come first, and helm is built from its module, which takes minutes, once.
chart() {
    if [ "${NO_INSTALL:-}" = 1 ] && [ "${CI:-}" != true ] && ! tests/chart/tools.sh >/dev/null 2>&1; then
        printf '\n!!! THE CHECKS OF THE CHART ARE SKIPPED: run tests/chart/tools.sh !!!\n'
        return
    fi
    timeout 2400 tests/chart/run.sh
}

# The image and the Debian package, built and run, and the chart, installed. Engines and a systemd need root.
installed() {
    if [ "$(id -u)" -ne 0 ] || ! tests/services/install.sh installed; then
        if [ "${CI:-}" != true ]; then
            printf '\n!!! IMAGE, PACKAGE AND CHART ARE NOT INSTALLED: as root tests/services/install.sh installed brings what they need !!!\n'
            return
        fi
    fi
    tests "image, package and chart" tests/services/with.sh postgres rabbitmq -- timeout "$deadline" tests/installed/run.sh
}

step "install" install_needed || finish
if [ "$slow" = no ]; then
    step "format" cargo fmt --all -- --check
    step "clippy" cargo clippy --locked --workspace --all-targets -- -D warnings
    # Of the whole workspace, lest other features of what is shared make cargo check all of it anew.
    step "clippy with spans" cargo clippy --locked --workspace --all-targets --features outbox-relay/otel -- -D warnings
    step "deny" deny
fi
# The mutants go first, since both builds write the same file; what they share is compiled once.
step "build the mutants" build_mutants
# As the image has it: with spans. `cargo test` builds the same file and so names the same feature.
step "build" cargo build --locked --bin outbox-relay --features otel || finish
export OUTBOX_RELAY_BIN="${OUTBOX_RELAY_BIN:-$target/debug/outbox-relay}"
export OUTBOX_MUTANT_BIN="${OUTBOX_MUTANT_BIN:-$target/mutants/outbox-relay}"
if [ "$slow" = yes ]; then
    step "build the version before" tests/before.sh
    export OUTBOX_BEFORE_BIN="${OUTBOX_BEFORE_BIN:-$target/before/outbox-relay}"
    tests "slow tests" cargo_test -- --ignored "$@"
    installed
else
    tests "tests" cargo_test -- "$@"
    examples
    versions
    tests "chart" chart
fi
finish
