"""Alerts, their unit tests, their runbooks, and the dashboard: all with promtool, and against the relay's metrics."""

import json
import pathlib
import re
import tempfile
import unittest

import yaml

import kit

ALERTS = kit.CHART / "files" / "alerts.yaml"
DASHBOARD = kit.CHART / "files" / "dashboard.json"
RUNBOOKS = kit.CHARTS / "runbooks"
EXPECTED = """OutboxDeliveryLagHigh OutboxStalled OutboxBacklogGrowing OutboxPublishFailureRatioHigh OutboxParkedMessages
OutboxStatsStale OutboxSinkDown OutboxSinkBlocked OutboxLanesUnowned OutboxSourceFailing
OutboxRelayDown OutboxCertificateExpiring OutboxCertificateUnreadable""".split()


def check_rules(groups):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump({"groups": groups}, file)
        file.flush()
        return kit.promtool("check", "rules", file.name)


def rules():
    return yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]


class Alerts(unittest.TestCase):
    def test_the_file_is_valid_by_itself(self):
        code, output = kit.promtool("check", "rules", ALERTS)
        self.assertEqual(code, 0, output)
        self.assertEqual(sorted({rule["alert"] for rule in rules()}), sorted(EXPECTED))

    def test_the_unit_tests_pass(self):
        code, output = kit.promtool("test", "rules", kit.HERE / "alerts.test.yaml")
        self.assertEqual(code, 0, output)

    def test_every_alert_is_tested_firing_and_silent(self):
        cases = yaml.safe_load((kit.HERE / "alerts.test.yaml").read_text())["tests"]
        tests = [test for case in cases for test in case["alert_rule_test"]]
        for rule in rules():
            own = [test["exp_alerts"] for test in tests if test["alertname"] == rule["alert"]]
            severities = {alert["exp_labels"]["severity"] for alerts in own for alert in alerts}
            self.assertIn(rule["labels"]["severity"], severities, rule["alert"])
            self.assertIn([], own, rule["alert"])

    def test_only_what_stops_delivery_wakes_somebody(self):
        critical = {rule["alert"] for rule in rules() if rule["labels"]["severity"] == "critical"}
        self.assertEqual(critical, {"OutboxDeliveryLagHigh", "OutboxStalled", "OutboxCertificateExpiring"})

    def test_each_has_its_texts_and_its_runbook(self):
        for rule in rules():
            with self.subTest(alert=rule["alert"]):
                self.assertEqual(sorted(rule["annotations"]), ["description", "runbook_url", "summary"])
                self.assertEqual(rule["annotations"]["runbook_url"], f"charts/runbooks/{rule['alert']}.md")
                text = (kit.ROOT / rule["annotations"]["runbook_url"]).read_text()
                self.assertTrue(text.startswith(f"# {rule['alert']}\n"))
                for heading in ("## Means", "## Look", "## Act"):
                    self.assertIn(f"\n{heading}\n", text)
        pages = {page.stem for page in RUNBOOKS.glob("*.md")} - {"README"}
        self.assertEqual(pages, set(EXPECTED))

    def test_they_use_metrics_of_the_relay(self):
        known = kit.metrics_known()
        for rule in rules():
            used = kit.metrics_used(rule["expr"])
            self.assertLessEqual(used, known, rule["alert"])
            self.assertTrue(used, rule["alert"])
            self.assertEqual(kit.bare_metrics(rule["expr"]), [], rule["alert"])

    def test_the_chart_narrows_them_to_its_release(self):
        found = kit.of_kind(kit.rendered(kit.CHART / "ci" / "on-values.yaml"), "PrometheusRule")[0]
        code, output = check_rules(found["spec"]["groups"])
        self.assertEqual(code, 0, output)
        rendered = found["spec"]["groups"][0]["rules"]
        alerts = [rule for rule in rendered if "alert" in rule]
        self.assertEqual({rule["alert"] for rule in alerts}, set(EXPECTED) - {"OutboxStatsStale"})
        for rule in alerts:
            own = 'namespace="shop",job="shop/orders-outbox"'
            for selector in re.findall(r"\{[^}]*\}", rule["expr"]):
                self.assertIn(own, selector)
            self.assertEqual(rule["labels"]["team"], "orders")
            self.assertTrue(rule["annotations"]["runbook_url"].startswith("https://wiki.example/outbox/charts/runbooks/"))
            self.assertIn("$labels", rule["annotations"]["description"])
        self.assertEqual(rendered[-1]["record"], "outbox:published:rate5m")

    def test_the_example_for_keda_asks_for_the_lag(self):
        scaled = kit.of_kind(kit.rendered(kit.CHART / "ci" / "keda-values.yaml"), "ScaledObject")[0]
        query = scaled["spec"]["triggers"][0]["metadata"]["query"]
        code, output = check_rules([{"name": "keda", "rules": [{"record": "keda", "expr": query}]}])
        self.assertEqual(code, 0, output)
        self.assertEqual(kit.metrics_used(query), {"outbox_oldest_pending_age_seconds"})
        self.assertIn(query.replace("shop", "{{ .Release.Namespace }}"), (kit.CHART / "ci" / "keda-values.yaml").read_text())
        self.assertIn(f"query: {query}", (kit.CHART / "README.md").read_text())
        deployment = kit.of_kind(kit.rendered(kit.CHART / "ci" / "keda-values.yaml"), "Deployment")[0]
        self.assertNotIn("replicas", deployment["spec"])


