# shellcheck shell=bash
# pgbouncer in transaction mode before this set's PostgreSQL; PGBOUNCER_POOL server connections a database (2).
# Whoever comes is let in as the superuser: it listens on loopback only. It is sourced, after postgres.sh.

PGBOUNCER_PORT="${PGBOUNCER_PORT:-$((POSTGRES_PORT + 2))}"

pgbouncer_url() { printf 'postgres://postgres:%s@127.0.0.1:%s/postgres\n' "$POSTGRES_PASSWORD" "$PGBOUNCER_PORT"; }

pgbouncer_running() { pid_of pgbouncer 'pgbouncer' >/dev/null; }

pgbouncer_configure() {
    as_postgres sh -c "umask 077; cat >'$1/pgbouncer.ini'" <<INI
[databases]
* = host=127.0.0.1 port=$POSTGRES_PORT user=postgres password=$POSTGRES_PASSWORD
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $PGBOUNCER_PORT
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = ${PGBOUNCER_POOL:-2}
max_client_conn = 500
INI
}

pgbouncer_up() {
    local program home
    local -a become=()
    if pgbouncer_running; then
        say "pgbouncer already runs"
        return
    fi
    program="$(command -v pgbouncer || printf '/usr/sbin/pgbouncer\n')"
    [ -x "$program" ] || die "no pgbouncer; run tests/services/install.sh postgres"
    home="$(cd "$POSTGRES_DATA" && pwd -P)"
    require_free_port "$PGBOUNCER_PORT" PGBOUNCER_PORT
    pgbouncer_configure "$home"
    # It refuses to run as root.
    ! is_root || become=(setpriv --reuid postgres --regid postgres --clear-groups --)
    say "pgbouncer: starting on port $PGBOUNCER_PORT"
    launch pgbouncer ${become[@]+"${become[@]}"} "$program" "$home/pgbouncer.ini"
    wait_for "$SERVICE_START_SECONDS" "pgbouncer on port $PGBOUNCER_PORT" port_in_use "$PGBOUNCER_PORT" ||
        { show_tail "$SERVICES_DIR/pgbouncer.out"; die "pgbouncer did not start"; }
    pgbouncer_url >"$SERVICES_DIR/pgbouncer.url"
}

pgbouncer_down() {
    rm -f "$SERVICES_DIR/pgbouncer.url"
    if pgbouncer_running; then
        say "pgbouncer: stopping"
    fi
    # SIGTERM is its quick end; SIGINT would wait for clients.
    stop_process pgbouncer 'pgbouncer' TERM
}

pgbouncer_clean() { :; }
