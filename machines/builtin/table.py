"""The runtime's own machines, by the kind of entity that runs by them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..machine import Machine
from .approval import APPROVAL
from .breaker import BREAKER
from .job import JOB
from .task import TASK
from .worker import WORKER
from .workstream import WORKSTREAM

MACHINES: Final[Mapping[str, Machine]] = {
    machine.name: machine for machine in (JOB, WORKSTREAM, TASK, APPROVAL, WORKER, BREAKER)
}
