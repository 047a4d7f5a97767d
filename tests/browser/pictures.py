"""Makes the pictures of the board for the documents, from a run that is always the same.

    python -m tests.browser.pictures

It needs a Chromium and takes about half a minute. The pictures are lossy.
"""

from __future__ import annotations

import base64
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect

from .chromium import launched
from .theatre import PATIENCE, ROOT, Theatre
from .visitor import run_at, run_is, task, there

PICTURES = ROOT / "docs/pictures"
LARGEST = 100_000
"""The largest size of a picture, in bytes."""
WIDE = 1180
PHONE = {"width": 390, "height": 760}
SHARP = 1.5
"""Pixels of a picture for each pixel of the page."""
AS_WEBP = """async ([png, quality]) => {
    const image = await createImageBitmap(await (await fetch(`data:image/png;base64,${png}`)).blob());
    const canvas = Object.assign(document.createElement("canvas"), {width: image.width, height: image.height});
    canvas.getContext("2d").drawImage(image, 0, 0);
    return canvas.toDataURL("image/webp", quality).split(",")[1];
}"""


def sh(script: str) -> list[str]:
    """A shell command."""
    return ["sh", "-c", script]


def release(gate: object, ready: Path) -> list[dict[str, Any]]:
    """A release in progress: some tasks have ended, some run, some wait for people, time or a tool."""
    passing = [f"test_orders[{number}] passed" for number in range(1, 40)]
    testing = "\n".join(f"echo '{line}'" for line in passing)
    unit = f"echo 'collected 412 items'; sleep 1; test -e {ready} && exit 0; touch {ready}; echo 'no database'; exit 1"
    patient = {"max_attempts": 4, "base_delay": "20m", "max_delay": "1h"}
    return [
        {"name": "checkout", "command": sh("echo 'HEAD is now at 3f2a9c1'; sleep 0.4")},
        {"name": "build", "command": sh("echo 'compiling 214 files'; sleep 1.6"), "depends_on": ["checkout"]},
        {"name": "lint", "command": sh("sleep 0.6"), "depends_on": ["checkout"]},
        {"name": "manual", "command": sh("sleep 0.9"), "depends_on": ["checkout"], "optional": True},
        {"name": "unit-tests", "command": sh(unit), "depends_on": ["build"], "retry": {"base_delay": "1s"}},
        {
            "name": "integration-tests",
            "command": sh(f"echo 'starting 3 services'\n{testing}\nexec 3<>{gate}; read line <&3"),
            "depends_on": ["build"],
        },
        {
            "name": "licences",
            "command": sh("echo 'libfoo 2.1: GPL-3.0 is not on the list'; exit 3"),
            "depends_on": ["build"],
            "optional": True,
        },
        {"name": "scan", "command": sh("exit 1"), "depends_on": ["build"], "tool": "scanner", "retry": patient},
        {"name": "package", "command": ["true"], "depends_on": ["unit-tests", "lint"]},
        {
            "name": "publish",
            "command": ["true"],
            "depends_on": ["package"],
            "hold": {"people": 2, "expires": "48h", "clauses": [{"person": "ana"}]},
        },
        {"name": "canary", "command": ["true"], "depends_on": ["publish", "integration-tests", "scan"], "wait": "10m"},
        {"name": "deploy-eu", "command": ["true"], "depends_on": ["canary"]},
        {"name": "deploy-us", "command": ["true"], "depends_on": ["canary"]},
        {"name": "announce", "command": ["true"], "depends_on": ["deploy-eu", "deploy-us"], "optional": True},
        {"name": "clean-up", "command": ["true"], "after": ["deploy-eu", "deploy-us", "integration-tests"]},
    ]


def played(theatre: Theatre) -> str:
    """Submit the jobs for the pictures; returns the job that is shown."""
    chain = [{"name": name, "command": ["true"]} for name in ("extract", "clean", "load", "report")]
    for before, after in pairwise(chain):
        after["depends_on"] = [before["name"]]
    theatre.submit("nightly-import", chain, by="cron")
    theatre.submit("migrate-accounts", [chain[0], {"name": "migrate", "command": sh("exit 1")}], by="bo")
    theatre.submit("rotate-keys", [{"name": "rotate", "command": ["true"], "hold": {"people": 1}}], by="cron")
    return theatre.submit("release 2.4", release(theatre.gate(), theatre.folder / "database"), by="eve")


def take(browser: Browser, page: Page, name: str) -> None:
    """Write a picture of the page."""
    png = base64.b64encode(page.screenshot()).decode()
    blank = browser.new_page()
    for quality in (0.85, 0.7, 0.5):
        picture = base64.b64decode(blank.evaluate(AS_WEBP, [png, quality]))
        if len(picture) < LARGEST:
            break
    blank.close()
    (PICTURES / f"{name}.webp").write_bytes(picture)
    print(f"{name}: {len(picture):,} bytes")


def main() -> None:
    """Make all pictures."""
    PICTURES.mkdir(exist_ok=True)
    expect.set_options(timeout=PATIENCE * 1000)
    with tempfile.TemporaryDirectory() as folder, launched() as browser:
        theatre = Theatre(Path(folder), "--allow-commands")
        theatre.start()
        job = played(theatre)
        page = browser.new_page(device_scale_factor=SHARP, reduced_motion="reduce", color_scheme="light")
        page.goto(run_at(theatre.url, job, show="tasks"))
        run_is(page, "running")
        expect(page.get_by_role("list", name="What needs somebody")).to_contain_text("held: publish")
        theatre.post(f"/api/jobs/{job}/tasks/publish/approve", {"by": "ben", "reason": "tests are green"})
        shown = {
            "runs": (f"{theatre.url}/#/runs", 470),
            "graph": (run_at(theatre.url, job), 730),
            "timeline": (run_at(theatre.url, job, show="timeline"), 980),
            "task": (run_at(theatre.url, job, task="integration-tests"), 940),
            "approvals": (f"{theatre.url}/#/approvals", 525),
        }
        for name, (url, height) in shown.items():
            page.set_viewport_size({"width": WIDE, "height": height})
            page.goto(url)
            there(page)
            take(browser, page, name)
        phone = browser.new_page(viewport=PHONE, device_scale_factor=SHARP, is_mobile=True, reduced_motion="reduce")
        phone.goto(run_at(theatre.url, job, task="publish"))
        expect(task(phone, "publish")).to_contain_text("ben")
        take(browser, phone, "phone")
        theatre.stop()


if __name__ == "__main__":
    main()
