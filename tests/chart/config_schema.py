"""The part of values.schema.json that is about `config`, made from the relay's own schema of its configuration file.

`config_schema.py` fails with a diff when the chart's is another; `config_schema.py --write` writes it.
What differs by intent stands here and nowhere else.
"""

import difflib
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
RELAY = ROOT / "packaging" / "outbox-relay.schema.json"
CHART = ROOT / "charts" / "outbox-relay" / "values.schema.json"

# Secrets come from Secrets, and where the relay listens is the chart's.
WITHOUT = [
    ("admin",),
    ("database",),
    ("rabbitmq", "url"),
    ("rabbitmq", "url_file"),
    ("kafka", "properties_file"),
    ("otel", "headers"),
]
# What the chart refuses and the relay refuses only when it starts, or does not.
NARROWER = {
    ("allow",): {"items": {"type": "string", "minLength": 1}},
    ("kafka", "brokers"): {"pattern": "^([^,\\s]+(, ?[^,\\s]+)*)?$"},
    # The chart's templates know no nested tables here.
    ("kafka", "properties"): {"additionalProperties": {"type": ["string", "number", "boolean"]}},
    ("log", "level"): {"minLength": 1},
    ("route",): {"minItems": 1},
    ("source",): {"minItems": 1},
}


def key(schema, path):
    for name in path:
        schema = schema["properties"][name]
    return schema


def without_defaults(schema):
    """The chart has defaults of its own, in values.yaml."""
    if isinstance(schema, dict):
        return {name: without_defaults(below) for name, below in schema.items() if name != "default"}
    return schema


def config():
    schema = without_defaults(json.loads(RELAY.read_text()))
    for path in WITHOUT:
        del key(schema, path[:-1])["properties"][path[-1]]
    for path, more in NARROWER.items():
        key(schema, path).update(more)
    del schema["$schema"], schema["title"]
    return schema


def main():
    old = CHART.read_text()
    schema = json.loads(old)
    schema["properties"]["config"] = config()
    new = json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
    if "--write" in sys.argv[1:]:
        CHART.write_text(new)
    elif new != old:
        lines = (old.splitlines(keepends=True), new.splitlines(keepends=True))
        sys.stdout.writelines(difflib.unified_diff(*lines, "values.schema.json", "values.schema.json as the relay has it"))
        sys.exit("values.schema.json is out of date: python3 tests/chart/config_schema.py --write")


if __name__ == "__main__":
    main()
