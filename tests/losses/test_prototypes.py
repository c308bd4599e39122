"""PrototypeLoss: label probabilities by Bayes' rule, cross-entropy with hard and soft labels, learning."""

import pytest
import torch

import aleator as al
from aleator.data import match_weights


@pytest.fixture
def loss():
    torch.manual_seed(0)
    return al.PrototypeLoss(dim=4, shares=[2.0, 1.0, 1.0], kernel=al.VMFKernel(10.0)).double()


@pytest.fixture
def q():
    torch.manual_seed(1)
    mu = torch.nn.functional.normalize(torch.randn(6, 4, dtype=torch.float64), dim=-1)
    return al.VonMisesFisher(mu, torch.linspace(2, 60, 6, dtype=torch.float64))


def test_label_probabilities_are_bayes_rule_over_the_classes(loss, q):
    shares = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    for i in range(len(q)):
        weight = torch.stack(
            [shares[c] * al.log_positivity(q[i], loss.prototypes[c], loss.kernel).exp() for c in range(3)]
        )
        torch.testing.assert_close(loss.log_probabilities(q)[i].exp(), weight / weight.sum(), rtol=1e-6, atol=1e-8)


def test_soft_labels_give_the_mean_over_drawn_classes(loss, q):
    rows = torch.softmax(torch.randn(6, 3, dtype=torch.float64), 1)
    drawn = torch.stack(
        [loss.soft(q[i : i + 1], torch.eye(3, dtype=torch.float64)[c : c + 1]) for i in range(6) for c in range(3)]
    )
    torch.testing.assert_close(loss.soft(q, rows), (rows * drawn.view(6, 3)).sum(1).mean())


def test_pairs_add_the_soft_loss_of_the_batch(q):
    torch.manual_seed(0)
    alone = al.PrototypeLoss(4, [1.0, 1.0], al.VMFKernel(10.0)).double()
    both = al.PrototypeLoss(4, [1.0, 1.0], al.VMFKernel(10.0), pairs=0.5).double()
    both.load_state_dict(alone.state_dict())
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5], [0.0, 1.0], [0.0, 1.0], [0.2, 0.8]], dtype=torch.float64)
    expected = alone.soft(q, rows) + 0.5 * al.ExactInfoNCE(al.VMFKernel(10.0)).soft(q, match_weights(rows))
    torch.testing.assert_close(both.soft(q, rows), expected)


def test_gradients_of_inputs_and_classes(loss):
    mu = torch.nn.functional.normalize(torch.randn(3, 4, dtype=torch.float64), dim=-1)
    rows = torch.eye(3, dtype=torch.float64)
    loss.pairs = 1.0
    rows[2] = torch.tensor([0.5, 0.0, 0.5])

    def value(direction, kappa, prototypes):
        loss.direction.data.copy_(prototypes.detach())
        q = al.VonMisesFisher(torch.nn.functional.normalize(direction, dim=-1), kappa, validate_args=False)
        return loss.soft(q, rows)

    kappa = torch.tensor([3.0, 10.0, 30.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda d, k: value(d, k, loss.direction), (mu.requires_grad_(), kappa), atol=1e-5, rtol=1e-3
    )
    loss.zero_grad()
    value(mu, kappa, loss.direction).backward()
    assert all(p.grad is not None and bool((p.grad != 0).any()) for p in (loss.direction, loss.log_kappa))


def test_an_encoder_learns_classes_and_sees_which_inputs_lie_between():
    torch.manual_seed(0)
    x = torch.randn(600, 2)
    p = torch.sigmoid(3 * x[:, 0])  # P(first class); x[:, 1] says nothing
    rows = torch.stack([p, 1 - p], 1)
    encoder = al.Encoder(torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.GELU()), 4, features=32)
    loss = al.PrototypeLoss(4, rows.sum(0), al.VMFKernel(10.0), pairs=1.0)
    batches = al.LabelRowBatches(x, rows, 64)
    recipe = al.Recipe(steps=200, learning_rate=1e-2, schedule="one-cycle")
    al.fit(encoder, loss, batches, recipe, device="cpu", progress=False)
    with torch.no_grad():
        q = encoder(x)
        learned = loss.log_probabilities(q).exp()[:, 0]
    assert (learned - p).abs().mean() < 0.05
    sure, unsure = (p - 0.5).abs() > 0.45, (p - 0.5).abs() < 0.2
    assert q.kappa[sure].mean() > 1.5 * q.kappa[unsure].mean()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"shares": [1.0]}, "shares"),
        ({"shares": [1.0, 0.0]}, "shares"),
        ({"shares": [1.0, 1.0], "pairs": -1.0}, "pairs"),
        ({"shares": [1.0, 1.0], "most_paired": 2.5}, "most_paired"),
        ({"shares": [1.0, 1.0], "dim": 1}, "dim"),
    ],
)
def test_bad_arguments(arguments, name):
    with pytest.raises(ValueError, match=rf"^{name} = "):
        al.PrototypeLoss(**{"dim": 3, **arguments})


