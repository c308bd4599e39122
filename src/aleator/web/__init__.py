"""A JSON API for a `CredibleIndex`, and the web page that uses it."""

from aleator.web.app import create_app
from aleator.web.connections import MOST_CONNECTIONS, PatientProtocol
from aleator.web.limits import Limits

__all__ = ["MOST_CONNECTIONS", "Limits", "PatientProtocol", "create_app"]
