# shellcheck shell=bash
# RabbitMQ for tests: its own node name, Erlang cookie, epmd, data and logs, loopback only.
# It is sourced. The folder gets a script "ctl" that is rabbitmqctl for this very node.

RABBITMQ_HOME_DIR="$SERVICES_DIR/rabbitmq"
RABBITMQ_SCRIPTS="${RABBITMQ_SCRIPTS:-/usr/lib/rabbitmq/bin}"

rabbitmq_url() { printf 'amqp://guest:guest@127.0.0.1:%s/%%2f\n' "$RABBITMQ_PORT"; }

# With RABBITMQ_TLS=FOLDER a second address speaks TLS with ca.pem, server.crt and server.key of that folder, and a
# client certificate of ca.pem is a login by its common name (SASL EXTERNAL). RABBITMQ_TLS_DEMAND=true lets nobody in
# without one.
rabbitmq_tls() { [ -n "${RABBITMQ_TLS:-}" ]; }
rabbitmq_tls_url() { printf 'amqps://guest:guest@127.0.0.1:%s/%%2f\n' "$RABBITMQ_TLS_PORT"; }
rabbitmq_tls_configuration() {
    cat <<CONF
listeners.ssl.1 = 127.0.0.1:$RABBITMQ_TLS_PORT
ssl_options.cacertfile = $RABBITMQ_TLS/ca.pem
ssl_options.certfile = $RABBITMQ_TLS/server.crt
ssl_options.keyfile = $RABBITMQ_TLS/server.key
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = ${RABBITMQ_TLS_DEMAND:-false}
auth_mechanisms.1 = PLAIN
auth_mechanisms.2 = EXTERNAL
ssl_cert_login_from = common_name
CONF
}

# Debian's wrappers in /usr/sbin switch to the system's user and folders; the scripts behind
# them obey these variables alone.
rabbitmq_environment() {
    local home="$RABBITMQ_HOME_DIR"
    cat <<ENV
export HOME='$home'
export ERL_EPMD_PORT='$RABBITMQ_EPMD_PORT'
export ERL_EPMD_ADDRESS='127.0.0.1'
export RABBITMQ_CONF_ENV_FILE='$home/rabbitmq-env.conf'
export RABBITMQ_CONFIG_FILE='$home/rabbitmq.conf'
export RABBITMQ_ENABLED_PLUGINS_FILE='$home/enabled_plugins'
export RABBITMQ_NODENAME='outbox_test@localhost'
export RABBITMQ_NODE_IP_ADDRESS='127.0.0.1'
export RABBITMQ_NODE_PORT='$RABBITMQ_PORT'
export RABBITMQ_DIST_PORT='$RABBITMQ_DISTRIBUTION_PORT'
export RABBITMQ_MNESIA_BASE='$home/mnesia'
export RABBITMQ_LOG_BASE='$home/log'
export RABBITMQ_PID_FILE='$home/pid'
export RUNNING_UNDER_SYSTEMD=1
# Schedulers that wait do not spin, as RabbitMQ has it from 3.11 on: other things run on these cores.
export RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS='-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +sbwtdcpu none +sbwtdio none'
ENV
}

rabbitmq_prepare() {
    local home="$RABBITMQ_HOME_DIR"
    mkdir -p "$home/mnesia" "$home/log"
    : >"$home/rabbitmq-env.conf"
    printf '[].\n' >"$home/enabled_plugins"
    # Loopback alone is reachable, so guest may stay; heartbeats are the client's choice.
    cat >"$home/rabbitmq.conf" <<CONF
loopback_users.guest = true
log.file.level = info
disk_free_limit.absolute = ${RABBITMQ_DISK_FREE_LIMIT:-50MB}
CONF
    if rabbitmq_tls; then
        printf '[rabbitmq_auth_mechanism_ssl].\n' >"$home/enabled_plugins"
        rabbitmq_tls_configuration >>"$home/rabbitmq.conf"
    fi
    rabbitmq_environment >"$home/environment"
    {
        printf '#!/usr/bin/env bash\n'
        printf '# Runs rabbitmqctl, or the tool named first, against this node only.\n'
        printf 'set -euo pipefail\n. %q\n' "$home/environment"
        # It starts an Erlang machine, for which a busy one has little time; only root may ask for more.
        printf 'renice -n -10 "$$" >/dev/null 2>&1 || :\n'
        printf 'exec %q "$@"\n' "$RABBITMQ_SCRIPTS/rabbitmqctl"
    } >"$home/ctl"
    chmod 755 "$home/ctl"
}

