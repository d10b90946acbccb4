"""The chart installed by helm in a cluster whose API server is real: what it takes, changes and leaves behind.

Pods are judged by its admission under the strictest of Kubernetes' own rules for pods. None runs.
"""

import json

import pytest
import yaml

from cluster import Cluster
from stage import ROOT, unique

CHART = ROOT / "charts/outbox-relay"
CASES = [None, *sorted(CHART.glob("ci/*-values.yaml"))]
# Kinds of operators that a case makes: (group, version, kind). What may stand in them the chart's own checks know.
OPERATORS = [
    ("monitoring.coreos.com", "v1", "PodMonitor"),
    ("monitoring.coreos.com", "v1", "PrometheusRule"),
    ("keda.sh", "v1alpha1", "ScaledObject"),
]


def definition(group, version, kind):
    open_schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    names = {"kind": kind, "plural": kind.lower() + "s", "singular": kind.lower(), "listKind": f"{kind}List"}
    versions = [{"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": open_schema}}]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names['plural']}.{group}"},
        "spec": {"group": group, "names": names, "scope": "Namespaced", "versions": versions},
    }


@pytest.fixture(scope="module")
def cluster():
    made = Cluster()
    try:
        for operator in OPERATORS:
            made.make("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition(*operator))
        # The one that ci/on-values.yaml names.
        api = "scheduling.k8s.io/v1"
        priority = {"apiVersion": api, "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1}
        made.make(f"/apis/{api}/priorityclasses", priority)
        yield made
    finally:
        made.close()


# The case without any security context is nothing for a cluster that asks for one.
UNCONFINED = CHART / "ci/off-values.yaml"


@pytest.fixture
def namespace(request, cluster):
    """One that takes only pods which are restricted, except for the case that has no such pods."""
    name = unique("shop").replace("_", "-")
    case = getattr(request.node, "callspec", None) and request.node.callspec.params["case"]
    labels = {"pod-security.kubernetes.io/enforce": "privileged" if case == UNCONFINED else "restricted"}
    metadata = {"name": name, "labels": labels}
    cluster.make("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    # A controller would make it.
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    cluster.make(f"/api/v1/namespaces/{name}/serviceaccounts", account)
    return name


def values(case):
    return [] if case is None else ["--values", case]


def objects(cluster, namespace, case, *options):
    asked = ["template", "orders", CHART, "--namespace", namespace, *values(case), *options]
    # --validate asks the server what it is and what it knows.
    code, text = cluster.helm(*asked, "--validate")
    assert code == 0, text
    return [found for found in yaml.safe_load_all(text) if found]


def left(cluster, namespace):
    """What a release could leave: of each kind the names, without those that were there before."""
    kinds = [("/api/v1", kind) for kind in ("configmaps", "serviceaccounts", "secrets", "pods")]
    kinds += [("/apis/apps/v1", "deployments"), ("/apis/batch/v1", "jobs")]
    kinds += [("/apis/policy/v1", "poddisruptionbudgets"), ("/apis/networking.k8s.io/v1", "networkpolicies")]
    kinds += [(f"/apis/{group}/{version}", f"{kind.lower()}s") for group, version, kind in OPERATORS]
    found = set()
    for root, kind in kinds:
        status, text = cluster.request("GET", f"{root}/namespaces/{namespace}/{kind}")
        assert status == 200, text
        found |= {(kind, one["metadata"]["name"]) for one in json.loads(text)["items"]}
    return found - {("serviceaccounts", "default"), ("configmaps", "kube-root-ca.crt")}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name if case else "defaults")
def test_helm_installs_upgrades_and_removes_it(cluster, namespace, case):
    # Hooks wait for pods that run; the server judges them below.
    common = ["orders", CHART, "--namespace", namespace, "--no-hooks", *values(case)]
    code, text = cluster.helm("install", *common)
    assert code == 0, text
    installed = left(cluster, namespace)
    made = {one["metadata"]["name"] for one in objects(cluster, namespace, case, "--no-hooks")}
    assert made <= {name for _, name in installed}
    # Another configuration, and labels of pods: what a selector must not change.
    code, text = cluster.helm("upgrade", *common, "--set", "config.poll.max_ms=100", "--set", "podLabels.tier=back")
    assert code == 0, text
    code, text = cluster.helm("uninstall", "orders", "--namespace", namespace, "--no-hooks")
    assert code == 0, text
    assert left(cluster, namespace) == set()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name if case else "defaults")
def test_the_server_takes_every_object_and_pod(cluster, namespace, case):
    found = objects(cluster, namespace, case)
    for one in found:
        if one["kind"] == "ServiceAccount":
            cluster.make(f"/api/v1/namespaces/{namespace}/serviceaccounts", one)
    refused = []
    for one in found:
        if one["kind"] != "ServiceAccount":
            refused.append((one["kind"], cluster.judge(namespace, one)))
        if one["kind"] in ("Deployment", "Job"):
            pod = {"apiVersion": "v1", "kind": "Pod", **one["spec"]["template"]}
            pod["metadata"] = {**pod["metadata"], "name": "pod"}
            refused.append((f"pod of {one['kind']}", cluster.judge(namespace, pod)))
    assert [problem for problem in refused if problem[1]] == []


def test_the_server_does_refuse_what_is_wrong(cluster, namespace):
    """That it judges at all: an unknown field, a value of the wrong kind, a pod with rights."""
    deployment = next(one for one in objects(cluster, namespace, None) if one["kind"] == "Deployment")
    pod = {"apiVersion": "v1", "kind": "Pod", **deployment["spec"]["template"]}
    pod["metadata"] = {**pod["metadata"], "name": "pod"}
    pod["spec"]["serviceAccountName"] = "default"
    assert cluster.judge(namespace, pod) is None
    pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    assert 'violates PodSecurity "restricted' in cluster.judge(namespace, pod)
    deployment["spec"]["replica"] = 2
    assert 'unknown field "spec.replica"' in cluster.judge(namespace, deployment)
