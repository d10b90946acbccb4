#!/bin/sh
# rootfs.sh BINARY FOLDER: the image's whole root: the relay, the shared libraries that it is linked with, certificate
# authorities, a user without rights. No shell, no package manager, nothing that is written to. The Dockerfile and the
# tests make the root with this script.
set -eu

binary="$1"
root="$2"

mkdir -p "$root/usr/local/bin" "$root/etc/ssl/certs" "$root/usr/share/doc/outbox-relay" "$root/proc" "$root/tmp"
cp "$binary" "$root/usr/local/bin/outbox-relay"
chmod 755 "$root/usr/local/bin/outbox-relay"

# The loader and every library, with their links followed, at the paths where the loader looks for them.
ldd "$binary" | grep -o '/[^ ]*' | sort -u | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
done

cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
printf 'nonroot:x:65532:65532:nonroot:/:/sbin/nologin\n' >"$root/etc/passwd"
printf 'nonroot:x:65532:\n' >"$root/etc/group"
# Names are looked up as everywhere: first the file that the container's engine mounts, then DNS.
printf 'hosts: files dns\n' >"$root/etc/nsswitch.conf"
