"""Run the Iceberg REST Compatibility Kit against this server: `make compatibility`.

Maven fetches the kit, its libraries and JUnit's console launcher (`rck.xml`). The server runs in this process over an
empty lakehouse in a temporary folder. Output of the launcher is written to `target/compatibility/report.txt`. The exit
code is 0 only if every test of the kit that applies has passed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from artifacts import TARGET, fetched

import trinitylake as tl
from trinitylake import rest

KIT = "org.apache.iceberg.rest.RESTCompatibilityKit"
SUITES = (f"{KIT}CatalogTests", f"{KIT}ViewCatalogTests")

#: Options of the kit for optional behaviour of a server.
CHOICES = {
    "rck.local": "false",
    "rck.requires-namespace-create": "true",  # a table needs an existing namespace
    "rck.supports-serverside-retry": "true",  # a commit that lost a race is rebased if its requirements still hold
    "rck.overrides-requested-location": "true",  # this run sets the option of the server for this
    "rck.supports-names-with-dot": "false",  # the lakehouse joins the parts of a namespace with dots
}

#: Tests that may fail, by the launcher's names, and the reasons. The run fails if one of them passes.
EXPECTED_FAILURES = {
    "testCompleteReplaceTransaction()": "its client itself moves the table out of the lakehouse and writes there",
    "testCompleteCreateOrReplaceTransactionReplace()": "the same",
    **{
        f"testRemoveUnused{what}(boolean):[{number}] {flag}": "engines may not delete files (gc.enabled)"
        for what in ("Schemas", "Spec")
        for number, flag in ((1, "true"), (2, "false"))
    },
    "testCatalogWithCustomMetricsReporter()": "it appends a file by a bare name, which no reader could find",
    "testLoadTableWithMissingMetadataFile(Path)": "what the client has is still right, so 304: no file is looked for",
}
_FAILURE = re.compile(r"^  JUnit Jupiter:RESTCompatibilityKit\w+:(.+)$", re.M)


def run(uri: str, root: str, arguments: Sequence[str]) -> str:
    """Run the kit. Returns the output of its launcher."""
    java = shutil.which("java")
    if java is None:
        raise SystemExit("the kit needs Java 17")
    jars = fetched("rck.xml")
    launcher = next(jar for jar in jars if jar.name.startswith("junit-platform-console-standalone"))
    # The kit creates a view in a temporary folder, which must be in the lakehouse.
    properties = {**CHOICES, "uri": uri, "warehouse": "@latest", "java.io.tmpdir": root}
    command = [java, *(f"-D{name}={value}" for name, value in properties.items()), "-jar", str(launcher), "execute"]
    command += ["--class-path", ":".join(str(jar) for jar in jars if jar != launcher)]
    command += ["--details=tree", "--disable-banner", "--disable-ansi-colors"]
    command += [option for suite in SUITES for option in ("--select-class", suite)]
    done = subprocess.run([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.stdout


def main(arguments: Sequence[str]) -> int:
    TARGET.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        lake = tl.create(f"{folder}/lake", durability="none")
        # The kit appends files that do not exist, `/path/to/data-a.parquet`: allowed as if that folder were a former
        # root.
        lake.maintenance.relocate(former="file:///path/")
        with rest.serve(lake, options=rest.ServerOptions(overrides_locations=True)) as url:
            text = run(url, f"{folder}/lake", arguments)
    (TARGET / "report.txt").write_text(text)
    print("\n".join(re.findall(r"^\[ +\d+ tests .*$", text, re.M)))
    failed = {name.strip() for name in _FAILURE.findall(text)}
    for name in sorted(failed & EXPECTED_FAILURES.keys()):
        print(f"does not apply: {name}: {EXPECTED_FAILURES[name]}")
    unexpected = sorted(failed ^ EXPECTED_FAILURES.keys())
    for name in unexpected:
        print(f"{'failed' if name in failed else 'passed, though it should not'}: {name}")
    succeeded = re.search(r"\[ +(\d+) tests successful", text)
    return int(bool(unexpected) or succeeded is None or int(succeeded[1]) < 100)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
