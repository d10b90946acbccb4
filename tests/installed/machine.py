"""A Debian 12 with a systemd of its own as process 1, beside this machine's services: it shares the network.

It is a tree of debian.sh under systemd-nspawn; what is written in it is gone with it.
"""

import pathlib
import subprocess

from stage import BOUND, HERE, TARGET, WAIT_SECONDS, done, run, unique, wait_until

# What the package depends on, and a systemd. The bus is what systemctl of a container is answered over.
PACKAGES = ["systemd", "systemd-sysv", "dbus", "ca-certificates", "libssl3"]
# Where this machine keeps cgroups: nspawn starts in one of its own in each hierarchy of systemd's.
HIERARCHIES = ["/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"]


class Machine:
    def __init__(self, *shown):
        """`shown` are files of this machine that are there under their own names at the root."""
        # The first time it says what it does before.
        tree = done(HERE / "debian.sh", "machine", *PACKAGES, timeout=1800).splitlines()[-1]
        self.name = unique("relay").replace("_", "-")
        there = [one for one in HIERARCHIES if pathlib.Path(one, "cgroup.procs").exists()]
        self.groups = [pathlib.Path(one, self.name) for one in there]
        for group in self.groups:
            group.mkdir()
        enter = 'while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs"; shift; done; shift; exec "$@"'
        binds = [f"--bind-ro={path}:/{pathlib.Path(path).name}" for path in shown]
        self.log = TARGET / "installed" / f"{self.name}.log"
        with open(self.log, "w") as log:
            self.nspawn = subprocess.Popen(
                [*BOUND, "sh", "-c", enter, "sh", *map(str, self.groups), "--", "systemd-nspawn", "--quiet", "--boot"]
                + [f"--directory={tree}", "--volatile=overlay", f"--machine={self.name}", "--console=pipe", *binds]
                # There is no systemd outside that could be asked for a scope.
                + ["--register=no", "--keep-unit", "--settings=no"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            self.first = wait_until("systemd to be process 1 of the machine", self._first)
            up = ("running", "degraded")
            wait_until("the machine to be up", lambda: self.run("systemctl", "is-system-running")[1].strip() in up)
        except BaseException:
            self.close()
            raise

    def _first(self):
        assert self.nspawn.poll() is None, f"systemd-nspawn ended:\n{self.log.read_text()}"
        process = pathlib.Path(f"/proc/{self.nspawn.pid}")
        for child in (process / f"task/{self.nspawn.pid}/children").read_text().split():
            try:
                if pathlib.Path(f"/proc/{child}/comm").read_text() == "systemd\n":
                    return child
            except OSError:
                # It has ended since: nspawn's first child only makes the second.
                continue
        return None

    def run(self, *command):
        """Exit code and output of a program in the machine."""
        inside = ["nsenter", f"--target={self.first}", "--mount", "--uts", "--ipc", "--pid", "--root", "--wd"]
        return run(*inside, "--", *command)

    def done(self, *command):
        code, text = self.run(*command)
        assert code == 0, f"{command} ended with {code}:\n{text}\n{self.journal()}"
        return text.strip()

    def journal(self):
        return self.run("journalctl", "--no-pager", "--lines=60")[1]

    def write(self, path, text):
        pathlib.Path(f"/proc/{self.first}/root{path}").write_text(text)

    def show(self, unit, name):
        return self.done("systemctl", "show", "--value", f"--property={name}", unit)

    def close(self):
        # nspawn asks its systemd to power off.
        self.nspawn.terminate()
        try:
            self.nspawn.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.nspawn.kill()
            self.nspawn.wait()
        for group in self.groups:
            for folder in sorted(group.rglob("*"), reverse=True):
                if folder.is_dir():
                    folder.rmdir()
            group.rmdir()
        self.log.unlink()
