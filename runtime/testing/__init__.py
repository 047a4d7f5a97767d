"""The implementation of `callboard.testing`: a runtime in virtual time. Importing this imports nothing else."""
