"""Creates files for others to read, and opens them: never through a link, never over an existing file.

Rules:
- Below `root` a file is always a new one: an existing entry of its name is removed, not written to. So a link to
  another file, a second name of one, a pipe or a device loses its name here, and its target is not written.
- Below `root` no folder may be a link. The path is opened step by step, from one open folder to the next, so that no
  process can insert a link in between. `root` itself is its owner's responsibility. Files are read in the same way.
- Without a `root` the path is the caller's own choice, and an existing file is written, whatever it is. The same holds
  on systems without the needed calls (Windows).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

_STEPS = os.open in os.supports_dir_fd and os.mkdir in os.supports_dir_fd and os.unlink in os.supports_dir_fd
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def make_file(path: Path, root: Path | None = None, mode: int = 0o644) -> int:
    """Make an empty file and its folders. Returns its handle, open for reading and writing. Raises OSError."""
    if root is None or not _STEPS:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, _FLAGS | os.O_TRUNC, mode)
    root.mkdir(parents=True, exist_ok=True)
    *folders, name = path.relative_to(root).parts
    here = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for number, folder in enumerate(folders, 1):
            below = _enter(folder, here, root.joinpath(*folders[:number]))
            os.close(here)
            here = below
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=here)
        return os.open(name, _FLAGS | os.O_EXCL, mode, dir_fd=here)
    finally:
        os.close(here)


def open_file(path: Path, root: Path) -> int:
    """Open a plain file below `root` for reading. Returns its handle. Raises OSError, also for a link in the path."""
    if not _STEPS:
        return os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    *folders, name = path.relative_to(root).parts
    if ".." in folders:
        raise OSError(errno.ENOENT, "it leads out of its folder", str(path))
    here = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = below
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=here)
    finally:
        os.close(here)
    if not stat.S_ISREG(os.fstat(handle).st_mode):  # reading or opening something else may never end
        os.close(handle)
        raise OSError(errno.ENOENT, "it is no plain file", str(path))
    return handle


def _enter(folder: str, here: int, path: Path) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, dir_fd=here)
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR} and path.is_symlink():
            raise OSError(errno.ELOOP, "it is a link, and links are not followed", str(path)) from None
        raise
