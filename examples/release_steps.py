"""The steps of `release.toml` that are Python functions. They run in threads of the program that runs the release."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from callboard import TaskContext

HERE = Path(__file__).resolve().parent
SUMS = "SHA256SUMS"


def checksums(task: TaskContext) -> dict[str, str]:
    """Write the digests of all products, and return them to the dependent tasks."""
    folder = HERE / task.args["folder"]
    digests = {path.name: _digest(path) for path in _products(folder)}
    (folder / SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in digests.items()), encoding="utf-8")
    task.log.info("checksums_written", files=len(digests))
    return digests


def checksums_hold(task: TaskContext) -> bool:
    """Whether the written digests match the files: the acceptance test of `checksums`."""
    folder = HERE / task.args["folder"]
    lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    told = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    return told == {path.name: _digest(path) for path in _products(folder)} and len(told) == 2


def _products(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name != SUMS)


def _digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()
