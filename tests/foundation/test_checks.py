"""Errors name the argument, its value, the problem and a way out; good values pass."""

import numpy as np
import pytest
import torch

from aleator.foundation.checks import (
    plain_number,
    reject,
    require,
    require_at_least,
    require_class_numbers,
    require_count,
    require_file,
    require_float,
    require_new_folder,
    require_one_of,
    require_probability,
    require_type,
)


def message(check, *arguments) -> str:
    with pytest.raises(ValueError) as error:
        check(*arguments)
    return str(error.value)


def test_the_form_of_an_error():
    assert message(reject, "p", 1.5, "too large", "pass 0.95") == "p = 1.5: too large; pass 0.95"
    assert message(require, False, "name", "x", "not known", "try y") == "name = 'x': not known; try y"
    require(True, "name", "x", "not known", "try y")


def test_a_large_tensor_is_shown_by_its_shape_and_a_number_by_its_value():
    assert "mu = tensor of shape (2, 3) and torch.float32: " in message(reject, "mu", torch.ones(2, 3), "bad", "change")
    assert message(reject, "kappa", torch.tensor(-1.0), "negative", "pass 0") == "kappa = -1.0: negative; pass 0"


def test_of_several_values_the_first_bad_one_is_shown():
    kappa = torch.tensor([[1.0, -2.0], [-3.0, 4.0]])
    assert message(require, kappa >= 0, "kappa", kappa, "negative", "pass 0") == "kappa = -2.0: negative; pass 0"
    require(kappa < 5, "kappa", kappa, "too large", "pass less")


CASES = [
    (require_one_of, ("by", "near", ("match", "nearest")), "by = 'near': not known; choose one of 'match', 'nearest'"),
    (require_type, ("x", 3, str, "pass text"), "x = 'int': not a str; pass text"),
    (require_type, ("x", None, (int, float), "pass 1"), "x = 'NoneType': not an int or float; pass 1"),
    (require_type, ("error", 3, OSError, "raise one"), "error = 'int': not an OSError; raise one"),
    (require_at_least, ("limit", 0, 1), "limit = 0: must be at least 1; pass 1 or more"),
    (require_at_least, ("limit", 0, 1, "leave it out"), "limit = 0: must be at least 1; leave it out"),
    (require_at_least, ("limit", float("nan"), 1), "limit = nan: must be at least 1; pass 1 or more"),
    (
        require_class_numbers,
        (np.array(["cat", "dog"]),),
        "labels = 'cat': a name, not a number; number the classes: numpy.unique(labels, return_inverse=True)[1]",
    ),
    (require_count, ("steps", 0, "try 9"), "steps = 0: not a positive whole number; try 9"),
    (require_count, ("steps", True, "try 9"), "steps = True: not a positive whole number; try 9"),
    (require_count, ("steps", 1.5, "try 9"), "steps = 1.5: not a positive whole number; try 9"),
    (require_probability, ("p", 1.0, "try 0.9"), "p = 1.0: not a probability inside (0, 1); try 0.9"),
    (
        require_probability,
        ("p", torch.tensor([0.5, 0.0]), "try 0.9"),
        "p = 0.0: not a probability inside (0, 1); try 0.9",
    ),
    (
        require_float,
        ("mu", torch.ones(2).half()),
        "mu = torch.float16: expected a float32 or float64 tensor; pass mu.float()",
    ),
    (require_float, ("mu", [1.0]), "mu = 'list': not a tensor; pass torch.as_tensor(mu)"),
    (require_float, ("mu", np.eye(2)), "mu = 'ndarray': a NumPy array, not a tensor; pass torch.as_tensor(mu)"),
    (
        require,
        (torch.empty(2, device="meta") > 0, "mu", torch.empty(2, device="meta"), "not positive", "pass 1"),
        "mu = device(type='meta'): a tensor there has no numbers; move it to a CPU or GPU, and fill it",
    ),
]


@pytest.mark.parametrize(("check", "arguments", "expected"), CASES)
def test_bad_values(check, arguments, expected):
    assert message(check, *arguments) == expected


def test_good_values_pass():
    require_one_of("by", "match", iter(["match", "nearest"]))
    require_type("x", True, (int, str), "pass 1")
    require_at_least("limit", 1, 1)
    for labels in (torch.arange(3), torch.tensor(0), [1, 2], np.arange(3), [], None):
        require_class_numbers(labels)
    require_count("steps", 1, "try 9")
    require_count("steps", np.int64(1), "try 9")
    require_probability("p", 0.5, "try 0.9")
    require_probability("p", torch.tensor([0.1, 0.9]), "try 0.9")
    require_float("mu", torch.ones(2).double())


def test_new_folders(tmp_path):
    require_new_folder("output", tmp_path)
    require_new_folder("output", tmp_path / "missing")
    (tmp_path / "thesis.txt").write_text("years of work")
    assert message(require_new_folder, "output", tmp_path) == f"output = '{tmp_path}': is not empty; name a new folder"
    assert "is a file; try again" in message(require_new_folder, "output", tmp_path / "thesis.txt", "try again")


def test_files(tmp_path):
    (tmp_path / "a.npz").touch()
    require_file("posteriors", tmp_path / "a.npz")
    assert message(require_file, "posteriors", tmp_path) == f"posteriors = '{tmp_path}': is a folder; name a file"
    assert "there is no such file; check it" in message(require_file, "posteriors", tmp_path / "b.npz", "check it")


def test_errors_carry_their_parts_and_can_be_pickled():
    import pickle

    with pytest.raises(ValueError) as caught:
        require(False, "dim", 1, "too small", "pass 2 or more")
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.argument, error.value, error.problem, error.way_out) == ("dim", "1", "too small", "pass 2 or more")
    assert str(error) == str(caught.value) == "dim = 1: too small; pass 2 or more"


@pytest.mark.parametrize("value", [np.int64(3), np.float32(0.5), np.bool_(True), torch.tensor(3), np.array(0.5)])
def test_numbers_of_numpy_and_torch_become_plain(value):
    assert type(plain_number(value)) in (int, float, bool)
    assert plain_number(value) == value


@pytest.mark.parametrize("value", [None, "x", 3, (1, 2), np.ones(1)])
def test_other_values_stay(value):
    assert plain_number(value) is value
