"""Random requests, made from the API's own description: no error of the server, and every answer as described."""

import contextlib
from collections import Counter

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.web.shapes import draw, png

CHECKS = [not_a_server_error, response_schema_conformance, content_type_conformance, status_code_conformance]
QUIET = settings(
    database=None, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), print_blob=False
)
IDS = st.sampled_from(["circle-0", '"square-1"', "../../etc/passwd", "%00", "0"])
GOOD = png(draw("circle", (52, 110, 160), 0.1))


def fuzz(app, requests: int) -> Counter:
    """About so many requests, alike for every route, half of them as described and half not; statuses, counted."""
    seen: Counter = Counter()
    operations = [found.ok() for found in schemathesis.openapi.from_asgi("/api/openapi.json", app).get_all_operations()]
    each = max(1, requests // (2 * len(operations)))

    for operation in operations:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

            @settings(QUIET, max_examples=each)
            @given(case=operation.as_strategy(generation_mode=mode), data=st.data())
            def ask(case, data):
                if case.query and "id" in case.query and data.draw(st.booleans()):
                    case.query["id"] = data.draw(IDS)
                response = case.call()
                seen[response.status_code] += 1
                case.validate_response(response, checks=CHECKS)

            with contextlib.suppress(Unsatisfiable):  # a route that takes nothing cannot be asked wrongly
                ask()
    return seen


def damaged(data: bytes):
    """Copies of a file with bytes changed, left out and put in."""
    change = st.tuples(st.integers(0, len(data) - 1), st.sampled_from(["set", "cut", "put"]), st.binary(max_size=9))

    def apply(changes):
        copy = bytearray(data)
        for place, kind, content in changes:
            copy[place : place + (0 if kind == "put" else max(1, len(content)))] = b"" if kind == "cut" else content
        return bytes(copy)

    return st.lists(change, min_size=1, max_size=4).map(apply)


def upload_damaged(client, examples: int) -> Counter:
    seen: Counter = Counter()

    @settings(QUIET, max_examples=examples)
    @given(damaged(GOOD))
    def upload(data):
        response = client.post("/api/query/image", content=data)
        seen[response.status_code] += 1
        assert response.status_code in (200, 413, 415, 422), response.text

    upload()
    return seen


def test_a_few_random_requests(app):
    seen = fuzz(app, 100)
    assert seen[200] > 10
    assert seen[422] > 10


def test_a_few_damaged_images(client):
    assert len(upload_damaged(client, 60)) > 1


@pytest.mark.slow
def test_ten_thousand_random_requests(app, text_client, feature_client):
    seen = sum((fuzz(one, 5_000) for one in (app, text_client.app, feature_client.app)), Counter())
    print(f"\n{sum(seen.values())} requests, by status: {dict(sorted(seen.items()))}")
    assert sum(seen.values()) >= 10_000


@pytest.mark.slow
def test_two_thousand_damaged_images(client):
    print(f"\n{upload_damaged(client, 2_000)}")
