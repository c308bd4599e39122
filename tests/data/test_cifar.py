"""The readers of CIFAR-10 and its people's labels: every form gives the same arrays, and bad files are named."""

import io
import os
import pickle
import zipfile

import numpy as np
import pytest
import torch

from aleator.data import cifar

PARTS = {"test": "test_batch"} | {f"train_{i}": f"data_batch_{i}" for i in range(1, 6)}


def arrays(part: str, n: int = 6) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(sorted(PARTS).index(part))
    return rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8), rng.integers(0, 10, n).astype(np.uint8)


def as_npz(folder):
    (folder / "cifar10").mkdir()
    for part in PARTS:
        images, labels = arrays(part)
        np.savez(folder / "cifar10" / f"{part}.npz", images=images, labels=labels)


def as_binary(folder):
    (folder / "cifar-10-batches-bin").mkdir()
    for part, name in PARTS.items():
        images, labels = arrays(part)
        records = np.concatenate([labels[:, None], images.transpose(0, 3, 1, 2).reshape(len(labels), -1)], 1)
        (folder / "cifar-10-batches-bin" / f"{name}.bin").write_bytes(records.tobytes())


def as_pickles(folder):
    (folder / "cifar-10-batches-py").mkdir()
    for part, name in PARTS.items():
        images, labels = arrays(part)
        content = {"data": images.transpose(0, 3, 1, 2).reshape(len(labels), -1), "labels": labels.tolist()}
        (folder / "cifar-10-batches-py" / name).write_bytes(pickle.dumps(content, protocol=2))


@pytest.mark.parametrize("write", [as_npz, as_binary, as_pickles])
def test_every_form_gives_the_same_images(tmp_path, write):
    write(tmp_path)
    test, train = (cifar.load_cifar10(split, tmp_path, verify=False) for split in ("test", "train"))
    images, labels = arrays("test")
    assert test.images.shape == (6, 3, 32, 32)
    assert torch.equal(test.images, torch.from_numpy(images).permute(0, 3, 1, 2))
    assert torch.equal(test.labels, torch.from_numpy(labels).long())
    assert len(train) == 30
    assert torch.equal(train.labels[24:], torch.from_numpy(arrays("train_5")[1]).long())


def test_other_images_are_not_taken_for_cifar(tmp_path):
    as_npz(tmp_path)
    with pytest.raises(ValueError, match=r"test\.npz does not hold CIFAR-10's images"):
        cifar.load_cifar10("test", tmp_path)


def test_a_pickle_that_asks_for_more_than_arrays_is_refused(tmp_path):
    """The classic attack: the file would run a command when unpickled."""

    class Attack:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'owned'}",)

    (tmp_path / "test_batch").write_bytes(pickle.dumps(Attack()))
    with pytest.raises(ValueError, match=r"test_batch is damaged.*system, which is not an array"):
        cifar.load_cifar10("test", tmp_path, verify=False)
    with zipfile.ZipFile(tmp_path / "CIFAR-10_human.pt", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"random_label1": Attack()}))
    with pytest.raises(ValueError, match="which is not an array"):
        cifar.load_cifar10n(tmp_path)
    assert not (tmp_path / "owned").exists()


def test_votes_of_cifar10n_from_both_forms(tmp_path):
    voters = {f"random_label{i}": np.array([1, 2, i]) for i in (1, 2, 3)}
    torch.save(voters | {"clean_label": np.array([1, 2, 3])}, tmp_path / "CIFAR-10_human.pt")
    official = cifar.load_cifar10n(tmp_path)
    np.savez(tmp_path / "labels.npz", **voters)
    assert torch.equal(cifar.load_cifar10n(tmp_path), official)
    assert official.tolist()[0][:4] == [0, 3, 0, 0]
    assert official.tolist()[2][:5] == [0, 1, 1, 1, 0]
    torch.testing.assert_close(cifar.soft_labels(official).sum(1), torch.ones(3, dtype=torch.float64))


def test_folds_and_crops_from_both_forms(tmp_path):
    order = np.random.default_rng(0).permutation(20).reshape(5, 4)
    for i, row in enumerate(order):
        np.savetxt(tmp_path / f"idx_set_{i}.csv", row, delimiter=",")
    np.savetxt(tmp_path / "randomcrops_2000_0.25_1.0.csv", [0.25, 0.5, 1.0], delimiter=",")
    from_csv = cifar.load_folds(tmp_path), cifar.load_crop_sizes(tmp_path)
    np.savez(tmp_path / "folds.npz", **{f"fold_{i}": row.astype(np.int16) for i, row in enumerate(order)})
    np.save(tmp_path / "crop_sizes.npy", np.array([0.25, 0.5, 1.0], np.float32))
    for a, b in zip(from_csv, (cifar.load_folds(tmp_path), cifar.load_crop_sizes(tmp_path)), strict=True):
        assert torch.equal(a, b)
    assert from_csv[0].dtype == torch.int64


