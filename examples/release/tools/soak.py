"""Soak test: count generated texts for some seconds, and compare with their known counts."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from random import Random

import wordcount

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=2.5)
seconds = parser.parse_args().seconds
random = Random(20)
letters = "abcdefghijklmnopqrstuvwxyzçï"
vocabulary = ["".join(random.choices(letters, k=length)) for length in range(1, 13)]
end, told, texts = time.monotonic() + seconds, 0.0, 0
while (now := time.monotonic()) < end:
    words = random.choices(vocabulary, k=2_000)
    lines = [" ".join(words[start : start + 20]) for start in range(0, len(words), 20)]
    if wordcount.count(lines) != Counter(words):
        raise SystemExit(f"text {texts} was counted wrongly")
    texts += 1
    if now - told > 0.5:
        told = now
        print(f"{texts} texts counted", flush=True)
print(f"{texts} texts of 2,000 words, all counted right")
