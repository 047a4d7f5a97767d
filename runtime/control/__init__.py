"""Control from outside: commands of other processes to a runtime, by an inbox in its journal's file."""
