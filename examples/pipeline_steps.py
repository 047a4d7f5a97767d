"""The steps of `pipeline.yaml`: write readings, summarise each station's file, and report.

Plain functions, so they run in threads. The result of a step is journaled, and dependent steps can read it.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path
from random import Random
from typing import Any

from callboard import TaskContext
from callboard.errors import Permanent

HERE = Path(__file__).resolve().parent


def generate(task: TaskContext) -> int:
    """Write a year of readings for each station; the same readings in each run."""
    folder = HERE / task.args["into"]
    folder.mkdir(exist_ok=True)
    with (HERE / task.args["stations"]).open(newline="", encoding="utf-8") as source:
        stations = list(csv.DictReader(source))
    for number, station in enumerate(stations):
        random = Random(number)
        mean = float(station["mean_c"])
        with (folder / f"{station['station']}.csv").open("w", newline="", encoding="utf-8") as target:
            rows = csv.writer(target)
            rows.writerow(["name", "day", "celsius"])
            for day in range(1, task.args["days"] + 1):
                season = -10 * math.cos(2 * math.pi * day / 365)
                rows.writerow([station["name"], day, f"{mean + season + random.gauss(0, 3):.1f}"])
        task.heartbeat({"written": number + 1})
    return len(stations)


def summarise(task: TaskContext) -> dict[str, Any]:
    """Read one file of readings. A damaged file is not retried: it would still be damaged."""
    with (HERE / task.args["file"]).open(newline="", encoding="utf-8") as source:
        rows = list(csv.DictReader(source))
    try:
        readings = [float(row["celsius"]) for row in rows]
    except (KeyError, ValueError) as error:
        raise Permanent(f"{task.args['file']} is damaged: {error!r}") from error
    return {
        "name": rows[0]["name"],
        "days": len(readings),
        "mean": round(sum(readings) / len(readings), 2),
        "coldest": min(readings),
        "warmest": max(readings),
        "frost_days": sum(reading < 0 for reading in readings),
    }


def report(task: TaskContext) -> dict[str, Any]:
    """Write a table of all stations, the warmest first."""
    stations: list[dict[str, Any]] = sorted(task.results.values(), key=lambda station: -station["mean"])
    columns = ["name", "days", "mean", "coldest", "warmest", "frost_days"]
    rows = [columns, ["---"] * len(columns), *([str(station[name]) for name in columns] for station in stations)]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    (HERE / task.args["into"]).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {"stations": len(stations), "warmest": stations[0]["name"], "coldest": stations[-1]["name"]}


def report_is_whole(task: TaskContext) -> bool:
    """Whether the report has a row for each station: the acceptance test of `report`."""
    rows = (HERE / task.args["into"]).read_text(encoding="utf-8").splitlines()[2:]
    return len(rows) == len(task.results)
