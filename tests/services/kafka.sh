# shellcheck shell=bash
# Apache Kafka for tests: one node in KRaft mode, broker and controller in one process.
# It is sourced. Its jars come through Maven once and are shared by all sets of services.

KAFKA_HOME_DIR="$SERVICES_DIR/kafka"
KAFKA_POM="$SERVICES_SCRIPTS/kafka/pom.xml"
KAFKA_VERSION="$(sed -n 's:.*<kafka.version>\(.*\)</kafka.version>.*:\1:p' "$KAFKA_POM")"
KAFKA_JARS="$TARGET_DIR/kafka-jars/$KAFKA_VERSION"
KAFKA_HEAP="${KAFKA_HEAP:-512m}"
# Tests start many brokers and give none much to do, so the first compiler is all that they need. Benches set nothing.
KAFKA_JAVA_OPTIONS="${KAFKA_JAVA_OPTIONS--XX:TieredStopAtLevel=1}"
# Classes as the virtual machine has them in memory: a start takes half the time. One of another Java is passed over.
KAFKA_CLASSES="$KAFKA_JARS/classes.jsa"
# Fixed on purpose: an identity for a cluster that never has a second node.
KAFKA_CLUSTER_ID="b3V0Ym94LXJlbGF5LXRlcw"

# shellcheck disable=SC2153 # The port comes from common.sh.
kafka_url() { printf '127.0.0.1:%s\n' "$KAFKA_PORT"; }

# The marker is written last, so that an interrupted download is never taken for a whole one.
kafka_has_jars() { [ -f "$KAFKA_JARS/complete" ] && [ ! "$KAFKA_POM" -nt "$KAFKA_JARS/complete" ]; }

kafka_jars() {
    if kafka_has_jars; then
        return
    fi
    command -v mvn >/dev/null || die "no mvn to fetch Kafka's jars; run tests/services/install.sh kafka"
    mkdir -p "$TARGET_DIR"
    (
        flock 9
        if ! kafka_has_jars; then
            say "kafka: fetching the jars of version $KAFKA_VERSION through Maven"
            rm -rf "$KAFKA_JARS"
            mkdir -p "$KAFKA_JARS"
            mvn -q -B -f "$KAFKA_POM" dependency:copy-dependencies -DincludeScope=runtime \
                -DoutputDirectory="$KAFKA_JARS" </dev/null >"$TARGET_DIR/kafka-jars/maven.log" 2>&1 ||
                { show_tail "$TARGET_DIR/kafka-jars/maven.log"; exit 1; }
            touch "$KAFKA_JARS/complete"
        fi
    ) 9>"$TARGET_DIR/.kafka-jars.lock" || die "Maven could not fetch Kafka's jars"
}

# The first broker on a machine is started twice: once to write down its classes at its end.
kafka_classes() {
    [ ! -f "$KAFKA_CLASSES" ] || return 0
    local written="$SERVICES_DIR/classes.jsa"
    (KAFKA_JAVA_OPTIONS+=" -XX:ArchiveClassesAtExit=$written" && kafka_start kafka "$(kafka_url)")
    stop_process kafka 'kafka.Kafka' TERM
    mv "$written" "$KAFKA_CLASSES" 2>/dev/null || say "kafka wrote no archive of its classes; it starts without"
}

# KAFKA_LISTENERS="NAME:PROTOCOL ..." are further addresses, such as LOGIN:SASL_SSL. What they need lies in the file
# KAFKA_SETTINGS, as the broker's own properties. Lines "NAME PROTOCOL ADDRESS".
kafka_listeners() {
    local listener index=0
    for listener in ${KAFKA_LISTENERS:-}; do
        printf '%s %s 127.0.0.1:%s\n' "${listener%%:*}" "${listener#*:}" $((KAFKA_PORT + 20 + index))
        index=$((index + 1))
    done
}

kafka_prepare() {
    local pair name protocol address faults="" advertised="" protocols="" index=0
    for pair in $(kafka_fault_listeners); do
        index=$((index + 1))
        faults+=",FAULT$index://127.0.0.1:${pair%:*}"
        advertised+=",FAULT$index://127.0.0.1:${pair#*:}"
        protocols+=",FAULT$index:PLAINTEXT"
    done
    while read -r name protocol address; do
        faults+=",$name://$address"
        advertised+=",$name://$address"
        protocols+=",$name:$protocol"
    done < <(kafka_listeners)
    mkdir -p "$KAFKA_HOME_DIR"
    cat >"$KAFKA_HOME_DIR/kafka.properties" <<CONF
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$KAFKA_CONTROLLER_PORT
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:$KAFKA_PORT,CONTROLLER://127.0.0.1:$KAFKA_CONTROLLER_PORT$faults
advertised.listeners=PLAINTEXT://127.0.0.1:$KAFKA_PORT$advertised
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT$protocols
inter.broker.listener.name=PLAINTEXT
log.dirs=$KAFKA_HOME_DIR/data
num.partitions=1
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
CONF
    if [ -n "${KAFKA_SETTINGS:-}" ]; then
        cat "$KAFKA_SETTINGS" >>"$KAFKA_HOME_DIR/kafka.properties"
    fi
    {
        printf '#!/usr/bin/env bash\n# Runs a program of this Kafka by its class: run CLASS ARGUMENT...\n'
        printf 'exec java -Xmx256m -cp %q "$@"\n' "$KAFKA_JARS/*"
    } >"$KAFKA_HOME_DIR/run"
    chmod 755 "$KAFKA_HOME_DIR/run"
}

