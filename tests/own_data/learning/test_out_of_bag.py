"""Networks that leave out items of their own: bags, batches, answers out of bag, and training on everything."""

import numpy as np
import pytest
import torch

import aleator as al
from aleator.encoders import MLP, Chain, Encoder, Ensemble, Standardise
from aleator.own_data import Settings, read_collection, train
from aleator.own_data.learning.out_of_bag import PARTS, BagBatches, deal_bags, out_of_bag_posteriors


@pytest.mark.parametrize("members", [3, 4, 6, 8])
def test_every_item_is_left_out_by_about_a_third_of_the_networks(members):
    classes = np.repeat([0, 1, 2], [40, 25, 4])
    in_bag = deal_bags(classes, np.arange(69), members, seed=3)
    assert in_bag.shape == (members, 69)
    left_out = (~in_bag).sum(0)
    assert left_out.min() >= members // PARTS
    assert left_out.max() <= -(-members // PARTS)
    of_class = torch.stack([(~in_bag[:, torch.as_tensor(classes == c)]).sum(1) for c in range(3)])
    sizes = torch.tensor([[40], [25], [4]]) / PARTS
    assert (of_class - sizes).abs().max() < 1  # each network leaves out a third of each class
    assert not torch.equal(in_bag, deal_bags(classes, np.arange(69), members, seed=4))


def test_copies_of_an_item_are_in_the_same_bags():
    kinds = np.arange(60) // 2
    in_bag = deal_bags(np.zeros(60, np.int64), kinds, 6, seed=0)
    assert torch.equal(in_bag[:, ::2], in_bag[:, 1::2])


def test_fewer_networks_than_parts_are_refused():
    with pytest.raises(ValueError, match="members = 2"):
        deal_bags(np.arange(30) % 3, np.arange(30), 2, seed=0)


def test_a_batch_gives_each_network_items_of_its_bag_once():
    classes = np.arange(40) % 4
    in_bag = deal_bags(classes, np.arange(40), 5, seed=0)
    numbers = torch.arange(40.0)[:, None]  # an item is its number
    batches = BagBatches(numbers, torch.as_tensor(classes), 100, in_bag)
    drawn = torch.zeros(5, 40)
    for step in range(30):
        batch = batches(step, torch.Generator().manual_seed(step))
        assert batch.targets.argmax(1).tolist() == (batch.items[:, 0] % 4).tolist()
        for member, part in enumerate(batch.items[:, 0].long().tensor_split(5)):
            assert len(part.unique()) == len(part) == 20
            assert in_bag[member, part].all()
            drawn[member, part] += 1
    assert (drawn[in_bag] > 0).all()  # and all of them in the long run
    # 30 draws of 20 from about 27: binomial, within five deviations
    assert (drawn[in_bag] - 30 * 20 / 27).abs().max() < 5 * (30 * 0.74 * 0.26) ** 0.5


def test_a_part_is_no_larger_than_the_smallest_bag():
    in_bag = deal_bags(np.arange(12) % 2, np.arange(12), 3, seed=0)
    batch = BagBatches(torch.randn(12, 2), torch.arange(12) % 2, 300, in_bag)(0, torch.Generator())
    assert len(batch.items) == 3 * 8


def ensemble(members=4, width=5, features=3):
    torch.manual_seed(0)
    parts = [MLP(features, (width,)) for _ in range(members)]
    return Encoder(Chain([Standardise(features), Ensemble(parts)]), dim=4)


def test_an_answer_out_of_bag_is_the_mean_of_the_networks_that_left_the_item_out():
    encoder, items = ensemble(), torch.randn(10, 3)
    in_bag = deal_bags(np.arange(10) % 2, np.arange(10), 4, seed=1)
    q = out_of_bag_posteriors(encoder, items, in_bag)
    parts = encoder.backbone.parts[-1].parts
    for i in range(10):
        alone = [m for m in range(4) if not in_bag[m, i]]
        embeddings = []
        for m in alone:
            features = torch.zeros(4, 5)
            features[m] = 4 * parts[m].eval()(items[i : i + 1])
            embeddings.append(encoder.mu_head(features.flatten()))
        mean = torch.stack(embeddings).mean(0)
        torch.testing.assert_close(q.mu[i], torch.nn.functional.normalize(mean, dim=0))
    nobody = out_of_bag_posteriors(encoder, items, torch.zeros(4, 10, dtype=torch.bool))
    torch.testing.assert_close(nobody.kappa, encoder.eval()(items).kappa)  # all count: the usual answer


def test_a_network_learns_nothing_from_what_it_left_out():
    """The gradient of an answer out of bag is zero in the networks that had the item in their bag, and only there."""
    encoder, items = ensemble(), torch.randn(6, 3)
    in_bag = deal_bags(np.arange(6) % 2, np.arange(6), 4, seed=1)
    loss = al.PrototypeLoss(4, [3, 3])
    batches = BagBatches(items, torch.arange(6) % 2, 24, in_bag)
    batch = batches(0, torch.Generator().manual_seed(0))
    loss.soft(encoder.train()(batch.items), batch.targets).backward()
    changed = items.clone()
    for member in range(4):
        part = batch.items.tensor_split(4)[member]
        left_out = changed[~in_bag[member]]
        assert not (part[:, None] == left_out[None]).all(-1).any()
        assert encoder.backbone.parts[-1].parts[member].layers[0].weight.grad.abs().sum() > 0


def small_data(folder, count=90, seed=0, random_labels=False):
    rng = np.random.default_rng(seed)
    classes = np.arange(count) % 3
    rows = rng.standard_normal((count, 4)) + (0 if random_labels else 4 * np.eye(3, 4)[classes])
    np.save(folder / "x.npy", rows.astype(np.float32))
    np.save(folder / "y.npy", classes)
    return read_collection(folder / "x.npy", folder / "y.npy")


QUICK = {"steps": 60, "width": 16, "members": 3, "batch_size": 96, "holdout": 0.0}


def test_nothing_is_held_out_and_the_figures_are_of_all_items(tmp_path):
    collection, lines = small_data(tmp_path), []
    folder, settings = tmp_path / "run", Settings(**QUICK)
    run = train(collection, folder, settings, device="cpu", progress=False, log=lines.append)
    assert lines[0].endswith("0 are held out")
    assert any("holdout = 0" in line and "no rivals" in line for line in lines)
    with np.load(tmp_path / "run" / "items.npz") as used:
        assert len(used["training"]) == 90
        assert len(used["calibration"]) + len(used["test"]) == 90
    assert run.metrics["items"] == 45
    assert "rivals" not in run.metrics
    assert run.metrics["label_accuracy"] > 0.85
    assert train(collection, folder, settings, device="cpu", progress=False).fingerprint == run.fingerprint
    assert train(collection, tmp_path / "again", settings, device="cpu", progress=False).fingerprint == run.fingerprint


def test_labels_that_say_nothing_are_not_praised(tmp_path):
    """The networks know random labels by heart. Answers out of bag must not: chance is a third."""
    settings = Settings(**QUICK | {"steps": 200, "weight_decay": 0.0, "dropout": 0.0, "learning_rate": 0.02})
    collection = small_data(tmp_path, count=120, random_labels=True)
    run = train(collection, tmp_path / "run", settings, device="cpu", progress=False)
    assert run.metrics["label_accuracy"] < 1 / 3 + 4 * (2 / 9 / 60) ** 0.5
    assert run.metrics["label_log_likelihood"] > 1.3 * np.log(1 / 3)  # and they do not claim to know much


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"modes": "auto"}, "a trial of modes"),
        ({"backbone": "small-resnet"}, "from scratch"),
        ({"tune": "all"}, "tuned"),
        ({"tune": "lora"}, "tuned"),
    ],
)
def test_what_needs_held_out_items_is_refused(tmp_path, change, reason):
    with pytest.raises(ValueError, match=reason):
        train(small_data(tmp_path), tmp_path / "run", Settings(**QUICK | change), device="cpu", progress=False)


