"""The files of the page: their size, the rules of its policy, and the vendored files."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

from callboard.runtime.web.http.assets import PAGE

_OWN = {".js", ".html", ".css"}
OURS = sorted(path for path in PAGE.rglob("*") if path.suffix in _OWN and "vendor" not in path.parts)
LOADED = [*OURS, *(PAGE / "vendor").glob("*.js"), PAGE / "icon.svg"]
NODE = shutil.which("node")
SCRIPTS = Path(__file__).parent / "page"


def test_the_whole_page_weighs_less_than_300_kb_compressed() -> None:
    assert sum(len(gzip.compress(path.read_bytes(), 9)) for path in LOADED) < 300_000


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.relative_to(PAGE).as_posix())
def test_nothing_from_elsewhere_is_ever_read_as_markup_or_as_a_script(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
    assert "\u202e" not in text


def test_the_document_has_no_script_or_style_of_its_own_and_loads_nothing_from_elsewhere() -> None:
    text = (PAGE / "index.html").read_text()
    assert not re.search(r"<style|style=|\son\w+=|<script(?![^>]*\ssrc=)", text)
    assert re.findall(r'(?:src|href)="(?!\./)', text) == []


def test_every_import_is_relative_and_there() -> None:
    for path in OURS:
        for target in re.findall(r'(?:\bfrom|\bimport)\s*\(?\s*"([^"]+)"', path.read_text()):
            assert target.startswith("."), f"{path.name} imports {target}"
            assert (path.parent / target).is_file(), f"{path.name} imports {target}"


def test_what_a_module_imports_of_another_is_exported_there() -> None:
    """A browser finds out when the view is opened: it stays empty then."""
    for path in OURS:
        for names, target in re.findall(r'\bimport\s*\{([^}]*)\}\s*from\s*"([^"]+)"', path.read_text()):
            if "vendor" not in target:
                there = (path.parent / target).read_text()
                exported = set(re.findall(r"\bexport\s+(?:async\s+)?(?:const|let|class|function\*?)\s+(\w+)", there))
                exported |= {name.split()[-1] for group in re.findall(r"\bexport\s*\{([^}]*)\}", there) for name in
                             group.split(",") if name.strip()}  # fmt: skip
                wanted = {name.split()[0] for name in names.split(",") if name.strip()}
                assert wanted <= exported, f"{path.name} wants {wanted - exported} of {target}"


def test_the_vendored_files_are_those_of_their_table_and_come_with_their_licences() -> None:
    table = (PAGE / "vendor/README.md").read_text()
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \| `([0-9a-f]{64})` \|$", table, re.MULTILINE)
    assert {name for name, _, _ in rows} == {path.name for path in (PAGE / "vendor").glob("*.js")}
    licences = (PAGE / "vendor/LICENCES.txt").read_text()
    for name, made_of, digest in rows:
        assert sha256((PAGE / "vendor" / name).read_bytes()).hexdigest() == digest
        for package in made_of.split(", "):
            assert f"{package}\n" in licences


@pytest.mark.board
@pytest.mark.skipif(NODE is None, reason="node is not there")
def test_what_is_pure_in_the_page_holds_its_own_tests(tmp_path: Path) -> None:
    shutil.copytree(PAGE, tmp_path, dirs_exist_ok=True)
    (tmp_path / "package.json").write_text('{"type": "module"}')  # older ones take a .js for something else without it
    for path in SCRIPTS.glob("*.test.mjs"):
        shutil.copy(path, tmp_path)
    files = sorted(path.name for path in tmp_path.glob("*.test.mjs"))
    ended = subprocess.run(
        [NODE or "node", "--test", *files], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
