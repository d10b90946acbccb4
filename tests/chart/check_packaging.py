"""The systemd unit, the image's and the packages' files, the bill of materials."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import unittest

import cyclonedx.schema
import jsonschema
import referencing
import yaml

import kit

PACKAGING = kit.ROOT / "packaging"
UNIT = PACKAGING / "outbox-relay.service"
RELAY = os.environ.get("OUTBOX_RELAY_BIN")
# The highest exposure that the unit may have, of 10.
EXPOSURE_MAX = 2.0


def unit():
    """Settings of the unit; each may stand several times."""
    found = {}
    for line in UNIT.read_text().splitlines():
        if "=" in line and not line.startswith(("#", "[")):
            name, value = line.split("=", 1)
            found.setdefault(name, []).append(value)
    return found


def relay_default(key):
    """A default of the main README's table."""
    found = re.search(rf"^\| `{re.escape(key)}` \| `([^`]+)` \|", (kit.ROOT / "README.md").read_text(), re.MULTILINE)
    return found[1]


class Unit(unittest.TestCase):
    @unittest.skipUnless(shutil.which("systemd-analyze"), "no systemd-analyze")
    def test_systemd_finds_nothing_wrong(self):
        with tempfile.TemporaryDirectory() as folder:
            # The program is not installed here; what is asked is whether the unit is sound.
            program = pathlib.Path(folder, "outbox-relay")
            program.write_text("#!/bin/sh\n")
            program.chmod(0o755)
            copy = pathlib.Path(folder, UNIT.name)
            copy.write_text(UNIT.read_text().replace("/usr/bin/outbox-relay", str(program)))
            code, output = kit.run("systemd-analyze", "verify", "--man=no", copy)
            own = [line for line in output.splitlines() if UNIT.name in line]
            self.assertEqual((code, own), (0, []), output)

    @unittest.skipUnless(shutil.which("systemd-analyze"), "no systemd-analyze")
    def test_it_is_exposed_to_little(self):
        code, output = kit.run("systemd-analyze", "security", "--offline=yes", "--no-pager", UNIT)
        self.assertEqual(code, 0, output)
        exposure = re.search(r"Overall exposure level for \S+: ([0-9.]+)", output)
        self.assertIsNotNone(exposure, output)
        self.assertLessEqual(float(exposure[1]), EXPOSURE_MAX, output)

    def test_it_fits_the_relay(self):
        settings = unit()
        # Usage and configuration: starting again would not help.
        self.assertEqual(settings["RestartPreventExitStatus"], ["2 78"])
        self.assertIn("2", kit.readme_rows_of_exit_codes())
        self.assertIn("78", kit.readme_rows_of_exit_codes())
        self.assertEqual(settings["Type"], ["notify"])
        self.assertGreaterEqual(int(settings["TimeoutStopSec"][0]), int(relay_default("shutdown.grace_ms")) / 1000 + 6)
        run = (kit.ROOT / "relay/daemon/src/commands/run.rs").read_text()
        silence = int(re.search(r"SILENCE_MAX_MS: u64 = ([0-9_]+);", run)[1].replace("_", "")) / 1000
        self.assertGreater(int(settings["WatchdogSec"][0]), silence)
        given = [value.split(":")[0] for value in settings["LoadCredential"]]
        layers = (kit.ROOT / "relay/daemon/src/config/layers.rs").read_text()
        known = re.search(r"const CREDENTIALS.*?\];", layers, re.DOTALL)[0]
        self.assertEqual(given, re.findall(r'\("([a-z-]+)", "', known))
        self.assertEqual([value.split(":")[0] for value in settings["SetCredential"]], given)
        for name in given:
            self.assertIn(name, (PACKAGING / "credentials.README").read_text())


