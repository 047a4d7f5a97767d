"""Sign the checksums with a key from the environment."""

from __future__ import annotations

import hmac
import os
from pathlib import Path

key = os.environ["WORDCOUNT_SIGNING_KEY"].encode()
sums = Path("dist/SHA256SUMS")
signature = hmac.new(key, sums.read_bytes(), "sha256").hexdigest()
sums.with_suffix(".sig").write_text(signature + "\n", encoding="utf-8")
print(f"signed: {signature[:16]}...")