def test_targets_need_a_column_for_each_class(loss, q):
    with pytest.raises(ValueError, match=r"^targets = "):
        loss.soft(q, torch.ones(6, 2))


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
def test_targets_are_finite_and_not_negative(wrong, loss, q):
    with pytest.raises(ValueError, match=r"^targets = .*not a finite weight of 0 or more"):
        loss.soft(q, torch.full((6, 3), wrong))


def test_what_it_cannot_compare_is_refused(loss, q):
    with pytest.raises(ValueError, match="an empty batch has no loss"):
        loss.soft(q[:0], torch.ones(0, 3))
    with pytest.raises(ValueError, match="compares inputs with classes, not with positives; call its soft"):
        loss(q, q)


def test_the_classes_stay_exact_under_autocast_and_take_whole_numbers(loss, q):
    loss, q, rows = loss.float(), q.float(), torch.eye(3, dtype=torch.int64)[torch.tensor([0, 1, 2, 0, 1, 2])]
    expected = loss.log_probabilities(q)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(loss.log_probabilities(q), expected)
    loss.pairs = loss.agreement = 1.0
    assert torch.equal(loss.soft(q, rows.bool()), loss.soft(q, rows.float()))
    assert torch.equal(loss.soft(q, rows), loss.soft(q, rows.float()))


def test_agreement_adds_the_cross_entropy_of_two_labels_of_one_input(q):
    torch.manual_seed(0)
    alone = al.PrototypeLoss(4, [3.0, 1.0], al.VMFKernel(10.0)).double()
    both = al.PrototypeLoss(4, [3.0, 1.0], al.VMFKernel(10.0), agreement=0.5).double()
    both.load_state_dict(alone.state_dict())
    rows = torch.tensor([[1.0, 0.0], [0.6, 0.4], [0.5, 0.5], [0.0, 1.0], [0.1, 0.9], [0.2, 0.8]], dtype=torch.float64)
    p = torch.stack([al.match_probability(q[i], q[i], al.VMFKernel(10.0), prior=0.625) for i in range(6)])
    agree = torch.stack([sum(rows[i, c] * rows[i, c] for c in range(2)) for i in range(6)])
    expected = -(agree * p.log() + (1 - agree) * (1 - p).log()).mean()
    torch.testing.assert_close(both.soft(q, rows) - alone.soft(q, rows), 0.5 * expected, rtol=1e-6, atol=1e-8)


def test_agreement_gives_disputed_inputs_the_smaller_kappa():
    """Two inputs between the classes: people are divided about the one, and agree about the other, half on each."""
    torch.manual_seed(0)
    loss = al.PrototypeLoss(3, [1.0, 1.0], al.VMFKernel(10.0), agreement=1.0)
    rows = torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
    embedding = torch.nn.Parameter(torch.randn(2, 3))
    optimiser = torch.optim.Adam([embedding], lr=0.1)
    for _ in range(150):
        e = embedding[[0, 1, 0, 1]]
        optimiser.zero_grad()
        loss.soft(al.VonMisesFisher(torch.nn.functional.normalize(e, dim=-1), e.norm(dim=-1)), rows).backward()
        optimiser.step()
    disputed, unread = embedding.detach().norm(dim=1)
    assert disputed < 1.0 < 5.0 < unread
    e = embedding.detach()
    p = loss.log_probabilities(al.VonMisesFisher(torch.nn.functional.normalize(e, dim=-1), e.norm(dim=-1))).exp()
    torch.testing.assert_close(p, torch.full((2, 2), 0.5), atol=0.05, rtol=0)


@pytest.mark.parametrize(("classes", "dim"), [(2, 8), (3, 2), (5, 4), (4, 16)])
def test_few_classes_start_as_far_apart_as_can_be(classes, dim):
    mu = al.PrototypeLoss(dim, torch.ones(classes)).prototypes.mu.detach()
    cosine = mu @ mu.T
    expected = torch.full((classes, classes), -1 / (classes - 1)).fill_diagonal_(1.0)
    torch.testing.assert_close(cosine, expected, atol=1e-5, rtol=0)


def test_more_classes_than_a_simplex_has_corners_start_at_random():
    torch.manual_seed(0)
    loss = al.PrototypeLoss(3, torch.ones(50))
    assert loss.prototypes.mu.shape == (50, 3)
    assert loss.prototypes.mu.mean(0).norm() < 0.4