class Image(unittest.TestCase):
    def test_the_image_has_no_rights(self):
        lines = (kit.ROOT / "Dockerfile").read_text().splitlines()
        last = len(lines) - 1 - [line.startswith("FROM ") for line in reversed(lines)].index(True)
        self.assertEqual(lines[last], "FROM scratch")
        user = [line for line in lines[last:] if line.startswith("USER ")]
        self.assertEqual(user, ["USER 65532:65532"])
        values = yaml.safe_load((kit.CHART / "values.yaml").read_text())
        context = values["podSecurityContext"]
        self.assertEqual(f"USER {context['runAsUser']}:{context['runAsGroup']}", user[0])
        self.assertIn('ENTRYPOINT ["/usr/local/bin/outbox-relay"]', lines[last:])

    def test_its_compiler_is_new_enough(self):
        cargo = tomllib.loads((kit.ROOT / "Cargo.toml").read_text())
        least = tuple(map(int, cargo["workspace"]["package"]["rust-version"].split(".")))
        for file in ("Dockerfile", ".github/workflows/release.yml"):
            found = re.search(r"rust:(\d+)\.(\d+)-bookworm", (kit.ROOT / file).read_text())
            self.assertGreaterEqual((int(found[1]), int(found[2])), least, file)

    def test_compose_names_what_exists(self):
        compose = yaml.safe_load((kit.ROOT / "compose.yaml").read_text())
        services = compose["services"]
        for name, service in services.items():
            self.assertLessEqual(set(service.get("depends_on", {})), set(services), name)
            for config in service.get("configs", []):
                self.assertIn(config["source"], compose["configs"], name)
            for volume in service.get("volumes", []):
                self.assertTrue((kit.ROOT / volume.split(":")[0]).exists(), volume)
            for port in service.get("ports", []):
                self.assertTrue(port.startswith("127.0.0.1:"), f"{name} is open to everybody: {port}")
        for name in ("relay", "migrate"):
            self.assertIs(services[name]["read_only"], True)
            self.assertEqual(services[name]["cap_drop"], ["ALL"])
        json.loads(compose["configs"]["rabbitmq-definitions"]["content"])

    @unittest.skipUnless(RELAY, "no relay was built")
    def test_the_relay_takes_the_configuration_of_compose(self):
        compose = yaml.safe_load((kit.ROOT / "compose.yaml").read_text())
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write(compose["configs"]["relay"]["content"])
            file.flush()
            environment = compose["services"]["relay"]["environment"]
            code, output = kit.run(RELAY, "config", "--config", file.name, env=environment)
            self.assertEqual(code, 0, output)
            # Every address is a service of the same file.
            for url in environment.values():
                host = re.sub(r"^.*@|:.*$|/.*$", "", url.split("://")[-1])
                self.assertIn(host, compose["services"])