rabbitmq_running() { pid_of rabbitmq 'rabbit' >/dev/null; }

# The node's own log line comes only once listeners are up and boot steps are over, and
# costs nothing to look at, while each rabbitmqctl call starts an Erlang machine.
rabbitmq_ready() {
    rabbitmq_running && port_in_use "$RABBITMQ_PORT" &&
        grep -q 'Server startup complete' "$RABBITMQ_HOME_DIR/log/"*.log
}

rabbitmq_failed_or_ready() { rabbitmq_ready || ! rabbitmq_running; }

rabbitmq_up() {
    local epmd
    if rabbitmq_running; then
        say "rabbitmq already runs"
        return
    fi
    [ -x "$RABBITMQ_SCRIPTS/rabbitmq-server" ] ||
        die "no RabbitMQ; run tests/services/install.sh rabbitmq"
    epmd="$(command -v epmd)" || die "no epmd; run tests/services/install.sh rabbitmq"
    require_free_port "$RABBITMQ_PORT" RABBITMQ_PORT
    require_free_port "$RABBITMQ_DISTRIBUTION_PORT" RABBITMQ_DISTRIBUTION_PORT
    if rabbitmq_tls; then
        require_free_port "$RABBITMQ_TLS_PORT" RABBITMQ_TLS_PORT
    fi
    rabbitmq_prepare
    say "rabbitmq: starting on port $RABBITMQ_PORT"
    # epmd is started here, else the node would start one that nobody stops.
    if ! pid_of epmd 'epmd' >/dev/null; then
        require_free_port "$RABBITMQ_EPMD_PORT" RABBITMQ_EPMD_PORT
        launch epmd "$epmd" -address 127.0.0.1 -port "$RABBITMQ_EPMD_PORT"
        wait_for 10 "epmd on port $RABBITMQ_EPMD_PORT" port_in_use "$RABBITMQ_EPMD_PORT" ||
            die "epmd did not start"
    fi
    rm -f "$RABBITMQ_HOME_DIR/log/"*.log
    # Under RUNNING_UNDER_SYSTEMD the script becomes the Erlang machine instead of watching
    # over it: a test that freezes the broker must reach the process that holds the sockets.
    # shellcheck disable=SC2016
    launch rabbitmq bash -c '. "$1"; exec "$2"' rabbitmq "$RABBITMQ_HOME_DIR/environment" \
        "$RABBITMQ_SCRIPTS/rabbitmq-server"
    wait_for "$SERVICE_START_SECONDS" "rabbitmq to listen on port $RABBITMQ_PORT" \
        rabbitmq_failed_or_ready || die "rabbitmq did not start"
    rabbitmq_ready ||
        { show_tail "$SERVICES_DIR/rabbitmq.out" "$RABBITMQ_HOME_DIR/log/"*.log; die "rabbitmq ended while starting"; }
    rabbitmq_url >"$SERVICES_DIR/rabbitmq.url"
    if rabbitmq_tls; then
        rabbitmq_tls_url >"$SERVICES_DIR/rabbitmq.tls.url"
    fi
}

rabbitmq_down() {
    rm -f "$SERVICES_DIR/rabbitmq.url" "$SERVICES_DIR/rabbitmq.tls.url"
    if rabbitmq_running; then
        say "rabbitmq: stopping"
    fi
    stop_process rabbitmq 'rabbit' TERM
    stop_process epmd 'epmd' TERM
    rm -f "$RABBITMQ_HOME_DIR/pid"
}

rabbitmq_clean() { rm -rf "$RABBITMQ_HOME_DIR"; }
