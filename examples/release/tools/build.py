"""Build: copy the package to `build/` with its version, and compile it as a check."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

VERSION = "1.0.0"
SOURCE, BUILD, DIST = Path("src"), Path("build"), Path("dist")

shutil.copytree(SOURCE, BUILD, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
DIST.mkdir(exist_ok=True)
root = BUILD / "wordcount" / "__init__.py"
root.write_text(root.read_text(encoding="utf-8").replace("0+unreleased", VERSION), encoding="utf-8")
sources = sorted(BUILD.rglob("*.py"))
for path in sources:
    compile(path.read_text(encoding="utf-8"), str(path), "exec")
print(f"built wordcount {VERSION} from {len(sources)} files with Python {sys.version.split()[0]}")
