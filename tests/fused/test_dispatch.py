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
    "sampled_cosines": "losses",
    "softmax_share": "losses",
    "network_posteriors": "data",
    "leaky_layers": "encoders",
    "outputs": "encoders",
    "mean_share": "losses",
    "mean_sigmoid": "losses",
}


def test_a_tensor_on_the_cpu_takes_the_plain_functions():
    assert fused_kernels(torch.zeros(3)) is None


# Parts of other fused functions have no plain twin of their own.
PARTS = {
    "interpolant": "matching/interpolant",
    "pairs": "matching/on_gpu",
    "totals": "matching/tiled_sum",
}
TWINS = [
    name
    for name in functions.__all__
    if name.startswith("fused_") and getattr(functions, name).__module__.rpartition(".")[2] not in PARTS
]


@pytest.mark.parametrize("name", TWINS)
def test_a_fused_function_stands_beside_the_plain_one(name):
    """fused_x of fused/file.py replaces plain_x of package/file.py; torch may derive the plain backward by itself."""
    file = getattr(functions, name).__module__.rpartition(".")[2]
    plain = importlib.import_module(f"aleator.{REPLACES[file]}.{file}".replace("/", "."))
    assert hasattr(plain, name.removesuffix("_backward").replace("fused_", "plain_"))


def test_the_table_of_the_package_names_every_file():
    text = importlib.import_module("aleator.fused").__doc__
    places = {file: f"{package}/{file}" for file, package in REPLACES.items()} | PARTS
    for file, place in places.items():
        assert f"{file}.py" in text
        assert f"{place}.py" in text
