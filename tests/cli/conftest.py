"""Fixtures of other packages' tests that the tests of commands use, too."""

from tests.own_data.conftest import features, no_figures
from tests.retrieval.conftest import location, server_url, url

__all__ = ["features", "location", "no_figures", "server_url", "url"]
