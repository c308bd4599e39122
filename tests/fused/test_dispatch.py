"""The choice between fused and plain functions, and their names; this needs no GPU."""

import importlib

import pytest
import torch

from aleator.fused import functions, fused_kernels

# The plain module that each file of fused functions stands for.
REPLACES = {
    "angles": "special",
    "bessel": "special",
    "sampling": "posteriors",
    "series": "matching",
    "totals": "matching",
    "sampled_cosines": "losses",
    "softmax_share": "losses",
}


def test_a_tensor_on_the_cpu_takes_the_plain_functions():
    assert fused_kernels(torch.zeros(3)) is None


@pytest.mark.parametrize("name", [name for name in functions.__all__ if name.startswith("fused_")])
def test_a_fused_function_stands_beside_the_plain_one(name):
    """fused_x of fused/file.py replaces plain_x of package/file.py; torch may derive the plain backward by itself."""
    file = getattr(functions, name).__module__.rpartition(".")[2]
    plain = importlib.import_module(f"aleator.{REPLACES[file]}.{file}")
    assert hasattr(plain, name.removesuffix("_backward").replace("fused_", "plain_"))


def test_the_table_of_the_package_names_every_file():
    text = importlib.import_module("aleator.fused").__doc__
    for file, package in REPLACES.items():
        assert f"{package}/{file}.py" in text
