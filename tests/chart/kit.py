"""What the chart's checks share: where things lie, helm, and Kubernetes' schemas."""

import functools
import json
import os
import pathlib
import re
import subprocess
import tempfile

import jsonschema
import kubernetes_validate
import referencing
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHARTS = ROOT / "charts"
CHART = CHARTS / "outbox-relay"
HERE = pathlib.Path(__file__).resolve().parent
CASES = sorted(CHART.glob("ci/*-values.yaml"))
# The oldest that Chart.yaml allows, one in the middle, the newest that the schemas' package knows.
VERSIONS = ("1.25.0", "1.31.0", "1.37.0")
SCHEMAS = pathlib.Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"


def run(*command, stdin=None, env=None):
    """Standard output and error together, and the exit code."""
    finished = subprocess.run(
        [str(part) for part in command],
        input=stdin,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **(env or {})},
        timeout=120,
        check=False,
    )
    return finished.returncode, finished.stdout


def helm(*arguments):
    # A home of its own: the caller's plugins and repositories have no part in it.
    with tempfile.TemporaryDirectory() as home:
        env = {f"HELM_{name}_HOME": home for name in ("CACHE", "CONFIG", "DATA")}
        return run(os.environ["HELM"], *arguments, env=env)


def promtool(*arguments):
    return run(os.environ["PROMTOOL"], *arguments)


def template(values=None, version=VERSIONS[1], text=None):
    """Exit code and output of `helm template` for a file of values, or for values as text."""
    arguments = ["template", "orders", CHART, "--namespace", "shop", "--kube-version", version]
    if values is not None:
        arguments += ["--values", values]
    if text is None:
        return helm(*arguments)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        return helm(*arguments, "--values", file.name)


@functools.cache
def rendered(values=None, version=VERSIONS[1]):
    code, output = template(values, version)
    if code != 0:
        raise AssertionError(f"helm template {values}: {output}")
    return [found for found in yaml.safe_load_all(output) if found]


def of_kind(objects, kind):
    return [found for found in objects if found["kind"] == kind]


def pods(objects):
    """The pod of each object that makes one, by the object's kind."""
    for found in objects:
        if found["kind"] == "Pod":
            yield found["kind"], found["spec"]
        elif found["kind"] in ("Deployment", "Job"):
            yield found["kind"], found["spec"]["template"]["spec"]


def toml_text(objects):
    maps = of_kind(objects, "ConfigMap")
    return next(found["data"]["outbox-relay.toml"] for found in maps if "outbox-relay.toml" in found.get("data", {}))


@functools.cache
def _registry(version):
    folder = SCHEMAS / f"v{version}-local-strict"

    @functools.cache
    def retrieve(uri):
        schema = json.loads((folder / uri.rsplit("/", 1)[-1]).read_text())
        return referencing.Resource(schema, referencing.jsonschema.DRAFT4)

    return folder, referencing.Registry(retrieve=retrieve)


OPERATORS = json.loads((HERE / "operators.schema.json").read_text())


@functools.cache
def _validator(api, kind, version):
    group, _, name = api.rpartition("/")
    if f"{api} {kind}" in OPERATORS:
        return jsonschema.Draft7Validator(OPERATORS[f"{api} {kind}"])
    parts = [kind.lower(), group.split(".")[0], name]
    folder, registry = _registry(version)
    file = folder / ("-".join(part for part in parts if part) + ".json")
    if not file.exists():
        raise AssertionError(f"Kubernetes {version} has no {kind} of {api}")
    return jsonschema.Draft4Validator(json.loads(file.read_text()), registry=registry)


def problems(found, version):
    """What the strict schema of a Kubernetes version finds wrong with an object."""
    validator = _validator(found["apiVersion"], found["kind"], version)
    errors = validator.iter_errors(found)
    return [f"{found['kind']} {error.json_path}: {error.message[:200]}" for error in errors]


def readme_rows(heading):
    """The first cells of the tables of a section of the main README."""
    _, rest = (ROOT / "README.md").read_text().split(f"\n## {heading}\n")
    return re.findall(r"^\| `([^`]+)` \|", rest.split("\n## ")[0], re.MULTILINE)


def readme_rows_of_exit_codes():
    return re.findall(r"^\| ([0-9, ]+) \|", (ROOT / "README.md").read_text(), re.MULTILINE)


def metrics_known():
    """Names that a relay exposes: the README's table (a Rust test compares it with the registry) and `process_*`."""
    _, rest = (ROOT / "README.md").read_text().split("\n## Metrics\n")
    rows = re.findall(r"^\| `(outbox_\w+)` \| (\w+) \|", rest.split("\n## ")[0], re.MULTILINE)
    names = set()
    for name, kind in rows:
        names |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"} if kind == "histogram" else {name}
    return names


def metrics_used(expression):
    return set(re.findall(r"\b((?:outbox|process)_\w+)(?=\{)", expression))


def bare_metrics(expression):
    """Selectors without braces, which the chart and the dashboard could not narrow down."""
    return re.findall(r"\b(?:outbox|process)_\w+\b(?!\{)", expression)
