"""The tests of the project that is released. They run against what was built."""

from __future__ import annotations

import contextlib
import io
import tempfile
import unittest
from collections import Counter
from pathlib import Path

import wordcount
from wordcount.__main__ import main


class Counting(unittest.TestCase):
    def test_case_does_not_matter(self) -> None:
        self.assertEqual(wordcount.count(["To be", "or not to BE"]), Counter(to=2, be=2, **{"or": 1, "not": 1}))

    def test_apostrophes_and_hyphens_are_inside_words(self) -> None:
        self.assertEqual(wordcount.count(["don't well-known 'quoted' -"]), Counter(["don't", "well-known", "quoted"]))

    def test_digits_are_no_words(self) -> None:
        self.assertEqual(wordcount.count(["7 up, 3com x_y"]), Counter(["up", "com", "x", "y"]))

    def test_nothing_has_no_words(self) -> None:
        self.assertEqual(wordcount.count([]), Counter())

    def test_equal_counts_stand_by_alphabet(self) -> None:
        self.assertEqual(wordcount.top(Counter(b=1, a=1, c=2), 2), [("c", 2), ("a", 1)])


class CommandLine(unittest.TestCase):
    def test_it_reads_files(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            text = Path(folder, "text.txt")
            text.write_text("ein Wort, ein Satz\n", encoding="utf-8")
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                main([str(text), "--top", "1"])
        self.assertEqual(out.getvalue().split(), ["ein", "2"])

    def test_the_build_knows_its_version(self) -> None:
        self.assertNotIn("unreleased", wordcount.__version__)


if __name__ == "__main__":
    unittest.main()
