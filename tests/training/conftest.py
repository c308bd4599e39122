"""One thread for all tests of training: results are compared bit for bit, so sums must be taken in one order."""

import pytest
import torch

from tests.training.training_cases import build_sampling, run


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory):
    torch.set_num_threads(1)
    return run(tmp_path_factory.mktemp("run") / "whole")


@pytest.fixture(scope="session")
def uninterrupted_sampling(tmp_path_factory):
    torch.set_num_threads(1)
    return run(tmp_path_factory.mktemp("run") / "sampling", build=build_sampling)
