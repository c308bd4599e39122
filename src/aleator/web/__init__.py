"""A JSON API for a `CredibleIndex`, and the web page that uses it."""

from aleator.web.app import create_app
from aleator.web.limits import Limits

__all__ = ["Limits", "create_app"]