class Packages(unittest.TestCase):
    @unittest.skipUnless(RELAY, "no relay was built")
    def test_the_package_carries_what_is_there(self):
        daemon = kit.ROOT / "relay" / "daemon"
        metadata = tomllib.loads((daemon / "Cargo.toml").read_text())["package"]["metadata"]["deb"]
        with tempfile.TemporaryDirectory() as folder:
            code, output = kit.run("sh", PACKAGING / "assets.sh", RELAY, folder)
            self.assertEqual(code, 0, output)
            made = {path.name for path in pathlib.Path(folder).iterdir() if path.stat().st_size > 100}
            for source, _, mode in metadata["assets"]:
                with self.subTest(source=source):
                    self.assertRegex(mode, "^[0-7]{3}$")
                    if "target/packaging/" in source:
                        self.assertIn(pathlib.Path(source).name, made)
                    elif source != "target/release/outbox-relay":
                        self.assertTrue((daemon / source).is_file())
            shown = pathlib.Path(folder, "outbox-relay.toml").read_text()
        targets = [target for _, target, _ in metadata["assets"]]
        self.assertIn("lib/systemd/system/", targets)
        self.assertIn(unit()["ExecStart"][0].split()[-1].lstrip("/"), targets)
        tomllib.loads(shown)

    def test_what_is_shipped_has_spans_and_the_bill_says_so(self):
        for file in ("Dockerfile", ".github/workflows/release.yml"):
            builds = re.findall(r"cargo .*build .*--bin outbox-relay.*", (kit.ROOT / file).read_text())
            self.assertEqual(len(builds), 1, file)
            self.assertIn("--features otel", builds[0], file)
        self.assertIn('FEATURES = "outbox-relay/otel"', (PACKAGING / "sbom.py").read_text())

    def test_a_release_must_be_named_like_its_version(self):
        cargo = tomllib.loads((kit.ROOT / "Cargo.toml").read_text())
        version = cargo["workspace"]["package"]["version"]
        self.assertEqual(kit.run(PACKAGING / "check-version.sh", f"v{version}")[0], 0)
        code, output = kit.run(PACKAGING / "check-version.sh", "v9.9.9")
        self.assertEqual(code, 1)
        self.assertIn("the tag says 9.9.9", output)

    def test_the_workflow_runs_what_is_there(self):
        workflow = yaml.safe_load((kit.ROOT / ".github/workflows/release.yml").read_text())
        jobs = workflow["jobs"]
        scripts = []
        for name, job in jobs.items():
            needs = job.get("needs", [])
            self.assertLessEqual({needs} if isinstance(needs, str) else set(needs), set(jobs), name)
            scripts += [step["run"] for step in job["steps"] if "run" in step]
        named = set(re.findall(r"packaging/[\w.-]+\.(?:sh|py)", "\n".join(scripts)))
        self.assertEqual(len(named), 3)
        for script in named:
            self.assertTrue(os.access(kit.ROOT / script, os.X_OK), script)


class Materials(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        made = [
            subprocess.run([sys.executable, PACKAGING / "sbom.py"], check=True, stdout=subprocess.PIPE).stdout
            for _ in range(2)
        ]
        assert made[0] == made[1], "the bill of materials is not reproducible"
        cls.bill = json.loads(made[0])
        cls.components = {one["name"]: one for one in cls.bill["components"]}

    def test_it_is_cyclonedx(self):
        folder = pathlib.Path(cyclonedx.schema.__file__).parent / "_res"

        def retrieve(uri):
            schema = json.loads((folder / uri.rsplit("/", 1)[-1].replace(".schema", ".SNAPSHOT.schema")).read_text())
            return referencing.Resource(schema, referencing.jsonschema.DRAFT7)

        schema = json.loads((folder / "bom-1.5.SNAPSHOT.schema.json").read_text())
        validator = jsonschema.Draft7Validator(schema, registry=referencing.Registry(retrieve=retrieve))
        self.assertEqual([error.message[:200] for error in validator.iter_errors(self.bill)], [])

    def test_the_bundled_c_libraries_are_named(self):
        lock = (kit.ROOT / "Cargo.lock").read_text()
        for name, pattern in (("librdkafka", r"[0-9.]+\+([0-9.]+)"), ("zstd", r"[0-9.]+\+zstd\.([0-9.]+)")):
            crate = {"librdkafka": "rdkafka-sys", "zstd": "zstd-sys"}[name]
            version = re.search(rf'name = "{crate}"\nversion = "{pattern}"', lock)[1]
            self.assertEqual(self.components[name]["version"], version)
        for name in ("zlib", "lz4", "cJSON", "jemalloc"):
            self.assertRegex(self.components[name]["version"], r"^[0-9.]+$")
        self.assertIn("openssl", self.components)

    def test_it_names_the_crates_of_the_binary_and_no_others(self):
        for name in ("lapin", "rdkafka", "tokio", "tokio-postgres", "outbox-core", "opentelemetry-proto"):
            self.assertIn(name, self.components)
        for name in ("outbox-tests", "outbox-relay", "cc", "syn"):
            self.assertNotIn(name, self.components)
        references = {one["bom-ref"] for one in self.bill["components"]} | {self.bill["metadata"]["component"]["bom-ref"]}
        for entry in self.bill["dependencies"]:
            self.assertLessEqual({entry["ref"], *entry["dependsOn"]}, references)
