"""The CIFAR-10H experiments on a tiny stand-in: folds, stages, measures, tables and figures; and the real folds."""

import math
from dataclasses import replace

import pytest
import torch
from scipy import stats

import aleator as al
from aleator.data.cifar import CifarImages, soft_labels
from aleator.evaluation import MatchCalibration
from aleator.experiments.cifar import evaluation as cifar_evaluation
from aleator.experiments.cifar import figures as cifar_figures
from aleator.experiments.cifar import folds as cifar_folds
from aleator.experiments.cifar import run as cifar
from aleator.experiments.cifar import tables as cifar_tables
from aleator.experiments.cifar.evaluation import HeldOut, held_out_pairs
from aleator.experiments.cifar.gallery import gallery
from aleator.experiments.cifar.pretraining import PretrainingSetting
from aleator.experiments.runner import ExperimentRun, RunFunction
from aleator.experiments.settings import make_loss
from aleator.training.objective import Objective
from aleator.training.recipe import Recipe

SEEDED = torch.Generator().manual_seed
PRESETS = ("quick", "paper", "best")


def coloured(n: int, seed: int) -> CifarImages:
    labels = torch.randint(10, (n,), generator=SEEDED(seed))
    colour = torch.stack([labels * 25, 255 - labels * 25, labels % 3 * 100], 1)[:, :, None, None]
    noise = torch.randint(-20, 20, (n, 3, 32, 32), generator=SEEDED(seed + 1))
    return CifarImages((colour + noise).clamp(0, 255).to(torch.uint8), labels)


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """100 images of coloured noise in five folds, votes that mostly say the colour."""
    images = coloured(100, 1)
    votes = torch.nn.functional.one_hot(images.labels, 10) * 45 + torch.randint(0, 2, (100, 10), generator=SEEDED(2))
    folds, sizes = torch.randperm(100, generator=SEEDED(3)).view(5, 20), torch.linspace(0.25, 1, 20).double()
    monkeypatch.setenv("ALEATOR_DATA", str(tmp_path))
    monkeypatch.setenv("ALEATOR_CACHE", str(tmp_path / "cache"))
    for module in (cifar, cifar_folds):
        monkeypatch.setattr(module, "test_set", lambda root: (images, soft_labels(votes), folds, sizes))
        monkeypatch.setattr(module, "train_set", lambda root: coloured(80, 9))
    three = torch.nn.functional.one_hot(coloured(80, 9).labels, 10) * 3
    monkeypatch.setattr(cifar_folds, "load_cifar10n", lambda root: three)
    monkeypatch.setattr(cifar_evaluation, "PAIRS", 500)
    return images, folds


TINY = cifar_folds.CifarSetting(
    loss="exact",
    network={"width": 1, "epochs": 2, "batch_size": 16, "learning_rate": 0.05, "cutout": 0},
    dim=3,
    batch_size=8,
    samples=3,
    augment={"zoom": 0.5},
    head_first={"steps": 3, "learning_rate": 1e-2},
    recipe={"steps": 4, "validate_every": 2, "learning_rate": 1e-3},
)
HIDDEN = replace(TINY, hidden=(6,), kernel="acceptance")
KERNEL = al.VMFKernel(16.0)
MEASURED = {
    "entropy_rank",
    "crop_rank",
    "crop_random_rank",
    "recall_at_1",
    "recall_at_1_surer_half",
    "map_at_r",
    "match_ece",
}


# Folds


@pytest.mark.parametrize("fold", range(5))
def test_folds_are_the_papers(stand_in, fold):
    images, folds = stand_in
    train_images, labels = cifar_folds.training_data(TINY, fold)
    parts = [folds[(fold + i) % 5] for i in range(5)]
    assert torch.equal(train_images, images.images[torch.cat(parts[:3])])
    assert labels.shape == (60, 10)
    assert torch.equal(cifar_folds.held_out(TINY, fold + 3).number, parts[3])
    assert torch.equal(cifar_folds.held_out(TINY, fold + 4).number, parts[4])


def test_kinds_of_labels(stand_in):
    soft = cifar_folds.training_data(TINY, 0)[1]
    hard = cifar_folds.training_data(replace(TINY, labels="hard"), 0)[1]
    assert torch.equal(hard, soft.argmax(1))
    images, train = cifar_folds.training_data(replace(TINY, labels="train"), 0)
    assert len(images) == len(train) == 80
    images, votes = cifar_folds.training_data(replace(TINY, labels="votes", repeat=2), 0)
    assert len(images) == len(votes) == 80 + 2 * 60
    assert torch.equal(votes[-60:], soft)


