"""Tools for tests of applications: a runtime in virtual time, scripts, faults, probes, replays.

Rules
-----
- The names are `__all__`, and a test pins them. For tests only: nothing in Callboard imports it.
- pytest finds the fixtures by itself (`callboard.runtime.testing.plugin`). They are optional.
"""

from .runtime.testing.asked import Asked
from .runtime.testing.errors import SimulationError
from .runtime.testing.handles import SimulatedBreaker, SimulatedJob, SimulatedTask, SimulatedWorker
from .runtime.testing.probes import Probe
from .runtime.testing.replay import Replay, check_replay
from .runtime.testing.scripts import Dies, Exits, Fails, Hangs, Succeeds
from .runtime.testing.simulation import Simulation
from .runtime.testing.trace import Trace
from .runtime.testing.virtual import VirtualRuntime

__all__ = [
    "Asked",
    "Dies",
    "Exits",
    "Fails",
    "Hangs",
    "Probe",
    "Replay",
    "SimulatedBreaker",
    "SimulatedJob",
    "SimulatedTask",
    "SimulatedWorker",
    "Simulation",
    "SimulationError",
    "Succeeds",
    "Trace",
    "VirtualRuntime",
    "check_replay",
]
