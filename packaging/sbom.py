#!/usr/bin/env python3
"""Writes the bill of materials of the relay as CycloneDX 1.5 to standard output.

    packaging/sbom.py [TARGET] > outbox-relay.cdx.json

What Cargo knows comes from `cargo metadata --locked`: the crates that end up in the binary, not those of build scripts
and tests. What it does not know are the C libraries that some crates bring and link statically; their names stand
here, their versions are read from their sources, and a crate that links a library which is not listed is an error.
Needs Python only. The same Cargo.lock gives the same bytes; SOURCE_DATE_EPOCH adds a time.
"""

import datetime
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[1]
BINARY = "outbox-relay"
# What the image and the packages are built with.
FEATURES = "outbox-relay/otel"


def from_header(path, pattern):
    found = re.search(pattern, path.read_text(errors="replace"))
    if not found:
        sys.exit(f"sbom: no version in {path}")
    return found[1]


def lz4(folder):
    text = (folder / "librdkafka/src/lz4.h").read_text()
    parts = [re.search(rf"LZ4_VERSION_{part}\s+(\d+)", text)[1] for part in ("MAJOR", "MINOR", "RELEASE")]
    return ".".join(parts)


# For each crate that links C code: what is bundled, its licence, and where its version stands. None: no release of its
# own, so its version is that of what it is part of.
BUNDLED = {
    "rdkafka-sys": [
        ("librdkafka", "BSD-2-Clause", lambda folder, version: version.split("+")[1]),
        ("lz4", "BSD-2-Clause", lambda folder, version: lz4(folder)),
        ("cJSON", "MIT", lambda folder, version: from_cjson(folder)),
        ("snappy-c", "BSD-3-Clause", None),
        ("tinycthread", "Zlib", None),
        ("nanopb", "Zlib", None),
        ("xxHash", "BSD-2-Clause", None),
    ],
    "libz-sys": [("zlib", "Zlib", lambda folder, _: from_header(folder / "src/zlib/zlib.h", r'ZLIB_VERSION "([^"]+)"'))],
    "zstd-sys": [("zstd", "BSD-3-Clause", lambda folder, version: version.split("+zstd.")[1])],
    "tikv-jemalloc-sys": [("jemalloc", "BSD-2-Clause", lambda folder, version: version.split("+")[1].split("-")[0])],
    "curl-sys": [("curl", "curl", lambda folder, version: version.split("+curl-")[1])],
    # Assembly and C that came from BoringSSL; part of the crate and without a version of its own.
    "ring": [],
    # Only the interface: OpenSSL itself is linked dynamically.
    "openssl-sys": [],
}


def from_cjson(folder):
    text = (folder / "librdkafka/src/cJSON.h").read_text()
    return ".".join(re.search(rf"CJSON_VERSION_{part}\s+(\d+)", text)[1] for part in ("MAJOR", "MINOR", "PATCH"))


def metadata(target):
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target]
    command += ["--features", FEATURES]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)


def linked(found):
    """Packages reached from the binary by normal dependencies, and the edges between them."""
    packages = {package["id"]: package for package in found["packages"]}
    nodes = {node["id"]: node for node in found["resolve"]["nodes"]}
    root = next(one["id"] for one in found["packages"] if one["name"] == BINARY)
    edges, left = {}, [root]
    while left:
        here = left.pop()
        if here in edges:
            continue
        normal = [one for one in nodes[here]["deps"] if any(kind["kind"] is None for kind in one["dep_kinds"])]
        # A macro runs at compile time and leaves only its output.
        edges[here] = sorted(one["pkg"] for one in normal if not is_macro(packages[one["pkg"]]))
        left += edges[here]
    return root, packages, edges


def is_macro(package):
    return any("proc-macro" in target["kind"] for target in package["targets"])


def licence(expression):
    return [{"expression": expression.replace("/", " OR ")}] if expression else []


def component(package):
    # Crates of ours have no registry; their place is the repository.
    return {
        "type": "application" if package["name"] == BINARY else "library",
        "bom-ref": f"{package['name']}@{package['version']}",
        "name": package["name"],
        "version": package["version"],
        "licenses": licence(package["license"]),
        "purl": f"pkg:cargo/{package['name']}@{package['version']}",
    }


def bundled(package):
    if package["name"] not in BUNDLED:
        sys.exit(f"sbom: {package['name']} links C code ({package['links']}); say in BUNDLED what it brings")
    folder = pathlib.Path(package["manifest_path"]).parent
    for name, licence_id, version in BUNDLED[package["name"]]:
        own = version(folder, package["version"]) if version else f"as in {package['name']} {package['version']}"
        one = {
            "type": "library",
            "bom-ref": f"{package['name']}@{package['version']}#{name}",
            "name": name,
            "version": own,
            "licenses": licence(licence_id),
            "properties": [
                {"name": "outbox-relay:language", "value": "C"},
                {"name": "outbox-relay:bundled-by", "value": f"{package['name']} {package['version']}"},
            ],
        }
        if version:
            one["purl"] = f"pkg:generic/{name.lower()}@{own}"
        yield one


def main():
    target = sys.argv[1] if len(sys.argv) > 1 else "x86_64-unknown-linux-gnu"
    root, packages, edges = linked(metadata(target))
    components, dependencies = [], []
    for identity in sorted(edges, key=lambda one: (packages[one]["name"], packages[one]["version"])):
        package = packages[identity]
        inside = list(bundled(package)) if package["links"] else []
        if identity != root:
            components.append(component(package))
        components += inside
        on = [component(packages[one])["bom-ref"] for one in edges[identity]] + [one["bom-ref"] for one in inside]
        dependencies.append({"ref": component(package)["bom-ref"], "dependsOn": sorted(on)})
    # Not bundled: it comes with the system or the image.
    openssl = {"type": "library", "bom-ref": "openssl", "name": "openssl", "scope": "required", "description": "linked dynamically"}
    components.append(openssl)
    content = json.dumps([components, dependencies], sort_keys=True).encode()
    made = {"component": component(packages[root]), "properties": [{"name": "outbox-relay:target", "value": target}]}
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        made["timestamp"] = datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc).isoformat()
    json.dump(
        {
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "serialNumber": f"urn:uuid:{uuid.UUID(bytes=hashlib.sha256(content).digest()[:16], version=4)}",
            "version": 1,
            "metadata": made,
            "components": components,
            "dependencies": dependencies,
        },
        sys.stdout,
        indent=2,
    )
    print()


if __name__ == "__main__":
    main()
