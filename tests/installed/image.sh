#!/usr/bin/env bash
# image.sh NAME: builds the repository's Dockerfile, as it is, with buildah. The base is a Debian 12 in place of
# `rust:1.95-bookworm`, whose registry need not be there: what the build needs of Debian's packages, and this machine's
# Rust, mounted. The build has no network; the crates are those that lie in this machine's cache.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
. "$here/../services/common.sh"

name="$1"
engine="$here/engine.sh"

# All of these are in the image that they stand for, but cmake, which the Dockerfile would install there. What the build
# needs beyond them makes it fail here.
tree="$("$here/debian.sh" build gcc g++ make cmake pkg-config libssl-dev ca-certificates)"
base="localhost/outbox-relay-base:$(cksum <"$tree.packages" | cut -d ' ' -f 1)"
if ! "$engine" podman image exists "$base"; then
    tar -C "$tree" --one-file-system --exclude=./var/cache/apt -c . | "$engine" podman import --quiet \
        --change 'ENV PATH=/usr/local/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
        --change 'ENV CARGO_HOME=/usr/local/cargo' --change 'ENV CARGO_NET_OFFLINE=true' - "$base" >&2
fi

cd "$REPO_ROOT"
cargo fetch --locked </dev/null >&2
# What earlier builds left without a name.
"$engine" podman image prune --force >/dev/null
say "building $name with buildah (minutes)"
# The cache of crates lies under an overlay: what the build writes there is gone with it.
"$engine" buildah build --quiet --runtime runc --network none --timestamp 0 --build-arg "BASE=$base" \
    --volume "$(rustc --print sysroot):/usr/local/rust:ro" \
    --volume "${CARGO_HOME:-$HOME/.cargo}/registry:/usr/local/cargo/registry:O" \
    --tag "$name" . </dev/null >&2