def test_items_that_are_all_alike_are_refused_by_their_number(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((30, 2), np.float32))
    np.save(tmp_path / "y.npy", np.arange(30) % 2)
    collection = read_collection(tmp_path / "x.npy", tmp_path / "y.npy")
    with pytest.raises(ValueError, match="data = 30: only 1 of its items are different; add items"):
        train(collection, tmp_path / "run", Settings(**QUICK), device="cpu", progress=False)


def test_soft_labels_are_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((40, 3)))
    np.save(tmp_path / "y.npy", np.full((40, 2), 0.5))
    collection = read_collection(tmp_path / "x.npy", tmp_path / "y.npy")
    with pytest.raises(ValueError, match="not for soft"):
        train(collection, tmp_path / "run", Settings(holdout=0.0), device="cpu", progress=False)


def test_features_too_large_for_memory_are_taken_from_their_file(tmp_path, monkeypatch):
    settings = Settings(**QUICK | {"steps": 5})
    collection = small_data(tmp_path)
    small = train(collection, tmp_path / "small", settings, device="cpu", progress=False)
    monkeypatch.setattr("aleator.own_data.learning.preparation._MEMORY_LIMIT", 0)
    large = train(collection, tmp_path / "large", settings, device="cpu", progress=False)
    assert large.fingerprint == small.fingerprint
