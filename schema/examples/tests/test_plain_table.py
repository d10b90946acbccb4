"""An application's plain outbox table, in two languages and to each broker: the job run twice, at once, and killed
between any two steps; the relay killed before it takes rows and between publish and mark; the consumer killed too."""

import json
import subprocess

import pytest

from jobs import (
    MONTH,
    counts,
    customers,
    issue,
    killed_between_any_two_steps_and_run_again,
    run_twice_at_once,
    start_mailer,
)
from kit import EXAMPLES, KILLED, PYTHON, RELAY, node, wait_until

JOB_BOUNDARIES = ["claimed", "invoiced", "written", "committed"]
MAIL_BOUNDARIES = ["mail-claimed", "mailed", "mail-committed"]
PROGRAMS = {
    "python": [PYTHON, str(EXAMPLES / "python" / "plain_table.py")],
    "javascript": node("plain_table.js"),
}


@pytest.fixture(params=PROGRAMS)
def program(request):
    return PROGRAMS[request.param]


def source(stage, broker, folder):
    """The example's configuration with the broker's own topic; the table made ready as migrate and check say."""
    text = (EXAMPLES / "plain_table.toml").read_text()
    if broker.name == "kafka":
        text = text.replace('topic = "{kind}"', f'topic = "{broker.topic}"')
    config = folder / "relay.toml"
    config.write_text(text + "poll_ms = 50\n")
    environment = {"DATABASE_URL": stage.url} | broker.relay_environment()

    def command(*arguments):
        done = subprocess.run(
            [RELAY, *arguments, "--config", str(config)],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout

    code, said = command("migrate")
    assert code == 0 and "added the column for the mark" in said, said
    findings = json.loads(command("check", "--output", "json")[1])
    statements = [statement for finding in findings for statement in finding.get("statements", [])]
    assert len(statements) == 1, findings
    stage.db.execute(statements[0])
    findings = json.loads(command("check", "--output", "json")[1])
    assert [finding["severity"] for finding in findings if finding["name"] == "source"] == ["ok"], findings
    return config


def test_the_job_killed_between_any_two_steps_and_run_again_has_one_effect(stage, program):
    killed_between_any_two_steps_and_run_again(stage, program, JOB_BOUNDARIES, "outbox")


def test_the_job_run_twice_at_once_has_one_effect(stage, program):
    run_twice_at_once(stage, program, "outbox")


def test_job_relay_and_mailer_killed_at_any_step_mail_once(stage, program, broker, tmp_path):
    names = customers(stage, 8)
    config = source(stage, broker, tmp_path)
    # Killed before it takes anything: the rows wait in the application's table.
    relay = stage.relay(config, **broker.relay_environment())
    stage.db.execute("BEGIN; LOCK TABLE outbox IN ROW EXCLUSIVE MODE; LOCK TABLE outbox.message IN SHARE MODE")
    writer = stage.start([*program, "issue", MONTH, *names[:4]])
    assert writer.wait_exit() == 0, writer.text()
    relay.kill()
    stage.db.execute("COMMIT")
    stage.no_sessions()

    relay = stage.relay(config, **broker.relay_environment())
    with stage.no_marks():
        assert issue(stage, program, names)[0] == 0
        wait_until("all messages at the broker", lambda: broker.arrived() == len(names))
        assert stage.one("SELECT count(*) FROM outbox WHERE taken_at IS NULL") == 0
        relay.kill()  # Between publish and mark.
        stage.no_sessions()
        for boundary in MAIL_BOUNDARIES:
            mailer = start_mailer(stage, program, broker, KILL_AT=boundary)
            assert mailer.wait_exit() == KILLED, mailer.text()
    assert counts(stage, "outbox")[2:] == (1, 0), "only what died after its commit was mailed"

    # Everything is published again under the same ids, and what was published before is there too.
    stage.relay(config, **broker.relay_environment())
    mailer = start_mailer(stage, program, broker)
    for name in names:
        mailer.wait_line(f"done before invoice-email:{MONTH}:{name}$")
    wait_until("all marks", lambda: stage.one("SELECT count(*) FROM outbox.message WHERE sent_at IS NULL") == 0)
    assert counts(stage, "outbox") == (len(names), len(names), len(names), 0)
    assert stage.one("SELECT count(*) FROM outbox.message") == len(names)
    assert mailer.stop() == 0, mailer.text()
