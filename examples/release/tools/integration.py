"""Integration test against a service that comes up late: the first try fails, the next ones pass.

Callboard tells a command the number of its attempt. A real flaky test fails for reasons of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys

attempt = int(os.environ.get("CALLBOARD_ATTEMPT", "1"))
if attempt == 1:
    raise SystemExit("connection refused: the word service is not up yet")
done = subprocess.run(
    [sys.executable, "-m", "wordcount", "--top", "1"],
    input="row row row your boat\n", capture_output=True, text=True, check=True,
)  # fmt: skip
if done.stdout.split() != ["row", "3"]:
    raise SystemExit(f"unexpected answer: {done.stdout!r}")
print(f"the service answered at attempt {attempt}")
