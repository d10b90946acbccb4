# shellcheck shell=bash
# A hot standby of this set's PostgreSQL, copied from it over the replication protocol: for failovers. It lies in
# the primary's folder, so that it goes away with it. `SELECT pg_promote()` makes it a primary.
# It is sourced, after postgres.sh.

STANDBY_PORT="${STANDBY_PORT:-$((POSTGRES_PORT + 1))}"

standby_url() { printf 'postgres://postgres:%s@127.0.0.1:%s/postgres\n' "$POSTGRES_PASSWORD" "$STANDBY_PORT"; }

standby_running() {
    [ -s "$POSTGRES_DATA/standby/postmaster.pid" ] &&
        head -n 1 "$POSTGRES_DATA/standby/postmaster.pid" >"$SERVICES_DIR/standby.pid" &&
        pid_of standby 'postgres' >/dev/null
}

standby_up() {
    local bin home
    if standby_running; then
        say "standby already runs"
        return
    fi
    bin="$(postgres_bin)" || die "no PostgreSQL; run tests/services/install.sh postgres"
    home="$(cd "$POSTGRES_DATA" && pwd -P)"
    require_free_port "$STANDBY_PORT" STANDBY_PORT
    if [ ! -s "$home/standby/PG_VERSION" ]; then
        postgres_running || die "a standby is copied from a running primary"
        as_postgres env PGPASSWORD="$POSTGRES_PASSWORD" "$bin/pg_basebackup" -D "$home/standby" -R -X stream -c fast \
            -h 127.0.0.1 -p "$POSTGRES_PORT" -U postgres </dev/null || die "pg_basebackup failed"
    fi
    say "standby: starting on port $STANDBY_PORT"
    as_postgres "$bin/pg_ctl" -D "$home/standby" -l "$home/standby.log" -w -t "$SERVICE_START_SECONDS" -s \
        -o "-p $STANDBY_PORT" start </dev/null >/dev/null ||
        { show_tail "$home/standby.log"; die "the standby did not start within $SERVICE_START_SECONDS s"; }
    standby_running || die "the standby started but has no postmaster.pid"
    standby_url >"$SERVICES_DIR/standby.url"
}

standby_down() {
    rm -f "$SERVICES_DIR/standby.url"
    if standby_running; then
        say "standby: stopping"
    fi
    stop_process standby 'postgres' INT
}

standby_clean() { :; }
