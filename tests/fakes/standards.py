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
resource, rows = sys.argv[1:]
report = frictionless.validate("datapackage.json", resource_name=resource or None, limit_rows=int(rows) or None)
print(report.flatten(["type", "note"]))
sys.exit(0 if report.valid else 1)
""",
    "mlcroissant": """
import itertools, mlcroissant, sys
resource, rows = sys.argv[1:]
data = mlcroissant.Dataset(jsonld="croissant.json")
issues = data.metadata.ctx.issues
records = itertools.islice(data.records(record_set="samples"), int(rows) or None)
print(issues.errors, issues.warnings, sum(1 for _ in records))
sys.exit(1 if issues.errors or issues.warnings else 0)
""",
}


def judged(library: str, place: Path, resource: str = "", rows: int = 0) -> subprocess.CompletedProcess[str]:
    """Validate the document in a folder and the data.

    Args:
        resource: of frictionless, the one to read; all without a name.
        rows: how many to read of each; all with 0.
    """
    pytest.importorskip(library)
    command = [sys.executable, "-W", "ignore", "-c", _SCRIPTS[library], resource, str(rows)]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, check=False, env=os.environ)