# kafka_start NAME ADDRESS: formats the storage of NAME.properties unless it is, starts a broker with it and waits until
# it serves at its address.
kafka_start() {
    local name="$1" address="$2" settings="$KAFKA_HOME_DIR/$1.properties" log="$KAFKA_HOME_DIR/$1.log" data
    local -a java
    data="$(sed -n 's/^log.dirs=//p' "$settings")"
    cat >"$KAFKA_HOME_DIR/$name.log4j2.yaml" <<CONF
Configuration:
  status: error
  Appenders:
    File:
      name: file
      fileName: $log
      PatternLayout: { pattern: "%d %p %m (%c)%n" }
  Loggers:
    Root:
      level: INFO
      AppenderRef: { ref: file }
CONF
    # shellcheck disable=SC2206 # Options are words.
    java=(java -Xmx"$KAFKA_HEAP" -Xms128m -XX:+UseSerialGC $KAFKA_JAVA_OPTIONS
        -Dlog4j2.configurationFile="$KAFKA_HOME_DIR/$name.log4j2.yaml" -cp "$KAFKA_JARS/*")
    [ ! -f "$KAFKA_CLASSES" ] || java+=(-XX:SharedArchiveFile="$KAFKA_CLASSES")
    if [ ! -s "$data/meta.properties" ]; then
        say "$name: formatting its storage"
        "${java[@]}" kafka.tools.StorageTool format -t "$KAFKA_CLUSTER_ID" -c "$settings" \
            >"$SERVICES_DIR/$name.format.log" 2>&1 </dev/null ||
            { show_tail "$SERVICES_DIR/$name.format.log"; die "the storage of $name could not be formatted"; }
    fi
    rm -f "$log"
    say "$name: starting on port ${address##*:}"
    launch "$name" "${java[@]}" kafka.Kafka "$settings"
    wait_for "$SERVICE_START_SECONDS" "$name to say that it started" kafka_failed_or_started "$name" "$address" ||
        { show_tail "$log"; die "$name did not start"; }
    kafka_started "$name" "$address" ||
        { show_tail "$SERVICES_DIR/$name.out" "$log"; die "$name ended while starting"; }
}

kafka_started() { grep -q 'Kafka Server started' "$KAFKA_HOME_DIR/$1.log" && port_in_use "${2##*:}"; }

kafka_failed_or_started() { kafka_started "$1" "$2" || ! kafka_node_running "$1"; }

kafka_node_running() { pid_of "$1" "kafka.Kafka .*/$1.properties" >/dev/null; }

kafka_running() { kafka_node_running kafka; }

kafka_up() {
    if kafka_running; then
        say "kafka already runs"
        return
    fi
    command -v java >/dev/null || die "no java; run tests/services/install.sh kafka"
    kafka_jars
    require_free_port "$KAFKA_PORT" KAFKA_PORT
    require_free_port "$KAFKA_CONTROLLER_PORT" KAFKA_CONTROLLER_PORT
    kafka_prepare
    kafka_classes
    kafka_start kafka "$(kafka_url)"
    kafka_fault_listeners | paste -sd, - >"$SERVICES_DIR/kafka.faults"
    kafka_listeners >"$SERVICES_DIR/kafka.listeners"
    kafka_url >"$SERVICES_DIR/kafka.url"
}

kafka_down() {
    rm -f "$SERVICES_DIR/kafka.url" "$SERVICES_DIR/kafka.listeners" "$SERVICES_DIR/kafka.faults"
    if kafka_running; then
        say "kafka: stopping"
    fi
    stop_process kafka 'kafka.Kafka' TERM
}

kafka_clean() { rm -rf "$KAFKA_HOME_DIR"; }

# Further brokers of the same cluster, for replicas: node 2 and node 3. They lie in the first one's folder and need it
# to run, as the only controller.
kafka_peer_url() { printf '127.0.0.1:%s\n' "$((KAFKA_PORT + 10 + $1))"; }

kafka_peer_up() {
    local node="$1"
    if kafka_node_running "kafka$node"; then
        say "kafka$node already runs"
        return
    fi
    kafka_running || die "another broker needs the set's first one"
    cat >"$KAFKA_HOME_DIR/kafka$node.properties" <<CONF
process.roles=broker
node.id=$node
controller.quorum.voters=1@127.0.0.1:$KAFKA_CONTROLLER_PORT
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://$(kafka_peer_url "$node")
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs=$KAFKA_HOME_DIR/data$node
CONF
    kafka_start "kafka$node" "$(kafka_peer_url "$node")"
    kafka_peer_url "$node" >"$SERVICES_DIR/kafka$node.url"
}

kafka_peer_down() {
    rm -f "$SERVICES_DIR/$1.url"
    if kafka_node_running "$1"; then
        say "$1: stopping"
    fi
    stop_process "$1" "kafka.Kafka .*/$1.properties" TERM
}

kafka2_up() { kafka_peer_up 2; }
kafka3_up() { kafka_peer_up 3; }
kafka2_down() { kafka_peer_down kafka2; }
kafka3_down() { kafka_peer_down kafka3; }
kafka2_clean() { :; }
kafka3_clean() { :; }
