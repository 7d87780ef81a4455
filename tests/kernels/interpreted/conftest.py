"""Tests of the Triton kernels by Triton's interpreter, on a CPU: TRITON_INTERPRET=1 is set before triton is imported.

`tests/kernels/test_imports.py` runs them in a process of their own; without the variable nothing here is collected.
"""

import os

if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["*"]
