"""A JSON API for a `CredibleIndex`, and the web page that uses it."""

from aleator.web.app import create_app
from aleator.web.connections import MOST_CONNECTIONS, PatientProtocol
from aleator.web.limits import Limits
from aleator.web.logs import LogFormat, set_up_logs
from aleator.web.metrics import Metrics
from aleator.web.stopping import run_server, terminated_like_interrupted
from aleator.web.workers import run_workers

__all__ = [
    "MOST_CONNECTIONS",
    "Limits",
    "LogFormat",
    "Metrics",
    "PatientProtocol",
    "create_app",
    "run_server",
    "run_workers",
    "set_up_logs",
    "terminated_like_interrupted",
]
