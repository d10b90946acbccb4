#!/usr/bin/env bash
# fuzz.sh [TARGET]...: runs the fuzz targets of tests/fuzz one after the other, SECONDS_EACH (60) seconds each, and ends
# with an error at the first input that breaks a rule. What was tried is kept in target/fuzz and goes on from there.
#
# Builds cargo-fuzz into target/tools unless it is there. Works with a stable compiler, without sanitizers: no code of
# ours is unsafe, and what is looked for is a panic, a broken rule, a hang or memory without a bound.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/services/common.sh"

CARGO_FUZZ_VERSION="${CARGO_FUZZ_VERSION:-0.13.2}"
SECONDS_EACH="${SECONDS_EACH:-60}"
fuzz="$TARGET_DIR/fuzz"
host="$(rustc -vV | sed -n "s/^host: //p")"
cd "$(dirname "${BASH_SOURCE[0]}")/fuzz"

if [ "$#" -gt 0 ]; then
    targets=("$@")
else
    targets=()
    for source in targets/*.rs; do
        targets+=("$(basename "$source" .rs)")
    done
fi

if [ ! -x "$TARGET_DIR/tools/bin/cargo-fuzz" ]; then
    [ "${NO_INSTALL:-}" != 1 ] || die "cargo-fuzz is missing (NO_INSTALL=1)"
    say "building cargo-fuzz $CARGO_FUZZ_VERSION into target/tools (minutes, once)"
    cargo install --quiet --locked --root "$TARGET_DIR/tools" --version "$CARGO_FUZZ_VERSION" cargo-fuzz </dev/null
fi
# libFuzzer's counters are a switch that a stable compiler has only with this variable.
RUSTC_BOOTSTRAP=1 "$TARGET_DIR/tools/bin/cargo-fuzz" fuzz build --sanitizer none --fuzz-dir . --target-dir "$fuzz"

# To begin with: a file with every key.
mkdir -p "$fuzz/corpus/configuration"
cargo run --quiet --locked --manifest-path ../../Cargo.toml --bin outbox-relay -- config --default |
    sed 's/^# *\([a-z_]* = \)/\1/' >"$fuzz/corpus/configuration/every-key"

for target in "${targets[@]}"; do
    corpus="$fuzz/corpus/$target"
    mkdir -p "$corpus" "$fuzz/found"
    say "fuzz: $target, $SECONDS_EACH s"
    "$fuzz/$host/release/$target" -max_total_time="$SECONDS_EACH" -max_len=16384 -timeout=10 \
        -rss_limit_mb=1024 -print_final_stats=1 -artifact_prefix="$fuzz/found/$target-" "$corpus" 2>&1 |
        tee "$fuzz/$target.log" | grep -E 'panicked|^==|SUMMARY|Test unit written|^Done|stat::(average|peak)|cov: .*DONE'
done
