"""The chart as helm renders it, for every file of ci/, and what its schema refuses."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import tomllib
import unittest

import yaml

import kit
import readme

# What the mounted files hold where the relay itself reads them.
SECRETS = {
    "database-url": "postgres://relay@localhost/shop",
    "amqp-url": "amqp://relay@localhost",
    "kafka-properties": "sasl.username=relay\nsasl.password=secret\n",
}

# Values that must be refused, and words of the message that an operator needs.
REFUSED = [
    ("replicaCount: many", ["/replicaCount", "got string"]),
    ("replicaCount: 17", ["/replicaCount", "16"]),
    ("replicas: 2", ["'replicas' not allowed"]),
    ("image: {digest: latest}", ["/image/digest"]),
    ("image: {pullPolicy: Sometimes}", ["/image/pullPolicy", "IfNotPresent"]),
    ("config: {lease: {tll_ms: 1000}}", ["/config/lease", "'tll_ms' not allowed"]),
    ("config: {lease: {ttl_ms: 100}}", ["/config/lease/ttl_ms", "500"]),
    ("config: {in_flight_max: \"2000\"}", ["/config/in_flight_max", "got string, want integer"]),
    ("config: {durability_fence: always}", ["/config/durability_fence", "local"]),
    ("config: {retention: 7}", ["/config/retention", "got number, want string"]),
    ("config: {rabbitmq: {url: \"amqp://u:p@h\"}}", ["/config/rabbitmq", "'url' not allowed"]),
    ("config: {database: {url: \"postgres://u:p@h/d\"}}", ["/config", "'database' not allowed"]),
    ("config: {admin: {listen: \"0.0.0.0:1\"}}", ["/config", "'admin' not allowed"]),
    ("config: {kafka: {brokers: k, properties: {sasl.password: p}}}", ["sasl.password is a secret"]),
    ("config: {route: [{match: \"*\"}]}", ["/config/route/0", "'sink'"]),
    ("config: {source: [{name: a, table: b.c, message_id: \"{id}\", topic: t, colum: x}]}", ["/config/source/0", "colum"]),
    ("config: {route: [{match: \"*\", sink: nats}]}", ["/config/route/0/sink", "rabbitmq"]),
    ("config: [a]", ["/config", "want object"]),
    ("secrets: {database: {existingSecret: \"\"}}", ["/secrets/database/existingSecret"]),
    ("secrets: {rabbitmq: {existingSecret: \"\"}}", ["no broker: set secrets.rabbitmq.existingSecret"]),
    ("secrets: {kafka: {existingSecret: a}}", ["config.kafka.brokers is not"]),
    ("config: {kafka: {brokers: \"k:9092\"}}", ["the last entry of config.route must have match"]),
    ("config: {shutdown: {grace_ms: 24001}}", ["terminationGracePeriodSeconds must be at least 31"]),
    ("terminationGracePeriodSeconds: 25", ["terminationGracePeriodSeconds must be at least 26"]),
    ("admin: {port: 80}", ["/admin/port", "1,024"]),
    ("migration: {enabled: true}", ["migration.existingSecret names the Secret"]),
    ("podMonitor: {interval: 30}", ["/podMonitor/interval"]),
    ("prometheusRule: {selector: '{job=\"a\"}'}", ["/prometheusRule/selector"]),
    ("podDisruptionBudget: {minAvailable: most}", ["/podDisruptionBudget/minAvailable"]),
    ("networkPolicy: {database: {ports: []}}", ["/networkPolicy/database/ports"]),
    ("podAnnotations: {scrape: true}", ["/podAnnotations/scrape", "want string"]),
]


def schema_paths(schema, path=()):
    """Paths of the schema's own properties, with whether the map around them is closed."""
    for name, below in schema.get("properties", {}).items():
        yield (*path, name)
        yield from schema_paths(below, (*path, name))


