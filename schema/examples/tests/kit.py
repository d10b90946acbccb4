"""What the tests of the examples share: a database of their own, a relay, programs that are watched and killed.

Nothing that a test started outlives it; every wait has a deadline and says what it waited for.
"""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import threading
import time
import uuid

import psycopg

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent
ROOT = EXAMPLES.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
RELAY = os.environ.get("OUTBOX_RELAY_BIN", str(TARGET / "debug" / "outbox-relay"))
# Debian's interpreter, since Debian's packages bring the drivers for that one.
PYTHON = "/usr/bin/python3"
WAIT_SECONDS = 60
KILLED = -signal.SIGKILL

# npm ci puts the drivers beside a copy of the programs, so that nothing is written into the sources.
NODE_EXAMPLES = pathlib.Path(os.environ.get("NODE_EXAMPLES", TARGET / "examples-javascript"))


def node(program):
    return ["node", str(NODE_EXAMPLES / program)]


# How each language's monthly invoices are started.
INVOICES = {
    "python": [PYTHON, str(EXAMPLES / "python" / "monthly_invoices.py")],
    "javascript": node("monthly_invoices.js"),
    "rust": [str(TARGET / "debug" / "examples" / "monthly_invoices")],
}


def unique(name):
    return f"{name}.{uuid.uuid4().hex[:12]}"


def wait_until(what, check):
    deadline = time.monotonic() + WAIT_SECONDS
    while not (found := check()):
        assert time.monotonic() < deadline, f"waited {WAIT_SECONDS} s in vain: {what}"
        time.sleep(0.02)
    return found


class Program:
    """A process whose output is kept; killed when the test is over."""

    def __init__(self, command, environment):
        inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
        self.name = " ".join(pathlib.Path(part).name for part in command[:3])
        self.lines = []
        self.process = subprocess.Popen(
            command,
            env=inherited | {"PYTHONDONTWRITEBYTECODE": "1"} | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def text(self):
        return "\n".join(self.lines)

    def wait_line(self, pattern):
        """The first line that matches, also one that came before."""

        def look():
            for line in list(self.lines):
                if match := re.search(pattern, line):
                    return match
            assert self.process.poll() is None, f"{self.name} ended before it said {pattern}:\n{self.text()}"
            return None

        return wait_until(f"{self.name} to say {pattern}", look)

    def wait_exit(self):
        try:
            code = self.process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end:\n{self.text()}") from None
        self.reader.join(WAIT_SECONDS)
        return code

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def stop(self):
        """SIGTERM, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait_exit()


class Stage:
    """A database with the outbox, the inbox and the application's tables, and what a test started beside it."""

    def __init__(self):
        server = os.environ["TEST_DATABASE_URL"]
        self.name = f"examples_{uuid.uuid4().hex[:16]}"
        self.admin = psycopg.connect(server, autocommit=True)
        self.admin.execute(f"CREATE DATABASE {self.name} ENCODING 'UTF8' TEMPLATE template0")
        self.url = re.sub(r"/[^/?]*(\?|$)", rf"/{self.name}\1", server)
        self.stack = contextlib.ExitStack()
        migrate = subprocess.run(
            [RELAY, "migrate"], env={"DATABASE_URL": self.url}, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        assert migrate.returncode == 0, migrate.stderr
        self.db = psycopg.connect(self.url, autocommit=True)
        self.db.execute((EXAMPLES / "application.sql").read_text())

    def close(self):
        self.stack.close()
        self.db.close()
        self.admin.execute(f"DROP DATABASE {self.name} WITH (FORCE)")
        self.admin.close()

    def one(self, sql, *parameters):
        return self.db.execute(sql, parameters).fetchone()[0]

    def start(self, command, **environment):
        program = Program(command, {"DATABASE_URL": self.url} | environment)
        self.stack.callback(program.kill)
        return program

    def run(self, command, **environment):
        """Runs a program to its end and returns its exit code and output."""
        program = self.start(command, **environment)
        return program.wait_exit(), program.text()

    @contextlib.contextmanager
    def no_marks(self):
        """Inside, the relay can publish and cannot mark."""
        self.db.execute(
            "CREATE FUNCTION wait_for_the_test() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END $$; "
            "CREATE TRIGGER wait_for_the_test BEFORE UPDATE ON outbox.message "
            "FOR EACH ROW EXECUTE FUNCTION wait_for_the_test()"
        )
        self.db.execute("SELECT pg_advisory_lock(1)")
        yield
        self.db.execute("SELECT pg_advisory_unlock(1)")

    def no_sessions(self):
        """Waits for the sessions of a relay that was killed: its last mark may still wait, and would go on later."""
        sql = (
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = 'outbox-relay'"
        )
        wait_until("the dead relay's sessions to end", lambda: self.one(sql) == 0)

    def relay(self, config=None, **environment):
        """A relay that has its lanes. What is quicker than by default only spares the test its waits."""
        quick = {"OUTBOX__LEASE__TTL_MS": "3000", "OUTBOX__POLL__MAX_MS": "50"}
        file = [] if config is None else ["--config", str(config)]
        relay = self.start([RELAY, "run", "--admin-listen", "127.0.0.1:0", *file], **(quick | environment))
        wait_until(
            f"a relay to own the lanes\n{relay.text()}",
            lambda: self.one(
                "SELECT count(*) = 16 AND count(DISTINCT owner) = 1 AND bool_and(expires_at > clock_timestamp()) "
                "FROM outbox.lane"
            ),
        )
        return relay
