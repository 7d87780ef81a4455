"""Documents of data sets, judged by the tools of their standards, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

DOCUMENTS = {"frictionless": "datapackage.json", "mlcroissant": "croissant.json"}
"""Document of a data set by the library that validates it."""
_SCRIPTS = {
    "frictionless": """
import frictionless, sys
report = frictionless.validate("datapackage.json", **({"resource_name": sys.argv[1]} if sys.argv[1:] else {}))
print(report.flatten(["type", "note"]))
sys.exit(0 if report.valid else 1)
""",
    "mlcroissant": """
import mlcroissant, sys
data = mlcroissant.Dataset(jsonld="croissant.json")
issues = data.metadata.ctx.issues
print(issues.errors, issues.warnings, len(list(data.records(record_set="samples"))))
sys.exit(1 if issues.errors or issues.warnings else 0)
""",
}


def judged(library: str, place: Path, *resource: str) -> subprocess.CompletedProcess[str]:
    """Validate the document in a folder and the data, by frictionless of one resource alone if it is named."""
    pytest.importorskip(library)
    command = [sys.executable, "-W", "ignore", "-c", _SCRIPTS[library], *resource]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, check=False, env=os.environ)
