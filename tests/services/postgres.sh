# shellcheck shell=bash
# PostgreSQL for tests: a cluster of its own, owned by an unprivileged user, loopback TCP only.
# It is sourced. POSTGRES_BIN picks other binaries; POSTGRES_FSYNC=off trades safety for speed.

POSTGRES_PASSWORD="${POSTGRES_PASSWORD:-outbox}"
POSTGRES_DATA="$SERVICES_DIR/postgres"

postgres_bin() {
    local folder="${POSTGRES_BIN:-/usr/lib/postgresql/15/bin}"
    [ -x "$folder/initdb" ] && printf '%s\n' "$folder"
}

# PostgreSQL refuses to run as root, so root hands it to the user of Debian's package.
as_postgres() {
    if is_root; then
        (cd / && runuser -u postgres -- "$@")
    else
        "$@"
    fi
}

postgres_url() { printf 'postgres://postgres:%s@127.0.0.1:%s/postgres\n' "$POSTGRES_PASSWORD" "$POSTGRES_PORT"; }

# The repository may lie below a folder that the unprivileged user cannot enter. Then the
# cluster gets a folder elsewhere and SERVICES_DIR keeps a link to it.
postgres_folder() {
    if [ -d "$POSTGRES_DATA" ]; then
        return
    fi
    rm -f "$POSTGRES_DATA"
    if ! is_root; then
        mkdir -p "$POSTGRES_DATA"
    elif as_postgres test -x "$SERVICES_DIR"; then
        install -d -o postgres -m 700 "$POSTGRES_DATA"
    else
        local elsewhere
        elsewhere="$(mktemp -d /var/tmp/outbox-postgres.XXXXXXXX)"
        chown postgres "$elsewhere"
        ln -s "$elsewhere" "$POSTGRES_DATA"
    fi
}

postgres_init() {
    local bin="$1" home="$2" password_file="$2/password"
    as_postgres sh -c "umask 077; printf '%s\n' '$POSTGRES_PASSWORD' >'$password_file'"
    as_postgres "$bin/initdb" -D "$home/data" -U postgres --pwfile="$password_file" \
        --auth=scram-sha-256 --encoding=UTF8 --locale=C.UTF-8 --no-instructions \
        >"$SERVICES_DIR/postgres.initdb.log" 2>&1 ||
        { show_tail "$SERVICES_DIR/postgres.initdb.log"; die "initdb failed"; }
    as_postgres sh -c "cat >>'$home/data/postgresql.conf'" <<CONF
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 300
shared_buffers = 128MB
log_line_prefix = '%m [%p] %q%d '
log_lock_waits = on
CONF
}

postgres_running() {
    [ -s "$POSTGRES_DATA/data/postmaster.pid" ] &&
        head -n 1 "$POSTGRES_DATA/data/postmaster.pid" >"$SERVICES_DIR/postgres.pid" &&
        pid_of postgres 'postgres' >/dev/null
}

postgres_up() {
    local bin home
    if postgres_running; then
        say "postgres already runs"
        return
    fi
    bin="$(postgres_bin)" || die "no PostgreSQL in ${POSTGRES_BIN:-/usr/lib/postgresql/15/bin}; run tests/services/install.sh postgres"
    require_free_port "$POSTGRES_PORT" POSTGRES_PORT
    postgres_folder
    home="$(cd "$POSTGRES_DATA" && pwd -P)"
    if [ ! -s "$home/data/PG_VERSION" ]; then
        say "postgres: initdb"
        postgres_init "$bin" "$home"
    fi
    say "postgres: starting on port $POSTGRES_PORT"
    as_postgres "$bin/pg_ctl" -D "$home/data" -l "$home/log" -w -t "$SERVICE_START_SECONDS" -s \
        -o "-p $POSTGRES_PORT -c fsync=${POSTGRES_FSYNC:-on}" start </dev/null >/dev/null ||
        { show_tail "$home/log"; die "postgres did not start within $SERVICE_START_SECONDS s"; }
    postgres_running || die "postgres started but has no postmaster.pid"
    postgres_url >"$SERVICES_DIR/postgres.url"
}

# SIGINT is PostgreSQL's fast shutdown: sessions are ended, the data stays whole.
postgres_down() {
    rm -f "$SERVICES_DIR/postgres.url"
    if postgres_running; then
        say "postgres: stopping"
    fi
    stop_process postgres 'postgres' INT
}

postgres_clean() {
    if [ -L "$POSTGRES_DATA" ]; then
        rm -rf "$(readlink -f "$POSTGRES_DATA")"
    fi
    rm -rf "$POSTGRES_DATA"
}
