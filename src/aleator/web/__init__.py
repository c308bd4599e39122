"""A collection in the browser: a JSON API over a `CredibleIndex`, and the page that uses it."""

from aleator.web.app import create_app
from aleator.web.limits import Limits

__all__ = ["Limits", "create_app"]
