"""Ensemble: members learn alone in training and answer together in evaluation."""

import pytest
import torch

import aleator as al
from aleator.encoders import MLP, Ensemble


@pytest.fixture
def network():
    torch.manual_seed(0)
    return Ensemble([MLP(4, (3,)), MLP(4, (5,)), MLP(4, (2,))])


def test_in_evaluation_the_features_of_all_members_stand_side_by_side(network):
    x = torch.randn(7, 4)
    expected = torch.cat([member(x) for member in network.parts], 1)
    torch.testing.assert_close(network.eval()(x), expected)


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_in_training_a_linear_layer_gives_the_output_of_one_member_and_their_mean_in_evaluation(network, rows):
    x, weight = torch.randn(rows, 4), torch.randn(10, 2)
    blocks = weight.split([3, 5, 2])
    each = [3 * member(x) @ block for member, block in zip(network.parts, blocks, strict=True)]
    which = torch.cat([torch.full((len(part),), k) for k, part in enumerate(x.tensor_split(3))])
    torch.testing.assert_close(network.train()(x) @ weight, torch.stack(each)[which, torch.arange(rows)])
    torch.testing.assert_close(network.eval()(x) @ weight, torch.stack(each).mean(0))


def test_a_member_learns_from_its_own_rows_only(network):
    x = torch.randn(6, 4)
    network.train()(x)[2:4].sum().backward()  # rows of the second member
    assert [member.layers[0].weight.grad.abs().sum() > 0 for member in network.parts] == [False, True, False]


def test_where_members_disagree_kappa_is_smaller():
    torch.manual_seed(0)
    encoder = al.Encoder(Ensemble([MLP(4, (8,)), MLP(4, (8,))]), dim=3).eval()
    x = torch.randn(50, 4)
    first, second = (
        part(x) @ weight.T
        for part, weight in zip(encoder.backbone.parts, encoder.mu_head.weight.split(8, 1), strict=True)
    )
    cosine = torch.nn.functional.cosine_similarity(first, second)
    relative = encoder(x).kappa / (first.norm(dim=1) + second.norm(dim=1))
    assert (relative[cosine < -0.5] < 0.8).all()
    assert (cosine < -0.5).any()
    assert (relative[cosine > 0.9] > 0.9).all()


def test_is_saved_with_its_members(network, tmp_path):
    encoder = al.Encoder(network, dim=3).eval()
    encoder.save(tmp_path / "encoder")
    x = torch.randn(5, 4)
    torch.testing.assert_close(al.load_encoder(tmp_path / "encoder")(x).mu, encoder(x).mu)
