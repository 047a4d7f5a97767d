"""For tests of what is built on Callboard: a runtime in virtual time, scripted bodies and workers, faults, probes.

Rules
-----
- The names are `__all__`, and a test pins them. No program needs any of this: nothing in Callboard imports it.
- pytest finds its fixtures by itself (`callboard.runtime.testing.plugin`); it is not needed otherwise.
"""

from .runtime.testing.asked import Asked
from .runtime.testing.errors import SimulationError
from .runtime.testing.handles import SimulatedBreaker, SimulatedJob, SimulatedTask, SimulatedWorker
from .runtime.testing.probes import Probe
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
    "SimulatedBreaker",
    "SimulatedJob",
    "SimulatedTask",
    "SimulatedWorker",
    "Simulation",
    "SimulationError",
    "Succeeds",
    "Trace",
    "VirtualRuntime",
]
