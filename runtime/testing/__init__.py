"""What `callboard.testing` is made of: a runtime in virtual time. Importing this imports nothing else."""
