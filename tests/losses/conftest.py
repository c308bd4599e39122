"""The fixture `case`: each loss of the table with its literal twin."""

import pytest

from tests.losses.cases import CASES


@pytest.fixture(params=CASES, ids=lambda name: name.replace(" ", ""))
def case(request):
    make, twin = CASES[request.param]
    return make(), twin
