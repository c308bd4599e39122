"""The precision of matrix products is set for a block, and restored after it."""

import pytest
import torch

from aleator.foundation.precision import matmul_precision, without_autocast


@pytest.mark.parametrize("precision", ["high", "highest", None])
@pytest.mark.parametrize("before", ["high", "highest"])
def test_a_block_has_its_precision(precision, before, restored):
    torch.set_float32_matmul_precision(before)
    with matmul_precision(precision):
        assert torch.get_float32_matmul_precision() == (precision or before)
    assert torch.get_float32_matmul_precision() == before


def test_it_is_restored_after_an_error(restored):
    @matmul_precision("high")
    def fail():
        assert torch.get_float32_matmul_precision() == "high"
        raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("on", [True, False])
def test_autocast_is_left_inside_and_kept_outside(on):
    @without_autocast
    def product(text, a, b):
        return a @ b

    a = torch.randn(3, 3)
    with torch.autocast("cpu", torch.bfloat16, enabled=on):
        assert torch.equal(product("", a, a), a @ a) is not on
        assert product("", a, a).dtype == product(text="", b=a, a=a).dtype == torch.float32
        assert torch.is_autocast_enabled("cpu") is on


@pytest.fixture
def restored():
    yield
    torch.set_float32_matmul_precision("highest")