# Bad files


def broken_files(folder):
    """name of the file -> (its bytes, the reader that meets it, what is said)."""
    images, labels = arrays("test")

    def npz(**content):
        out = io.BytesIO()
        np.savez(out, **content)
        return out.getvalue()

    def npy(array):
        out = io.BytesIO()
        np.save(out, array)
        return out.getvalue()

    votes = np.full((4, 10), 5)
    negative, empty = votes.copy(), votes.copy()
    negative[2, 3], empty[1] = -1, 0
    test = lambda: cifar.load_cifar10("test", folder, verify=False)  # noqa: E731
    whole = npz(images=images, labels=labels)
    return [
        ("test.npz", whole[: len(whole) // 2], test, "damaged"),
        ("test.npz", npz(images=images, labels=labels[:-1]), test, "6 images and 5 labels"),
        ("test.npz", npz(images=images[:, :16], labels=labels), test, r"shape \(6, 16, 32, 3\)"),
        ("test.npz", npz(images=images / 255, labels=labels), test, "float64, not uint8"),
        ("test.npz", npz(images=images), test, "holds no labels"),
        ("test.npz", npz(images=images, labels=np.array([0, 1, 2, 11, 3, 4])), test, "row 3: 11 is not a class"),
        ("test_batch.bin", bytes(3073 * 2 - 1), test, "damaged"),
        ("counts.npy", npy(votes[:, :9]), lambda: cifar.load_cifar10h(folder), r"shape \(4, 9\), not N x 10"),
        ("counts.npy", npy(negative), lambda: cifar.load_cifar10h(folder), "row 2: .*not a count"),
        ("counts.npy", npy(empty), lambda: cifar.load_cifar10h(folder), "row 1"),
        ("crop_sizes.npy", npy(np.array([0.5, 1.5])), lambda: cifar.load_crop_sizes(folder), r"row 1: 1\.5"),
        ("labels.npz", npz(random_label1=labels), lambda: cifar.load_cifar10n(folder), "no random_label2, random_lab"),
        (
            "folds.npz",
            npz(**{f"fold_{i}": np.array([i, 1]) for i in range(5)}),
            lambda: cifar.load_folds(folder),
            "an image lies in two folds",
        ),
    ]


@pytest.mark.parametrize("case", range(13))
def test_bad_files_are_named(tmp_path, case):
    name, content, read, message = broken_files(tmp_path)[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name}.*{message}"):
        read()


def test_missing_folders_and_files_are_named(tmp_path, monkeypatch):
    monkeypatch.delenv("ALEATOR_DATA", raising=False)
    with pytest.raises(ValueError, match="ALEATOR_DATA"):
        cifar.load_cifar10("test")
    with pytest.raises(ValueError, match=r"nowhere.*is not a folder"):
        cifar.load_cifar10("test", tmp_path / "nowhere")
    monkeypatch.setenv("ALEATOR_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=r"CIFAR-10H is not there; put one of cifar10h/counts\.npy"):
        cifar.load_cifar10h()
    with pytest.raises(ValueError, match="split = 'validation'"):
        cifar.load_cifar10("validation")
    with pytest.raises(ValueError, match="CIFAR-10H = '3 rows': do not fit 4 images"):
        cifar.require_fit(torch.zeros(4), torch.zeros(3), "CIFAR-10H")


# The real thing


@pytest.mark.data
def test_real_cifar(data_folder):
    test, votes = cifar.load_cifar10("test", data_folder), cifar.load_cifar10h(data_folder)
    cifar.require_fit(test.images, votes, "CIFAR-10H")
    assert test.images.shape == (10000, 3, 32, 32)
    assert torch.bincount(test.labels).tolist() == [1000] * 10
    assert (votes.argmax(1) == test.labels).double().mean() > 0.99  # people agree with the labels
    folds = cifar.load_folds(data_folder)
    assert folds.shape == (5, 2000)
    assert sorted(folds.flatten().tolist()) == list(range(10000))
    assert cifar.load_crop_sizes(data_folder).shape == (2000,)
    assert cifar.load_cifar10n(data_folder).sum(1).eq(3).all()