class Dashboard(unittest.TestCase):
    def setUp(self):
        self.dashboard = json.loads(DASHBOARD.read_text())
        self.panels = [panel for panel in self.dashboard["panels"] if panel["type"] != "row"]
        self.targets = [target for panel in self.panels for target in panel["targets"]]

    def test_every_expression_is_parsed_by_promtool(self):
        names = {"$__rate_interval": "5m", "$namespace": ".*", "$job": ".*"}
        found = []
        for target in self.targets:
            text = target["expr"]
            for name, value in names.items():
                text = text.replace(name, value)
            self.assertNotIn("$", text)
            found.append({"record": f"panel:{len(found)}", "expr": text})
        code, output = check_rules([{"name": "dashboard", "rules": found}])
        self.assertEqual(code, 0, output)

    def test_it_uses_metrics_of_the_relay_and_every_one_that_the_readme_has(self):
        known = kit.metrics_known()
        used = set()
        for target in self.targets:
            used |= kit.metrics_used(target["expr"])
            self.assertEqual(kit.bare_metrics(target["expr"]), [])
            for selector in re.findall(r"\{[^}]*\}", target["expr"]):
                self.assertIn('namespace=~"$namespace",job=~"$job"', selector)
        self.assertEqual({name for name in used if name.startswith("outbox_")} - known, set())
        families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in known}
        shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in used}
        # A drill is no state of production; the listener is not there yet.
        self.assertEqual(families - shown, {"outbox_listener_connected", "outbox_drill_messages_total"})

    def test_it_is_laid_out_as_promised(self):
        self.assertEqual(self.dashboard["uid"], "outbox-relay")
        variables = [variable["name"] for variable in self.dashboard["templating"]["list"]]
        self.assertEqual(variables, ["datasource", "namespace", "job"])
        rows = [panel["title"] for panel in self.dashboard["panels"] if panel["type"] == "row"]
        self.assertEqual(rows, ["Overview", "Latency", "Sinks", "Database", "Process"])
        self.assertEqual(len({panel["id"] for panel in self.dashboard["panels"]}), len(self.dashboard["panels"]))
        taken = set()
        for panel in self.dashboard["panels"]:
            place = panel["gridPos"]
            cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
            self.assertLessEqual(place["x"] + place["w"], 24)
            self.assertFalse(cells & taken, panel["title"])
            taken |= cells
        for panel in self.panels:
            self.assertEqual(panel["datasource"], {"type": "prometheus", "uid": "${datasource}"})
            self.assertTrue(panel["description"], panel["title"])

    def test_the_chart_ships_it_as_it_is(self):
        maps = kit.of_kind(kit.rendered(kit.CHART / "ci" / "on-values.yaml"), "ConfigMap")
        found = [one for one in maps if "outbox-relay.json" in one.get("data", {})]
        self.assertEqual(len(found), 1)
        self.assertEqual(json.loads(found[0]["data"]["outbox-relay.json"]), self.dashboard)
        self.assertEqual(found[0]["metadata"]["labels"]["grafana_dashboard"], "1")
        # A ConfigMap's own limit is a megabyte.
        self.assertLess(len(pathlib.Path(DASHBOARD).read_bytes()), 500_000)