class Chart(unittest.TestCase):
    def test_every_case_lints(self):
        for case in [None, *kit.CASES]:
            with self.subTest(case=case and case.name):
                values = ["--values", case] if case else []
                code, output = kit.helm("lint", "--strict", kit.CHART, "--kube-version", kit.VERSIONS[1], *values)
                self.assertEqual(code, 0, output)
                self.assertNotIn("[WARNING]", output)

    def test_every_case_is_valid_on_three_versions_of_kubernetes(self):
        for case in [None, *kit.CASES]:
            for version in kit.VERSIONS:
                with self.subTest(case=case and case.name, version=version):
                    found = [text for one in kit.rendered(case, version) for text in kit.problems(one, version)]
                    self.assertEqual(found, [])

    def test_the_schemas_are_strict(self):
        deployment = json.loads(json.dumps(kit.of_kind(kit.rendered(), "Deployment")[0]))
        deployment["spec"]["template"]["spec"]["containers"][0]["imagePulPolicy"] = "Always"
        deployment["spec"]["replicas"] = "two"
        for version in kit.VERSIONS:
            self.assertEqual(len(kit.problems(deployment, version)), 2, version)

    def test_bad_values_are_refused_with_a_message_that_says_where(self):
        for values, words in REFUSED:
            with self.subTest(values=values):
                code, output = kit.template(text=values)
                self.assertNotEqual(code, 0, "was taken")
                for word in words:
                    self.assertIn(word, output)

    def test_an_old_cluster_is_refused(self):
        code, output = kit.template(version="1.24.0")
        self.assertNotEqual(code, 0)
        self.assertIn("kubeVersion", output)

    def test_off_leaves_out_all_that_can_be(self):
        objects = kit.rendered(kit.CHART / "ci" / "off-values.yaml")
        self.assertEqual(sorted(one["kind"] for one in objects), ["ConfigMap", "Deployment"])

    def test_on_makes_everything(self):
        kinds = sorted(one["kind"] for one in kit.rendered(kit.CHART / "ci" / "on-values.yaml"))
        expected = ["ConfigMap"] * 4 + ["Deployment", "Job", "NetworkPolicy", "Pod", "PodDisruptionBudget"]
        self.assertEqual(kinds, sorted([*expected, "PodMonitor", "PrometheusRule", "ServiceAccount"]))

    def test_every_key_is_set_by_a_case(self):
        """A key that no case sets may be rendered by nothing."""
        seen = {key for case in kit.CASES for key in yaml.safe_load(case.read_text()) or {}}
        values = yaml.safe_load((kit.CHART / "values.yaml").read_text())
        self.assertEqual(set(values) - seen, set())

    def test_pods_are_confined(self):
        for case in [None, kit.CHART / "ci" / "on-values.yaml"]:
            for kind, pod in kit.pods(kit.rendered(case)):
                with self.subTest(kind=kind):
                    self.assertIs(pod["automountServiceAccountToken"], False)
                    self.assertIs(pod["securityContext"]["runAsNonRoot"], True)
                    self.assertEqual(pod["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
                    for container in pod["containers"]:
                        context = container["securityContext"]
                        self.assertIs(context["readOnlyRootFilesystem"], True)
                        self.assertIs(context["allowPrivilegeEscalation"], False)
                        self.assertEqual(context["capabilities"], {"drop": ["ALL"]})

    def test_only_relays_fit_the_selector_of_their_deployment(self):
        objects = kit.rendered(kit.CHART / "ci" / "on-values.yaml")
        selector = kit.of_kind(objects, "Deployment")[0]["spec"]["selector"]["matchLabels"].items()
        for kind in ("Pod", "Job"):
            one = kit.of_kind(objects, kind)[0]
            labels = one["spec"]["template"]["metadata"]["labels"] if kind == "Job" else one["metadata"]["labels"]
            self.assertFalse(selector <= labels.items(), kind)

    def test_secrets_are_files_and_never_in_the_environment(self):
        objects = kit.rendered(kit.CHART / "ci" / "on-values.yaml")
        for kind, pod in kit.pods(objects):
            for container in pod["containers"]:
                for variable in container["env"]:
                    self.assertNotIn("valueFrom", variable, kind)
            mounted = [volume for volume in pod["volumes"] if volume["name"] == "secrets"]
            self.assertEqual(len(mounted), 1, kind)

    def test_a_change_of_the_configuration_makes_new_pods(self):
        sums = set()
        for text in ("{}", "config: {poll: {max_ms: 100}}", "admin: {port: 9999}"):
            code, output = kit.template(text=text)
            self.assertEqual(code, 0, output)
            deployment = kit.of_kind(list(filter(None, yaml.safe_load_all(output))), "Deployment")[0]
            sums.add(deployment["spec"]["template"]["metadata"]["annotations"]["checksum/config"])
        self.assertEqual(len(sums), 3)


class Configuration(unittest.TestCase):
    def test_the_file_says_what_the_values_say(self):
        defaults = yaml.safe_load((kit.CHART / "values.yaml").read_text())["config"]
        for case in kit.CASES:
            with self.subTest(case=case.name):
                written = tomllib.loads(kit.toml_text(kit.rendered(case)))
                listen = written.pop("admin")["listen"]
                self.assertRegex(listen, r"^(0\.0\.0\.0|\[::\]):\d+$")
                given = (yaml.safe_load(case.read_text()) or {}).get("config", {})
                self.assertEqual(written, {**defaults, **given})

    def test_texts_come_through_unharmed(self):
        value = 'a "b" \\ \n\t <&> é {topic}'
        code, output = kit.template(text=json.dumps({"config": {"rabbitmq": {"exchange": value}}}))
        self.assertEqual(code, 0, output)
        written = tomllib.loads(kit.toml_text(list(filter(None, yaml.safe_load_all(output)))))
        self.assertEqual(written["rabbitmq"]["exchange"], value)

    @unittest.skipUnless(os.environ.get("OUTBOX_RELAY_BIN"), "no relay was built")
    def test_the_relay_takes_every_case(self):
        for case in [None, *kit.CASES]:
            with self.subTest(case=case and case.name), tempfile.TemporaryDirectory() as folder:
                objects = kit.rendered(case)
                file = pathlib.Path(folder, "relay.toml")
                # Files that it names are not here; whether they can be read is not the chart's business.
                lines = kit.toml_text(objects).splitlines()
                file.write_text("\n".join(line for line in lines if "/run/certificates/" not in line))
                volumes = kit.of_kind(objects, "Deployment")[0]["spec"]["template"]["spec"]["volumes"]
                sources = next(one for one in volumes if one["name"] == "secrets")["projected"]["sources"]
                mounted = {source["secret"]["items"][0]["path"] for source in sources}
                for name in mounted:
                    pathlib.Path(folder, name).write_text(SECRETS[name])
                environment = {"PATH": os.environ["PATH"], "CREDENTIALS_DIRECTORY": folder}
                command = [os.environ["OUTBOX_RELAY_BIN"], "config", "--config", file]
                done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
                self.assertEqual(done.returncode, 0, done.stderr)


class Drift(unittest.TestCase):
    def setUp(self):
        self.schema = json.loads((kit.CHART / "values.schema.json").read_text())
        self.values = yaml.safe_load((kit.CHART / "values.yaml").read_text())

    def test_every_value_has_a_schema_and_the_other_way_round(self):
        own = {path for path in schema_paths(self.schema) if path[0] not in ("config", "global")}
        for path in own:
            if path[0] in ("livenessProbe", "readinessProbe", "imagePullSecrets"):
                continue
            with self.subTest(path=".".join(path)):
                readme.value_at(self.values, path)
        free = ("podSecurityContext", "securityContext", "resources", "strategy")
        for path in readme.leaves(self.values):
            if path[0] in free or path[:2] in {("dashboard", "labels"), ("migration", "resources")}:
                continue
            self.assertTrue(path in own or path[0] == "config", ".".join(path))

    def test_the_readme_has_the_values_table(self):
        code, output = kit.run(sys.executable, kit.HERE / "readme.py")
        self.assertEqual(code, 0, output)

    def test_the_readme_names_every_case(self):
        text = (kit.CHART / "README.md").read_text()
        for case in kit.CASES:
            self.assertIn(f"`ci/{case.name}`", text)

    def test_the_version_of_the_application_is_the_workspaces(self):
        cargo = tomllib.loads((kit.ROOT / "Cargo.toml").read_text())
        chart = yaml.safe_load((kit.CHART / "Chart.yaml").read_text())
        self.assertEqual(chart["appVersion"], cargo["workspace"]["package"]["version"])

