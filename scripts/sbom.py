#!/usr/bin/env python3
"""sbom.py PACKAGE VERSION [FEATURE...] - prints what a program is made of, as a CycloneDX document.

Reads what cargo says of the locked dependencies, and their checksums in Cargo.lock; asks no registry. Crates that only
tests need are not in it; those that only build the program are, with the scope "excluded".
"""

import datetime
import json
import os
import subprocess
import sys
import tomllib


def reached(nodes, root, kinds, leave=()):
    """Returns the ids that a package needs, by dependencies of these kinds, without what only those in `leave` need."""
    found, rest = set(), [root]
    while rest:
        node = rest.pop()
        if node in found or node in leave:
            continue
        found.add(node)
        for dep in nodes[node]["deps"]:
            if any(kind["kind"] in kinds for kind in dep["dep_kinds"]):
                rest.append(dep["pkg"])
    return found


def main():
    name, version, features = sys.argv[1], sys.argv[2], sys.argv[3:]
    command = ["cargo", "metadata", "--offline", "--locked", "--format-version", "1"]
    command += ["--filter-platform", "x86_64-unknown-linux-gnu"]
    for feature in features:
        command += ["--features", feature]
    metadata = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    with open("Cargo.lock", "rb") as lock:
        locked = tomllib.load(lock)["package"]
    checksums = {(package["name"], package["version"]): package.get("checksum") for package in locked}

    root = next(id for id in metadata["workspace_members"] if packages[id]["name"] == name)
    # A procedural macro runs while the program is built, and so does all that only macros need.
    macros = {id for id in packages if any("proc-macro" in target["kind"] for target in packages[id]["targets"])}
    linked = reached(nodes, root, {None}, macros)
    everything = reached(nodes, root, {None, "build"})

    def reference(id):
        return f"pkg:cargo/{packages[id]['name']}@{packages[id]['version']}"

    def component(id):
        package = packages[id]
        told = {
            "type": "library",
            "bom-ref": reference(id),
            "name": package["name"],
            "version": package["version"],
            "scope": "required" if id in linked else "excluded",
            "purl": reference(id),
        }
        checksum = checksums.get((package["name"], package["version"]))
        if checksum:
            told["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        if package.get("license"):
            # Some old crates write "MIT/Apache-2.0".
            told["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
        return told

    time = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "application",
                "bom-ref": reference(root),
                "name": name,
                "version": version,
                "licenses": [{"expression": packages[root]["license"]}],
            },
        },
        "components": sorted((component(id) for id in everything - {root}), key=lambda told: told["bom-ref"]),
        "dependencies": sorted(
            (
                {
                    "ref": reference(id),
                    "dependsOn": sorted({reference(dep["pkg"]) for dep in nodes[id]["deps"] if dep["pkg"] in everything}),
                }
                for id in everything
            ),
            key=lambda told: told["ref"],
        ),
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