# A fold


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"hidden": (6,), "kernel": "acceptance"},
        {"hidden": (6,), "recipe": {}, "beside": ({**TINY.network, "labels": "votes"},)},
        {"recipe": {}, "labels": "votes", "kappa": "head", "kappa_hidden": (4,)},
        {"loss": "mcinfonce", "negatives": 2, "head_first": None, "recipe": {"steps": 4, "phases": "mu-then-kappa"}},
        {"loss": "hib", "negatives": "rolled", "head_first": None},
        {"loss": "elk", "negatives": 1, "labels": "hard", "pretrained": False, "head_first": None, "augment": None},
    ],
    ids=["exact", "hidden", "beside", "votes", "mcinfonce", "hib", "elk"],
)
def test_a_fold_is_trained_and_measured(stand_in, tmp_path, changes):
    outcome = cifar.run_fold(replace(TINY, **changes), 1, "cpu", tmp_path / "run")
    assert set(outcome.metrics) >= MEASURED
    assert ("r_auroc" in outcome.metrics) == (0 < outcome.metrics["recall_at_1"] < 1)
    assert all(math.isfinite(value) for value in outcome.metrics.values()), outcome.metrics
    assert len(outcome.arrays["kappa"]) == 20
    assert al.load_encoder(tmp_path / "run" / "encoder").dim == 3


def test_r_auroc_needs_hits_and_misses(stand_in):
    images = cifar_folds.held_out(TINY, 0).images
    labels = torch.eye(10, dtype=torch.float64)[torch.arange(20) % 2]
    fold = cifar_evaluation.HeldOut(images, labels, torch.rand(20).double(), torch.arange(20))
    certainty = torch.rand(20).double()
    shown = certainty, certainty, (certainty, certainty), fold
    assert "r_auroc" not in cifar_evaluation.certainty_metrics(labels, *shown)
    lost = torch.where(torch.arange(20)[:, None] == 3, labels[0], labels)
    found = cifar_evaluation.certainty_metrics(lost, *shown)["r_auroc"]
    assert found == pytest.approx((certainty > certainty[3]).double().sum().item() / 19)


def test_the_same_fold_twice_is_the_same(stand_in):
    first, again = cifar.run_fold(TINY, 0), cifar.run_fold(TINY, 0)
    assert first.metrics == again.metrics
    assert cifar.run_fold(TINY, 1).metrics != first.metrics


def test_without_a_recipe_the_network_stays_as_it_was(stand_in, tmp_path):
    started = cifar.starting_network(HIDDEN, "cpu")
    cifar.run_fold(replace(HIDDEN, recipe={}), 1, "cpu", tmp_path / "run")
    network = al.load_encoder(tmp_path / "run" / "encoder").backbone.parts[0]
    for found, expected in zip(network.parameters(), started.classifier.backbone.parameters(), strict=True):
        assert torch.equal(found, expected)
    with pytest.raises(ValueError, match="nothing is trained"):
        cifar.run_fold(replace(HIDDEN, recipe={}, head_first=None), 1)


def test_losses_without_certainty_report_none(stand_in):
    recipe = {"steps": 3, "phases": "mu", "mu_negatives": "given"}
    outcome = cifar.run_fold(replace(TINY, loss="infonce", head_first=None, recipe=recipe), 0)
    assert {"recall_at_1", "map_at_r"} <= set(outcome.metrics)
    assert "entropy_rank" not in outcome.metrics
    outcome = cifar.run_fold(replace(TINY, loss="softmax-entropy"), 0)
    assert set(outcome.metrics) >= MEASURED - {"match_ece"}
    assert 0 <= outcome.metrics["accuracy"] <= 1


def test_the_best_by_the_validation_is_kept(stand_in):
    recipe = {"steps": 6, "validate_every": 1, "select": "crop_rank", "learning_rate": 3e-2}
    outcome = cifar.run_fold(replace(TINY, recipe=recipe), 0)
    ranks = outcome.arrays["validations"][:, 1]
    assert outcome.metrics["validation_crop_rank"] == pytest.approx(ranks.max().item(), abs=1e-6)
    assert outcome.metrics["best_step"] == 1 + int(ranks.argmax())


@pytest.mark.parametrize("setting", [TINY, HIDDEN], ids=["linear", "hidden"])
def test_the_head_is_trained_on_features_of_size_one_and_put_back(stand_in, setting):
    """No step changes nothing; what the head learns moves no weight of the network that sees images."""
    started = cifar.starting_network(setting, "cpu")
    encoder = cifar.make_encoder(setting, 0, [started], "cpu")
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    images, labels = cifar_folds.training_data(setting, 0)
    still = replace(setting, head_first={"steps": 1, "learning_rate": 1e-30})
    cifar._train_head(still, encoder, images, labels, 0, "cpu", None)
    for name, value in encoder.state_dict().items():
        torch.testing.assert_close(value, before[name])
    cifar._train_head(setting, encoder, images, labels, 0, "cpu", None)
    changed = {name for name, value in encoder.state_dict().items() if not torch.equal(value, before[name])}
    learned = {name for name in changed if "running" not in name}
    layers = {"backbone.parts.1.layers.0.weight", "backbone.parts.1.layers.0.bias"} if setting.hidden else set()
    assert learned == {"mu_head.weight"} | layers


