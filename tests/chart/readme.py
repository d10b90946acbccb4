"""The table of values in the chart's README, made from the comments in values.yaml.

`readme.py` fails with a diff when the README is not what it makes; `readme.py --write` writes it.
A comment that begins with `# --` documents the key below it; so documented, a map or list is shown whole.
"""

import difflib
import json
import pathlib
import re
import sys

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "outbox-relay"
BEGIN = "<!-- values: made by tests/chart/readme.py --write -->\n"
END = "<!-- end of values -->\n"


def documented(text):
    """(path, comment) of each key that has a comment, in the file's order."""
    path, comment, found = [], None, []
    for line in text.splitlines():
        if match := re.match(r"\s*# -- (.*)", line):
            comment = match[1]
        elif match := re.match(r"( *)([A-Za-z_][A-Za-z0-9_.]*):", line):
            depth = len(match[1]) // 2
            path = [*path[:depth], match[2]]
            if comment is not None:
                found.append((tuple(path), comment))
                comment = None
    return found


def value_at(values, path):
    for key in path:
        values = values[key]
    return values


def leaves(values, path=()):
    """Paths of all keys that are no non-empty map."""
    for key, value in values.items():
        below = (*path, key)
        if isinstance(value, dict) and value:
            yield from leaves(value, below)
        else:
            yield below


def table():
    text = (CHART / "values.yaml").read_text()
    values = yaml.safe_load(text)
    rows = documented(text)
    known = [path for path, _ in rows]
    bare = [leaf for leaf in leaves(values) if not any(leaf[: len(path)] == path for path in known)]
    if bare:
        sys.exit("values.yaml: no comment for " + ", ".join(".".join(path) for path in bare))
    # A documented map whose keys are documented too says what it is for, and its keys show the values.
    maps = {path for path in known if any(other[: len(path)] == path and other != path for other in known)}
    lines = ["| value | default | meaning |\n", "|---|---|---|\n"]
    for path, comment in rows:
        default = "" if path in maps else f"`{json.dumps(value_at(values, path), ensure_ascii=False)}`"
        cells = [f"`{'.'.join(path)}`", default, comment]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    return lines


def main():
    readme = CHART / "README.md"
    old = readme.read_text().splitlines(keepends=True)
    begin, end = old.index(BEGIN), old.index(END)
    new = [*old[: begin + 1], "\n", *table(), "\n", *old[end:]]
    if "--write" in sys.argv[1:]:
        readme.write_text("".join(new))
    elif new != old:
        sys.stdout.writelines(difflib.unified_diff(old, new, "README.md", "README.md as values.yaml has it"))
        sys.exit("charts/outbox-relay/README.md is out of date: python3 tests/chart/readme.py --write")


if __name__ == "__main__":
    main()
