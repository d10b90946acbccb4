#!/bin/sh
# assets.sh BINARY FOLDER: what the packages carry beside the binary and what the binary itself knows best: the manual
# page, completions, a configuration file to start from.
set -eu

binary="$1"
folder="$2"

mkdir -p "$folder"
"$binary" man >"$folder/outbox-relay.1"
gzip -9 -n -c "$folder/outbox-relay.1" >"$folder/outbox-relay.1.gz"
"$binary" completions bash >"$folder/outbox-relay.bash"
"$binary" completions zsh >"$folder/_outbox-relay"
"$binary" completions fish >"$folder/outbox-relay.fish"
"$binary" config --default >"$folder/outbox-relay.toml"
