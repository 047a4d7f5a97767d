"""The command line: `wordcount [--top N] [FILE ...]`, standard input if there is no file."""

from __future__ import annotations

import argparse
import fileinput
from collections.abc import Sequence

from wordcount import __version__, count, top


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the most frequent words of the files."""
    parser = argparse.ArgumentParser(prog="wordcount", description="Print the most frequent words of a text.")
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--top", type=int, default=10, metavar="N")
    parser.add_argument("--version", action="version", version=f"wordcount {__version__}")
    given = parser.parse_args(arguments)
    with fileinput.input(given.files, encoding="utf-8") as lines:
        for word, number in top(count(lines), given.top):
            print(f"{word:20} {number:8}")


if __name__ == "__main__":
    main()
