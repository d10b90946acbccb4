"""The JSON schema of the configuration file: it takes every file that the project shows or ships, refuses what the
relay refuses, and the chart's own schema agrees with it."""

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import unittest

import jsonschema
import yaml

import kit

SCHEMA = json.loads((kit.ROOT / "packaging" / "outbox-relay.schema.json").read_text())
RELAY = os.environ.get("OUTBOX_RELAY_BIN")

# Files that must be refused, and the place and words of the schema's complaint.
REFUSED = [
    ("in_flight_max = 0", "$.in_flight_max", "minimum"),
    ("inflight_max = 3", "$", "'inflight_max' was unexpected"),
    ('durability_fence = "always"', "$.durability_fence", "'local'"),
    ('retention = "7 fortnights"', "$.retention", "does not match"),
    ('allow = "events"\nallow_all = true', "$", "'allow_all' was unexpected"),
    ("[lease]\ntll_ms = 1000", "$.lease", "'tll_ms' was unexpected"),
    ("[lease]\nttl_ms = 499", "$.lease.ttl_ms", "minimum of 500"),
    ("[leese]\nttl_ms = 1000", "$", "'leese' was unexpected"),
    ("[poll]\nmax_ms = 60001", "$.poll.max_ms", "maximum of 60000"),
    ("[poll]\nmax_ms = 1.5", "$.poll.max_ms", "is not of type 'integer'"),
    ('[batch]\nbytes_max = "8mib"', "$.batch.bytes_max", "does not match"),
    ("[batch]\nbytes_max = 1023", "$.batch.bytes_max", "minimum of 1024"),
    ('[rabbitmq]\norder = "loose"', "$.rabbitmq.order", "'strict'"),
    ('[rabbitmq]\nallow_plaintext = "yes"', "$.rabbitmq.allow_plaintext", "is not of type 'boolean'"),
    ('[rabbitmq]\nca_files = "/ca.pem"', "$.rabbitmq", "'ca_files' was unexpected"),
    ('[kafka]\nbrokers = "localhost:1"\n[kafka.properties]\nacks = 1', "$.kafka.properties", "'acks'"),
    ('[log]\nformat = "xml"', "$.log.format", "'text'"),
    ('[[route]]\nsink = "kafka"', "$.route[0]", "'match' is a required property"),
    ('[[route]]\nmatch = "*"\nsink = "sqs"', "$.route[0].sink", "'rabbitmq'"),
    ('[[route]]\nmatch = "*"\nsink = "kafka"\ntopik = "x"', "$.route[0]", "'topik' was unexpected"),
    ('[[route]]\nmatch = "*"\nsink = "kafka"\nexchange = "x"', "$.route[0]", "should not be valid"),
    ('[[route]]\nmatch = "*"\nsink = "rabbitmq"\ntopic = "x"', "$.route[0]", "should not be valid"),
    ('[route]\nmatch = "*"\nsink = "rabbitmq"', "$.route", "is not of type 'array'"),
]


def problems(text):
    errors = jsonschema.Draft7Validator(SCHEMA).iter_errors(tomllib.loads(text))
    return [(error.json_path, error.message) for error in errors]


def relay(text, *arguments):
    """The exit code of the relay's `config` for a file, and what it says. Nothing is connected to."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        environment = {"PATH": os.environ["PATH"], "DATABASE_URL": "postgres://relay@localhost/shop"}
        command = [RELAY, "config", "--config", file.name, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr


def numbers():
    """Keys with bounds."""
    for section, below in SCHEMA["properties"].items():
        for name, key in {None: below, **below.get("properties", {})}.items():
            if "maximum" in key:
                yield section, name, key


def with_numbers(value):
    """A file that sets all of them."""
    tables = {}
    for section, name, key in numbers():
        tables.setdefault("" if name is None else section, []).append(f"{name or section} = {value(key)}")
    bare = tables.pop("", [])
    return "\n".join([*bare, *(line for name, lines in tables.items() for line in (f"[{name}]", *lines))])


class Schema(unittest.TestCase):
    def test_it_is_a_schema(self):
        jsonschema.Draft7Validator.check_schema(SCHEMA)

    def test_it_takes_the_examples_of_the_readme(self):
        blocks = re.findall(r"^```toml\n(.*?)^```", (kit.ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
        self.assertGreaterEqual(len(blocks), 1)
        for block in blocks:
            self.assertEqual(problems(block), [], block)

    def test_it_takes_what_the_chart_renders(self):
        for case in [None, *kit.CASES]:
            with self.subTest(case=case and case.name):
                self.assertEqual(problems(kit.toml_text(kit.rendered(case))), [])

    def test_it_takes_the_configuration_of_compose(self):
        compose = yaml.safe_load((kit.ROOT / "compose.yaml").read_text())
        self.assertEqual(problems(compose["configs"]["relay"]["content"]), [])

    @unittest.skipUnless(RELAY, "no relay was built")
    def test_it_takes_the_file_that_the_packages_carry(self):
        text = kit.run(RELAY, "config", "--default")[1]
        self.assertEqual(problems(text), [])
        # Every default that is written there, too.
        lines = [line.removeprefix("# ") if re.match(r"# [a-z_]+ = (?!\"\")", line) else line for line in text.splitlines()]
        uncommented = "\n".join(line for line in lines if not line.startswith("#"))
        keys = uncommented.split("match = ")[0]
        self.assertIn("\nttl_ms = 10000\n", keys)
        self.assertEqual(problems(keys), [])

    @unittest.skipUnless(RELAY, "no relay was built")
    def test_the_relay_prints_it(self):
        self.assertEqual(json.loads(kit.run(RELAY, "config", "--schema")[1]), SCHEMA)

    def test_it_refuses_what_is_wrong_and_says_where(self):
        for text, place, words in REFUSED:
            with self.subTest(text=text):
                found = problems(text)
                self.assertTrue(any(path == place and words in message for path, message in found), found)

    @unittest.skipUnless(RELAY, "no relay was built")
    def test_the_relay_refuses_it_as_well(self):
        for text, _, _ in REFUSED:
            with self.subTest(text=text):
                code, output = relay(text)
                self.assertEqual(code, 78, output)

    @unittest.skipUnless(RELAY, "no relay was built")
    def test_the_relay_has_the_same_bounds(self):
        known = list(numbers())
        self.assertGreater(len(known), 10)
        for value, fits in [
            (lambda key: key["minimum"], True),
            (lambda key: key["maximum"], True),
            (lambda key: key["minimum"] - 1, False),
            (lambda key: key["maximum"] + 1, False),
        ]:
            _, output = relay(with_numbers(value))
            for section, name, _ in known:
                where = section if name is None else f"{section}.{name}"
                refused = re.search(rf"^  {re.escape(where)} \(.*must be a (whole number|size)", output, re.MULTILINE)
                self.assertEqual(refused is None, fits, f"{where}: {output}")

    def test_every_key_says_what_it_is(self):
        for section, below in SCHEMA["properties"].items():
            keys = below.get("properties", {section: below})
            for name, key in keys.items():
                self.assertTrue(key["description"], f"{section} {name}")
                self.assertTrue({"type", "enum"} & set(key), f"{section} {name}")

    def test_the_chart_agrees(self):
        code, output = kit.run(sys.executable, kit.HERE / "config_schema.py")
        self.assertEqual(code, 0, output)
