"""The command line, where the script `callboard` is not on the path: `python -m callboard run FILE`."""

from .runtime.cli import main

if __name__ == "__main__":  # a worker process imports its program's module under another name
    main()
