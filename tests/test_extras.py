"""The message when an extra is not installed, the old places of the modules of extras, and the version."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import callboard
from callboard.runtime import extras

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BLOCKED = """
import sys
sys.path.insert(0, {source!r})
for name in {blocked!r}:
    sys.modules[name] = None
try:
    import {door}
except ModuleNotFoundError as error:
    print(error.name, error, sep="\\n")
"""


def without(door: str, *blocked: str) -> list[str]:
    """The error of a module's import without some packages: the package's name, and the text."""
    code = BLOCKED.format(source=str(Path(callboard.__file__).parents[1]), door=door, blocked=blocked)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("door", "package", "words"),
    [
        ("client", "httpx", "callboard.client needs httpx, which is not installed: pip install 'callboard[client]'"),
        ("web", "litestar", "needs Litestar and uvicorn, which are not installed: pip install 'callboard[web]'"),
        ("otel", "opentelemetry", "needs OpenTelemetry, which is not installed: pip install 'callboard[otel]'"),
        ("agents", "pydantic_ai", "needs pydantic-ai, which is not installed: pip install 'callboard[pydantic-ai]'"),
        ("prometheus", "prometheus_client", "pip install 'callboard[prometheus]'"),
        ("runtime.otel", "opentelemetry", "callboard.otel needs OpenTelemetry"),
        ("runtime.prometheus", "prometheus_client", "callboard.prometheus needs prometheus-client"),
    ],
)
def test_an_import_without_its_extra_says_what_to_install(door: str, package: str, words: str) -> None:
    name, said = without(f"callboard.{door}", package)
    assert name.partition(".")[0] == package
    assert words in said


def test_another_module_that_is_missing_is_told_by_its_own_name() -> None:
    """An extra must not install packages that belong to no extra."""
    pytest.importorskip("httpx", reason="the extra `client` is not installed")
    name = "callboard.runtime.client.core"
    told, said = without("callboard.client", name)
    assert told == name
    assert "pip" not in said


def test_the_extras_are_those_of_the_project() -> None:
    known = PROJECT["optional-dependencies"]
    assert extras._PACKAGES.keys() == known.keys() - {"dev"}
    brought = {extra: " ".join(known[extra]).lower() for extra in extras._PACKAGES}
    for extra, packages in extras._PACKAGES.items():
        assert all(package.lower() in brought[extra] for package in packages.values()), extra


@pytest.mark.parametrize(("name", "package"), [("otel", "opentelemetry"), ("prometheus", "prometheus_client")])
def test_the_old_place_of_a_collector_warns_and_is_the_same(name: str, package: str) -> None:
    pytest.importorskip(package, reason=f"the extra `{name}` is not installed")
    sys.modules.pop(f"callboard.runtime.{name}", None)
    with pytest.warns(DeprecationWarning, match=rf"^callboard.runtime.{name} is callboard.{name} now"):
        old = import_module(f"callboard.runtime.{name}")
    now = import_module(f"callboard.{name}")
    assert {one: getattr(old, one) for one in old.__all__} == {one: getattr(now, one) for one in now.__all__}


def test_the_version_is_that_of_the_package() -> None:
    assert callboard.__version__ == version("callboard") == PROJECT["version"]
    assert "__version__" in dir(callboard)


def test_the_package_is_the_command_line_as_well() -> None:
    pytest.importorskip("typer", reason="the extra `cli` is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "callboard", "--version"], capture_output=True, text=True, check=True, cwd=ROOT / "src"
    )
    assert done.stdout == f"callboard {version('callboard')}\n"
