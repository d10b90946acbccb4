#!/usr/bin/env bash
# install.sh [build] [postgres] [rabbitmq] [kafka] [embedded] [examples] [chart] [installed]: says which of Debian's
# packages are missing and installs only those. With nothing named: build, postgres and rabbitmq.
# NO_INSTALL=1 only checks, and fails with the list.
#
# Debian starts the services of the packages it installs, and makes a database cluster. Both
# are prevented for the time of the installation and only then; what the machine already runs
# is not touched.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

POLICY=/usr/sbin/policy-rc.d
CLUSTER_CONF=/etc/postgresql-common/createcluster.d/outbox-relay-tests.conf
sudo=()

# Each line: the need, the test whether it is met, the packages that meet it.
needs() {
    case "$1" in
    build)
        need 'command -v cc && command -v c++ && command -v make' gcc g++ make libc6-dev
        need 'command -v pkg-config' pkg-config
        need 'command -v cmake' cmake
        need 'pkg-config --exists libssl || [ -f /usr/include/openssl/ssl.h ]' libssl-dev
        need 'command -v curl || [ -d /etc/ssl/certs ]' ca-certificates
        ;;
    postgres)
        need '[ -x /usr/lib/postgresql/15/bin/initdb ]' postgresql-15
        need 'command -v psql' postgresql-client-15
        need 'command -v pgbouncer || [ -x /usr/sbin/pgbouncer ]' pgbouncer
        need 'command -v python3' python3
        need '/usr/bin/python3 -c "import psycopg2"' python3-psycopg2
        need 'ls /usr/lib/*/faketime/libfaketime.so.1' libfaketime
        ;;
    rabbitmq)
        need '[ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] && command -v epmd' rabbitmq-server
        # Its tests of TLS make keys in the forms that it writes.
        need 'command -v openssl' openssl
        ;;
    kafka)
        need 'command -v java' openjdk-17-jre-headless
        need 'command -v mvn' maven
        ;;
    embedded) need 'command -v npm' npm ;;
    examples)
        need '/usr/bin/python3 -c "import psycopg"' python3-psycopg
        need '/usr/bin/python3 -c "import pika"' python3-pika
        need '/usr/bin/python3 -c "import confluent_kafka"' python3-confluent-kafka
        need '/usr/bin/python3 -c "import pytest"' python3-pytest
        need 'command -v npm' npm
        ;;
    chart)
        need 'command -v python3' python3
        need 'python3 -c "import ensurepip"' python3-venv
        # For systemd-analyze only; nothing of it is started.
        need 'command -v systemd-analyze' systemd
        ;;
    installed)
        need 'command -v buildah' buildah
        need 'command -v podman' podman
        # crun does not start where both generations of cgroups are mounted.
        need 'command -v runc' runc
        need 'command -v debootstrap' debootstrap
        need 'command -v systemd-nspawn' systemd-container
        need 'command -v dpkg-shlibdeps' dpkg-dev
        need 'command -v etcd' etcd-server
        need 'command -v openssl' openssl
        need '/usr/bin/python3 -c "import psycopg"' python3-psycopg
        need '/usr/bin/python3 -c "import pika"' python3-pika
        need '/usr/bin/python3 -c "import pytest"' python3-pytest
        need '/usr/bin/python3 -c "import yaml"' python3-yaml
        need 'python3 -c "import ensurepip"' python3-venv
        ;;
    *) die "unknown part '$1'; known are build, postgres, rabbitmq, kafka, embedded, examples, chart and installed" ;;
    esac
}

missing=()
need() {
    local check="$1"
    shift
    (eval "$check") >/dev/null 2>&1 || missing+=("$@")
}

become_root() {
    if is_root; then
        return
    fi
    command -v sudo >/dev/null || die "not root and no sudo; as root run: apt-get install -y ${missing[*]}"
    # Without a terminal sudo would fail after the first package instead of before it.
    sudo -n true 2>/dev/null || [ -t 0 ] ||
        die "sudo wants a password; as root run: apt-get install -y ${missing[*]}"
    sudo=(sudo)
}

# An existing policy is put back afterwards, whatever happens in between.
forbid_service_starts() {
    if [ -e "$POLICY" ]; then
        "${sudo[@]}" mv "$POLICY" "$POLICY.before-outbox-relay"
    fi
    printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" tee "$POLICY" >/dev/null
    "${sudo[@]}" chmod 755 "$POLICY"
    "${sudo[@]}" mkdir -p "$(dirname "$CLUSTER_CONF")"
    printf 'create_main_cluster = false\n' | "${sudo[@]}" tee "$CLUSTER_CONF" >/dev/null
    trap allow_service_starts EXIT
}

allow_service_starts() {
    "${sudo[@]}" rm -f "$POLICY" "$CLUSTER_CONF"
    if [ -e "$POLICY.before-outbox-relay" ]; then
        "${sudo[@]}" mv "$POLICY.before-outbox-relay" "$POLICY"
    fi
}

apt() {
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y -q \
        -o Dpkg::Options::=--force-confold -o DPkg::Lock::Timeout=300 "$@" </dev/null >&2
}

[ "$#" -gt 0 ] || set -- build postgres rabbitmq
for part in "$@"; do
    needs "$part"
done
if [ "${#missing[@]}" -eq 0 ]; then
    say "nothing to install for: $*"
    exit 0
fi
if [ "${NO_INSTALL:-}" = 1 ]; then
    die "missing Debian packages (NO_INSTALL=1, so nothing was installed): ${missing[*]}"
fi
command -v apt-get >/dev/null || die "no apt-get here; install by hand what these Debian packages give: ${missing[*]}"
say "installing from Debian's packages: ${missing[*]}"
say "no service of the system will be started and no cluster made"
become_root
forbid_service_starts
apt update
apt install --no-install-recommends "${missing[@]}"
missing=()
for part in "$@"; do
    needs "$part"
done
[ "${#missing[@]}" -eq 0 ] || die "installed, but still missing: ${missing[*]}"