@pytest.mark.parametrize("setting", [TINY, HIDDEN], ids=["linear", "hidden"])
@pytest.mark.parametrize("views", [2, 10])
def test_with_their_mirror_images_posteriors_do_not_tell_left_from_right(stand_in, views, setting):
    encoder = cifar.make_encoder(setting, 0, [None], "cpu")
    images = cifar_folds.held_out(TINY, 0).images
    assert images.ne(images.flip(-1)).any()
    plain, averaged = (cifar_evaluation.posteriors(encoder, images, count) for count in (1, views))
    expected = encoder.eval()(cifar.network_input(images))
    torch.testing.assert_close(plain.kappa, expected.kappa.double(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(plain.mu, expected.mu.double(), rtol=1e-5, atol=1e-5)
    again = cifar_evaluation.posteriors(encoder, images.flip(-1), views)
    torch.testing.assert_close(again.kappa, averaged.kappa, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(plain.kappa, averaged.kappa)


def test_views_are_the_image_shifted_and_mirrored():
    image = torch.arange(64.0).reshape(1, 1, 8, 8)
    plain, right, left, down, up, *mirrored = cifar_evaluation.make_views(image, 10)
    assert torch.equal(plain, image)
    assert torch.equal(right[..., 2:], image[..., :-2])
    assert torch.equal(left[..., :-2], image[..., 2:])
    assert torch.equal(down[..., 2:, :], image[..., :-2, :])
    assert torch.equal(up[..., :-2, :], image[..., 2:, :])
    for view, other in zip((plain, right, left, down, up), mirrored, strict=True):
        assert torch.equal(view, other.flip(-1))
    with pytest.raises(ValueError, match="views = 3"):
        cifar_evaluation.make_views(image, 3)


def test_rolled_negatives_are_the_positives_before(stand_in):
    images, labels = cifar_folds.training_data(TINY, 0)
    batches = cifar.image_batches(replace(TINY, negatives="rolled", augment=None), images, labels, torch.device("cpu"))
    anchor, positive, negative = batches(0, SEEDED(1))
    encoder = cifar.make_encoder(TINY, 0, [None], "cpu").eval()
    loss = al.ELK(16.0)
    objective = Objective(encoder, loss, "joint", "given")
    expected = objective((anchor, positive, positive.roll(1, 0)[:, None]))
    torch.testing.assert_close(objective((anchor, positive, negative)), expected)


# Measures


def some_posteriors(n: int = 400, seed: int = 5) -> tuple[al.VonMisesFisher, torch.Tensor]:
    kind = torch.randint(10, (n,), generator=SEEDED(seed))
    centres = torch.randn(10, 8, generator=SEEDED(seed + 1), dtype=torch.float64)
    mu = torch.nn.functional.normalize(centres[kind] + 0.3 * torch.randn(n, 8, generator=SEEDED(7)), dim=-1)
    return al.VonMisesFisher(mu, 5 + 30 * torch.rand(n, generator=SEEDED(8), dtype=torch.float64)), kind


def test_held_out_pairs_are_half_positives():
    labels = torch.nn.functional.one_hot(torch.arange(60) % 10, 10).double()
    fold = HeldOut(torch.zeros(60, 3, 32, 32, dtype=torch.uint8), labels, torch.ones(60), torch.arange(60))
    pairs = held_out_pairs(fold, 0, 8000)
    same = fold.hard[pairs.first] == fold.hard[pairs.second]
    assert pairs.match.double().mean() == 0.5
    assert same[pairs.match].all()
    assert stats.binomtest(int(same[~pairs.match].sum()), 4000, 0.1).pvalue > 1e-4


def test_crops_lose_the_border_and_keep_the_rest():
    images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    images[:, :, 12:20, 12:20] = 200
    fold = HeldOut(images, torch.eye(2).double(), torch.tensor([0.25, 1.0]), torch.arange(2))
    small, whole = fold.cropped()
    assert (small == 200).all()
    assert torch.equal(whole, images[1])
    first, sizes = fold.randomly_cropped(3)
    again, _ = fold.randomly_cropped(3)
    assert torch.equal(first, again)
    assert ((sizes >= 0.25) & (sizes <= 1)).all()


def test_gallery_holds_the_ends_and_the_credible_sets():
    q, kind = some_posteriors()
    images = torch.arange(400)[:, None, None, None].expand(400, 3, 32, 32) % 256
    fold = HeldOut(images.to(torch.uint8), torch.nn.functional.one_hot(kind, 10).double(), torch.ones(400), kind)
    found = gallery(q, fold, MatchCalibration(KERNEL))
    assert (found["surest_kappa"][:, 0] >= found["least_sure_kappa"][:, 0]).all()
    for k in range(10):
        assert found["surest_kappa"][k, 0] == pytest.approx(q.kappa[kind == k].max().item(), rel=1e-6)
    reach = q.cap(0.95)
    for row, kappa in enumerate(found["query_kappa"]):
        query = int((q.kappa - kappa).abs().argmin())
        inside = (q.mu @ q.mu[query] >= reach[query]).sum() - 1
        assert found["answer_count"][row] == inside
        assert (found["answer_label"][row] >= 0).sum() == min(int(inside), 12)


def test_missing_data_is_one_line_before_anything_runs(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from aleator.cli import app

    monkeypatch.delenv("ALEATOR_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    for options, message in (
        ([], "no data folder is named"),
        (["--data-dir", str(tmp_path / "nowhere")], "is not a folder"),
        (["--data-dir", str(tmp_path)], "CIFAR-10 is not there"),
    ):
        done = CliRunner().invoke(app, ["reproduce", "cifar-losses", *options])
        assert done.exit_code == 2, done.output
        assert message in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


# Tables and figures


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", cifar_tables.CIFAR)
def test_rows_are_runs_that_can_be_made(name, preset):
    rows = cifar_tables.CIFAR[name](preset)
    assert (cifar_tables.CIFAR[name].__doc__ or "").strip()
    keys = [
        ExperimentRun(RunFunction("cifar", cifar.run_fold), row.setting, seed).key for row in rows for seed in row.seeds
    ]
    assert len(set(keys)) == len(keys)
    for row in rows:
        setting = row.setting
        for network in (setting.network, *setting.beside):
            PretrainingSetting(**network)
        if setting.loss != "softmax-entropy":  # which trains nothing
            make_loss(setting)
        stages = [options for options in (setting.recipe, setting.head_first) if options]
        for options in stages:
            Recipe(**{"seed": 0, **options})
        assert stages or setting.loss == "softmax-entropy"
        assert setting.recipe.get("select") in (None, "crop_rank", "recall_at_1")
        # what the labels and the loss need is there
        assert setting.loss != "softmax-entropy" or setting.pretrained


def test_the_papers_figures_stand_beside_rows_of_ours():
    for experiment, setting, loss in cifar_tables.CIFAR_PAPER:
        rows = cifar_tables.CIFAR[experiment]("paper")
        assert any((row.setting.name, row.setting.loss) == (setting, loss) for row in rows), (experiment, setting, loss)


def test_figures_are_drawn(stand_in):
    settings = [TINY, replace(TINY, loss="softmax-entropy", name="classifier")]
    found = [cifar.run_fold(setting, 0).arrays for setting in settings]
    rows = [{"setting": s.name, "loss": s.loss, "metrics": {}} for s in settings]
    names = {}
    for name, draw in cifar_figures.FIGURES.items():
        if name == "cifar-tuning":
            continue
        count = 2 if name == "cifar-losses" else 1
        names[name] = set(draw(rows[:count], found[:count]))
    assert "training" in names["cifar-losses"]
    assert names["cifar-gallery"] == {"gallery-soft-exact"}
    grid = [
        {"setting": f"a {a}, b {b}", "parameters": {"a": a, "b": b}, "metrics": {"validation_crop_rank": {"mean": a}}}
        for a in (1.0, 2.0)
        for b in (0.0, 1.0)
    ]
    assert set(cifar_figures.tuning(grid, [])) == {"hib"}
    assert set(cifar_figures.FIGURES) == set(cifar_tables.CIFAR)


@pytest.mark.data
def test_a_real_fold(data_folder, monkeypatch, tmp_path):
    """Real images and labels through the whole chain."""
    monkeypatch.setattr(cifar_evaluation, "PAIRS", 500)
    monkeypatch.setenv("ALEATOR_DATA", str(data_folder))
    monkeypatch.setenv("ALEATOR_CACHE", str(tmp_path))
    setting = replace(TINY, network={"width": 2}, pretrained=False, images=60, head_first=None)
    outcome = cifar.run_fold(setting, 2)
    assert set(outcome.metrics) >= MEASURED
    assert all(math.isfinite(value) for value in outcome.metrics.values())
    images = cifar_folds.held_out(setting, 2 + 4)
    assert torch.equal(outcome.arrays["number"], images.number)
