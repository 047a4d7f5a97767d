"""Announce the release. The address is missing, so this fails; the task is optional."""

import os

if "WORDCOUNT_MAILING_LIST" not in os.environ:
    raise SystemExit("no mailing list: set WORDCOUNT_MAILING_LIST to announce the release")
print("announced")
