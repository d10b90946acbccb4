"""The image, built from the Dockerfile by an engine and run by one, as `docker run` with the README's flags would."""

import hashlib
import json
import os
import re
import stat
import urllib.error
import urllib.request

from stage import ENDPOINT, HERE, Process, done, run, unique, wait_until

ENGINE = HERE / "engine.sh"
IMAGE = os.environ["TEST_IMAGE"]
# What packaging/README.md gives to `docker run`. podman's own addition, writable folders in a read-only root, is off.
LOCKED = ["--read-only", "--read-only-tmpfs=false", "--cap-drop=ALL", "--security-opt=no-new-privileges"]

# The machine's services are on its loopback. The limits are below what any machine has: podman's own are above, and
# cannot be set where root may not raise its own.
SHARED = ["--network=host", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"]


def podman(*arguments):
    return run(ENGINE, "podman", *arguments)


def in_image(*arguments, options=()):
    """Exit code and output of a container that runs to its end."""
    return podman("run", "--rm", *SHARED, *LOCKED, *options, IMAGE, *arguments)


class Container:
    """A running relay; removed when the test is over."""

    def __init__(self, environment, *arguments):
        self.name = unique("relay")
        given = [f"--env={name}={value}" for name, value in environment.items()]
        options = ["--detach", "--name", self.name, *SHARED, *LOCKED, *given]
        done(ENGINE, "podman", "run", *options, IMAGE, *arguments)

    def inspect(self, what):
        return done(ENGINE, "podman", "inspect", "--format", f"{{{{.{what}}}}}", self.name)

    def log(self):
        return podman("logs", self.name)[1]

    def address(self):
        """Of the admin endpoint."""

        def look():
            assert self.inspect("State.Running") == "true", self.log()
            return re.search(ENDPOINT, self.log())

        return wait_until("the relay to say where its endpoint is", look)[1]

    def process(self):
        folder = f"/proc/{self.inspect('State.Pid')}"
        with open(f"{folder}/status") as status, open(f"{folder}/mountinfo") as mounts:
            return Process(status.read(), mounts.read())

    def stop(self):
        """As `docker stop`: the image's signal, patience, the exit code."""
        done(ENGINE, "podman", "stop", "--time=60", self.name)
        return int(self.inspect("State.ExitCode"))

    def remove(self):
        podman("rm", "--force", "--time=0", self.name)


def answer(address, path):
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as found:
            return found.status
    except urllib.error.HTTPError as error:
        return error.code


def contents(image):
    """Of each path in an image's root: its kind and mode, its owner, and a digest of its bytes."""
    root = done(ENGINE, "podman", "image", "mount", image)
    try:
        found = {}
        for folder, folders, files in os.walk(root):
            for name in folders + files:
                path = os.path.join(folder, name)
                about = os.lstat(path)
                data = b""
                if stat.S_ISREG(about.st_mode):
                    with open(path, "rb") as file:
                        data = file.read()
                elif stat.S_ISLNK(about.st_mode):
                    data = os.readlink(path).encode()
                digest = hashlib.sha256(data).hexdigest()
                found[os.path.relpath(path, root)] = (stat.filemode(about.st_mode), about.st_uid, about.st_gid, digest)
        return found
    finally:
        podman("image", "unmount", image)


def test_it_relays_a_row_as_nobody_with_a_root_that_is_read_only(place):
    code, text = in_image("migrate", options=[f"--env=DATABASE_URL={place.owner_url}"])
    assert code == 0, text
    place.make_roles()
    environment = {
        "DATABASE_URL": place.relay_url,
        "AMQP_URL": place.amqp_url,
        "OUTBOX__RABBITMQ__EXCHANGE": place.exchange,
        "OUTBOX__ADMIN__LISTEN": "127.0.0.1:0",
    }
    # The image's own command is `run`.
    relay = Container(environment)
    try:
        address = relay.address()
        place.relays("from the image")
        assert answer(address, "/livez") == 200
        wait_until("/readyz to answer 200", lambda: answer(address, "/readyz") == 200)

        process = relay.process()
        assert process.users() == ["65532"] * 8
        assert process.status["Groups"].split() in ([], ["65532"])
        assert process.capabilities() == dict.fromkeys(process.capabilities(), 0)
        assert process.status["NoNewPrivs"] == "1"
        assert "ro" in process.options("/")

        assert relay.stop() == 0, relay.log()
        assert place.lanes_owned() == 0
    finally:
        relay.remove()


def test_its_exit_codes_are_the_relays():
    code, text = in_image("--version")
    assert (code, text.split()[0]) == (0, "outbox-relay"), text
    assert in_image("no-such-command")[0] == 2
    code, text = in_image()
    assert code == 78, text


def test_it_has_no_shell():
    for shell in ("/bin/sh", "/bin/bash", "/usr/bin/env"):
        code, text = in_image("-c", "true", options=[f"--entrypoint={shell}"])
        # The engine's own word for a program that is not there.
        assert code == 127, text


def test_it_holds_the_relay_its_libraries_and_nothing_that_could_be_run_beside_it():
    found = contents(IMAGE)
    files = {path for path, (mode, *_) in found.items() if not mode.startswith("d")}
    libraries = {path for path in files if re.fullmatch(r"(usr/)?lib[^.]*/(lib|ld-)[^/]*\.so[.\d]*", path)}
    assert files - libraries == {
        "usr/local/bin/outbox-relay",
        "etc/passwd",
        "etc/group",
        "etc/nsswitch.conf",
        "etc/ssl/certs/ca-certificates.crt",
        "usr/share/doc/outbox-relay/LICENSE-MIT",
        "usr/share/doc/outbox-relay/LICENSE-APACHE",
    }
    # Nothing has an owner whom the relay could be, or rights that it could gain or write with.
    assert {(owner, group) for _, owner, group, _ in found.values()} == {(0, 0)}
    assert [path for path, (mode, *_) in found.items() if "w" in mode[5:] or "s" in mode.lower()] == []
    configured = json.loads(podman("image", "inspect", IMAGE)[1])[0]["Config"]
    assert configured["User"] == "65532:65532"
    assert configured["StopSignal"] in ("SIGTERM", "15")
