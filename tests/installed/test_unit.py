"""The Debian package and its unit under a real systemd, installed and configured as packaging/README.md says."""

import os
import pathlib
import re
import time

import pytest

from machine import Machine
from stage import ENDPOINT, HERE, Process, done, run, wait_until

UNIT = "outbox-relay"
CONFIGURATION = "/etc/outbox-relay/outbox-relay.toml"
CREDENTIALS = "/etc/outbox-relay/credentials"
ENGINE = HERE / "engine.sh"


@pytest.fixture(scope="module")
def package(image):
    """Of the image's own binary, which was built once for Debian 12; or the one that is given."""
    if "TEST_PACKAGE" in os.environ:
        return os.environ["TEST_PACKAGE"]
    root = done(ENGINE, "podman", "image", "mount", image)
    try:
        return done(HERE / "deb.sh", f"{root}/usr/local/bin/outbox-relay", timeout=1800).splitlines()[-1]
    finally:
        run(ENGINE, "podman", "image", "unmount", image)


@pytest.fixture
def machine(package):
    made = Machine(package)
    try:
        made.done("dpkg", "--install", f"/{pathlib.Path(package).name}")
        yield made
    finally:
        made.close()


def configure(machine, place):
    machine.write(
        CONFIGURATION,
        f'[admin]\nlisten = "127.0.0.1:0"\n[rabbitmq]\nexchange = "{place.exchange}"\n',
    )
    for name, text in (("database-url", place.relay_url), ("amqp-url", place.amqp_url)):
        machine.write(f"{CREDENTIALS}/{name}", text + "\n")
        machine.done("chmod", "600", f"{CREDENTIALS}/{name}")
    machine.done("outbox-relay", "migrate", "--database-url", place.owner_url)
    place.make_roles()


def process(machine, number):
    return Process(machine.done("cat", f"/proc/{number}/status"), machine.done("cat", f"/proc/{number}/mountinfo"))


def test_the_package_starts_nothing_by_itself(machine):
    assert machine.run("systemctl", "is-enabled", UNIT)[1].strip() == "disabled"
    assert machine.show(UNIT, "ActiveState") == "inactive"
    for path, mode in ((CREDENTIALS, "700"), (f"{CREDENTIALS}/README", "600"), (CONFIGURATION, "644")):
        assert machine.done("stat", "--format=%a %U", path) == f"{mode} root"
    assert machine.done("outbox-relay", "--version").startswith("outbox-relay ")


def test_the_service_relays_in_its_sandbox_comes_back_after_a_kill_and_stops(machine, place):
    configure(machine, place)
    # Type=notify: this returns once the relay has said that it is up.
    machine.done("systemctl", "enable", "--now", UNIT)
    assert machine.show(UNIT, "SubState") == "running"
    place.relays("under systemd")

    number = machine.show(UNIT, "MainPID")
    relay = process(machine, number)
    # DynamicUser= takes one of these; of root and of whoever else is there it is none.
    assert {61184 <= int(user) <= 65519 for user in relay.users()} == {True}
    assert relay.capabilities() == dict.fromkeys(relay.capabilities(), 0)
    assert (relay.status["NoNewPrivs"], relay.status["Seccomp"]) == ("1", "2")
    for point in ("/", "/proc/sys", "/sys/fs/cgroup"):
        assert "ro" in relay.options(point), point
    # Secrets are handed over as files, and stand neither in the environment nor in the command line.
    for file in ("environ", "cmdline"):
        assert place.secret not in machine.done("cat", f"/proc/{number}/{file}")
    assert "WATCHDOG_USEC=" in machine.done("cat", f"/proc/{number}/environ")
    assert re.search(ENDPOINT, machine.done("journalctl", "--unit", UNIT, "--no-pager"))

    machine.done("sh", "-c", f"kill -9 {number}")
    wait_until("systemd to start it anew", lambda: machine.show(UNIT, "NRestarts") == "1")
    wait_until("the new one to run", lambda: machine.show(UNIT, "SubState") == "running")
    assert machine.show(UNIT, "MainPID") != number
    place.relays("after kill -9")

    # There is nothing that could be loaded anew, and a try to do so harms nothing.
    number = machine.show(UNIT, "MainPID")
    assert machine.run("systemctl", "reload", UNIT)[0] != 0
    assert machine.show(UNIT, "MainPID") == number
    place.relays("after a reload")

    machine.done("systemctl", "stop", UNIT)
    assert machine.show(UNIT, "Result") == "success"
    assert machine.show(UNIT, "ExecMainStatus") == "0"
    assert place.lanes_owned() == 0


def test_a_silent_relay_is_ended_by_the_watchdog(machine, place):
    configure(machine, place)
    # The unit's own patience is two minutes; and a frozen process cannot follow the signal that asks it to end.
    machine.done("mkdir", "-p", f"/run/systemd/system/{UNIT}.service.d")
    machine.write(
        f"/run/systemd/system/{UNIT}.service.d/quick.conf", "[Service]\nWatchdogSec=15\nTimeoutAbortSec=1\n"
    )
    machine.done("systemctl", "daemon-reload")
    machine.done("systemctl", "start", UNIT)
    number = machine.show(UNIT, "MainPID")
    # Long enough for a watchdog that nobody feeds.
    time.sleep(20)
    assert (machine.show(UNIT, "MainPID"), machine.show(UNIT, "NRestarts")) == (number, "0")
    machine.done("sh", "-c", f"kill -STOP {number}")
    wait_until("systemd to start it anew", lambda: machine.show(UNIT, "NRestarts") == "1")
    assert "watchdog" in machine.done("journalctl", "--unit", UNIT, "--no-pager").lower()
    place.relays("after the watchdog")


def test_what_an_operator_must_mend_is_not_followed_by_a_restart(machine, place):
    configure(machine, place)
    machine.write(CONFIGURATION, "no_such_key = 1\n")
    assert machine.run("systemctl", "start", UNIT)[0] != 0
    # One that is to be started again would be "activating", for RestartSec.
    for _ in range(20):
        states = [machine.show(UNIT, name) for name in ("ActiveState", "ExecMainStatus", "NRestarts")]
        assert states == ["failed", "78", "0"], machine.journal()
        time.sleep(0.2)
    assert "no_such_key" in machine.done("journalctl", "--unit", UNIT, "--no-pager")


def test_it_waits_for_a_database_that_is_away(machine, place):
    configure(machine, place)
    machine.write(f"{CREDENTIALS}/database-url", "postgres://nobody@127.0.0.1:9/nothing\n")
    machine.done("systemctl", "start", UNIT)
    assert machine.show(UNIT, "SubState") == "running"
    machine.done("systemctl", "stop", UNIT)
    assert machine.show(UNIT, "Result") == "success"
