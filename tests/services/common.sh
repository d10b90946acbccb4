# shellcheck shell=bash
# What every script of this folder shares: where things lie, how they talk, how they wait.
# It is sourced, never run. Nothing here touches a service of the system.

SERVICES_SCRIPTS="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
REPO_ROOT="$(cd "$SERVICES_SCRIPTS/../.." && pwd)"
TARGET_DIR="${CARGO_TARGET_DIR:-$REPO_ROOT/target}"
SERVICES_DIR="${SERVICES_DIR:-$TARGET_DIR/services}"
case "$SERVICES_DIR" in
/*) ;;
*) SERVICES_DIR="$REPO_ROOT/$SERVICES_DIR" ;;
esac

# A set that was started on chosen ports keeps them, also for the script that stops it.
if [ -z "${PORT_OFFSET:-}" ] && [ -r "$SERVICES_DIR/ports" ]; then
    PORT_OFFSET="$(cat "$SERVICES_DIR/ports")"
fi

# Below the ephemeral range: inside it a reconnecting client could take the port of a server
# that is just being restarted. An offset moves a whole set, so that several run side by side.
PORT_OFFSET="${PORT_OFFSET:-0}"
POSTGRES_PORT="${POSTGRES_PORT:-$((28432 + PORT_OFFSET))}"
RABBITMQ_PORT="${RABBITMQ_PORT:-$((28672 + PORT_OFFSET))}"
RABBITMQ_DISTRIBUTION_PORT="${RABBITMQ_DISTRIBUTION_PORT:-$((28673 + PORT_OFFSET))}"
RABBITMQ_EPMD_PORT="${RABBITMQ_EPMD_PORT:-$((28469 + PORT_OFFSET))}"
RABBITMQ_TLS_PORT="${RABBITMQ_TLS_PORT:-$((28674 + PORT_OFFSET))}"
KAFKA_PORT="${KAFKA_PORT:-$((28092 + PORT_OFFSET))}"
KAFKA_CONTROLLER_PORT="${KAFKA_CONTROLLER_PORT:-$((28093 + PORT_OFFSET))}"

# Kafka tells its clients where to connect, so a fault proxy must own the address that a
# listener advertises. Each of these "listen:advertised" pairs serves one proxy at a time.
kafka_fault_listeners() {
    local index
    for index in 1 2 3 4; do
        printf '%s:%s\n' $((KAFKA_PORT + 2 * index)) $((KAFKA_PORT + 2 * index + 1))
    done
}

SERVICE_START_SECONDS="${SERVICE_START_SECONDS:-120}"
SERVICE_STOP_SECONDS="${SERVICE_STOP_SECONDS:-30}"

# Progress goes to standard error, since standard output is for data such as env.sh's lines.
say() { printf '%s\n' "services: $*" >&2; }

die() {
    printf '%s\n' "services: error: $*" >&2
    exit 1
}

is_root() { [ "$(id -u)" -eq 0 ]; }

# An open port is taken as "in use": only loopback is asked.
port_in_use() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

require_free_port() {
    local port="$1" variable="$2"
    if port_in_use "$port"; then
        die "port $port is in use; set $variable (or PORT_OFFSET) to use another"
    fi
}

# Ports belong to the machine, so all checkouts of one user choose them under one lock and from one list.
PORTS_LOCK="${TMPDIR:-/tmp}/outbox-relay-ports.$(id -u).lock"

# A file a block, named by its offset, that holds the SERVICES_DIR of the set that chose it.
PORTS_TAKEN="${PORTS_LOCK%.lock}.taken"

# A set keeps its block while its services are down. One whose folder is gone, or that nobody touched for an hour, is
# over.
block_is_taken() {
    local file="$PORTS_TAKEN/$1"
    [ -n "$(find "$file" -mmin -60 2>/dev/null)" ] && [ -d "$(cat "$file")" ]
}

keep_block() {
    if [ -r "$SERVICES_DIR/ports" ]; then
        mkdir -p "$PORTS_TAKEN"
        printf '%s\n' "$SERVICES_DIR" >"$PORTS_TAKEN/$(cat "$SERVICES_DIR/ports")"
    fi
}

free_block() {
    if [ -r "$SERVICES_DIR/ports" ]; then
        rm -f "$PORTS_TAKEN/$(cat "$SERVICES_DIR/ports")"
    fi
}

# choose_ports FIRST: takes the first block of ports, from FIRST on, that no set has and where nothing listens, for
# SERVICES_DIR, and sets PORT_OFFSET.
choose_ports() {
    local offset port free
    exec 8>"$PORTS_LOCK"
    flock 8
    for offset in $(seq "$1" 100 3900); do
        free=yes
        block_is_taken "$offset" && continue
        for port in 28432 28672 28673 28674 28469 28092 28093; do
            if port_in_use $((port + offset)); then
                free=no
                break
            fi
        done
        if [ "$free" = yes ]; then
            PORT_OFFSET="$offset"
            printf '%s\n' "$PORT_OFFSET" >"$SERVICES_DIR/ports"
            keep_block
            exec 8>&-
            return
        fi
    done
    die "no free block of ports; set PORT_OFFSET"
}

# wait_for SECONDS WHAT COMMAND...: polls the command, and says by name what did not happen.
wait_for() {
    local seconds="$1" what="$2" deadline
    shift 2
    deadline=$((SECONDS + seconds))
    until "$@" >/dev/null 2>&1; do
        if [ "$SECONDS" -ge "$deadline" ]; then
            say "waited $seconds s in vain: $what"
            return 1
        fi
        sleep 0.1
    done
}

# A pid file names a process only while the process's command line still looks like ours:
# after a reboot the number may belong to somebody else, who must not be signalled.
pid_of() {
    local file="$SERVICES_DIR/$1.pid" pattern="$2" pid line
    [ -s "$file" ] || return 1
    pid="$(head -n 1 "$file")"
    [ -r "/proc/$pid/cmdline" ] || return 1
    # No pipe: grep -q would end before a long line is written, and the writer's end would count as a failure.
    line="$(tr '\0' ' ' <"/proc/$pid/cmdline")" || return 1
    # In the middle of an exec the line is empty, and the process is on its way to become ours.
    [ -z "$line" ] || [[ "$line" =~ $pattern ]] || return 1
    ! has_ended "$pid" || return 1
    printf '%s\n' "$pid"
}

# A zombie has ended; only nobody has asked for its exit code yet.
has_ended() {
    [ ! -d "/proc/$1" ] || grep -q '^State:[[:space:]]*Z' "/proc/$1/status" 2>/dev/null
}

# stop_process NAME PATTERN SIGNAL: asks by pid, waits, and kills what does not listen.
stop_process() {
    local name="$1" pattern="$2" signal="$3" pid
    if pid="$(pid_of "$name" "$pattern")"; then
        # A process that a test froze cannot hear any other signal.
        kill -CONT "$pid" 2>/dev/null || true
        kill -"$signal" "$pid" 2>/dev/null || true
        if ! wait_for "$SERVICE_STOP_SECONDS" "$name (process $pid) to end" has_ended "$pid"; then
            kill -KILL "$pid" 2>/dev/null || true
            wait_for 10 "$name (process $pid) to end after SIGKILL" has_ended "$pid"
        fi
    fi
    rm -f "$SERVICES_DIR/$name.pid"
}

# launch NAME COMMAND...: a process of its own session, so that neither an interrupt at the
# terminal nor the end of this script reaches it; its pid is the command's own. It writes it down itself: before its
# first exec it looks like this script, and would be taken for one that has ended.
launch() {
    local name="$1" file="$SERVICES_DIR/$1.pid"
    shift
    rm -f "$file"
    # A broker with a hundred threads starves beside PostgreSQL's backends: Linux may share time by sessions (autogroup),
    # of which each of those is one. Only root may give it more; without such groups, by the processes' own weight.
    # shellcheck disable=SC2016
    setsid bash -c '{ renice -n -10 "$$"; printf %s -10 >/proc/self/autogroup; } >/dev/null 2>&1
        printf "%s\n" "$$" >"$0"; exec "$@"' "$file" "$@" </dev/null >>"$SERVICES_DIR/$name.out" 2>&1 &
    disown
    wait_for 30 "$name to begin" test -s "$file" || die "$name did not begin"
}

show_tail() {
    local file
    for file in "$@"; do
        [ -s "$file" ] || continue
        say "last lines of $file:"
        tail -n 20 "$file" >&2
    done
}
