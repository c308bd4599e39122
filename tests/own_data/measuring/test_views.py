"""Views of inputs: they belong to the same forward pass, and describe what they say."""

import numpy as np
import torch

import aleator as al
from aleator.encoders import MLP, Chain, ResNet18, Standardise
from aleator.evaluation import fit_novelty
from aleator.own_data import example_sentences, read_collection
from aleator.own_data.measuring.views import image_statistics, letter_pairs, posteriors_and_views


def test_features_are_those_that_the_head_standardised():
    rows = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
    standardise = Standardise(5).fit(rows)
    encoder = al.Encoder(Chain([standardise, MLP(5, [8])]), dim=3).eval()
    q, views = posteriors_and_views(encoder, rows)
    torch.testing.assert_close(views["features"], standardise(rows))
    torch.testing.assert_close(q.mu, encoder(rows).mu.detach())
    assert set(views) == {"features"}


def test_images_have_three_views():
    images = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    encoder = al.Encoder(ResNet18(width=4), dim=3).eval()
    _, views = posteriors_and_views(encoder, images)
    torch.testing.assert_close(views["features"], encoder.backbone(images).detach())
    assert {name: tuple(view.shape) for name, view in views.items()} == {
        "features": (4, 32),
        "pixels": (4, 192),
        "statistics": (4, 19),
    }
    thumbnail = images.unflatten(2, (8, 2)).unflatten(4, (8, 2)).mean((3, 5))
    torch.testing.assert_close(views["pixels"], thumbnail.flatten(1))


def test_the_encoder_is_left_as_it_was():
    encoder = al.Encoder(MLP(3, [4]), dim=2).eval()
    posteriors_and_views(encoder, torch.zeros(1, 3))
    assert not encoder.backbone._forward_hooks


class TestStatistics:
    def test_tell_blank_smooth_and_noisy_images_apart(self):
        ramp = torch.linspace(-1, 1, 32).expand(3, 32, 32)
        noise = torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(0))
        blank, smooth, noisy = image_statistics(torch.stack([torch.zeros(3, 32, 32), ramp, noise]))
        edges, flat = 6, 9  # columns: strength of edges across, and share that is flat, at the finest scale
        assert blank[edges] < smooth[edges] < noisy[edges]
        assert blank[flat] > noisy[flat]

    def test_mean_and_deviation_of_colours(self):
        images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
        statistics = image_statistics(images)
        torch.testing.assert_close(statistics[:, :3], images.mean((2, 3)))
        torch.testing.assert_close(statistics[:, 3:6], images.flatten(2).std(2, correction=0))

    def test_are_finite_for_tiny_images(self):
        for side in (2, 3, 8):
            assert image_statistics(torch.zeros(1, 3, side, side)).isfinite().all()
            assert image_statistics(torch.zeros(1, 3, side, side)).shape == (1, 19)


class TestLetterPairs:
    def test_are_counted(self):
        counts = letter_pairs(["abab", "a  b 7"])
        a, b, space, digit = 0, 1, 26, 27
        assert counts.shape == (2, 1600)
        assert counts[0, 40 * a + b] == 2
        assert counts[0, 40 * b + a] == 1
        assert counts.sum(1).tolist() == [3, 4]
        assert counts[1, 40 * space + digit] == 1

    def test_of_any_script_and_of_one_letter(self):
        counts = letter_pairs(["Ж", "Жар птица", "日本語", "\ud800x"])
        assert counts.sum(1).tolist() == [0, 8, 2, 1]

    def test_random_letters_are_unlike_sentences(self):
        texts = read_collection(example_sentences()).items
        held_out, training = letter_pairs(texts[::2]), letter_pairs(texts[1::2])
        detector = fit_novelty({"letters": training}, {"letters": held_out})
        generator = np.random.default_rng(0)
        odd = ["".join(generator.choice(list("abcdefghijklmnopqrstuvwxyz "), 40)) for _ in range(50)]
        assert detector.unlike({"letters": letter_pairs(odd)}).double().mean() > 0.9
        assert detector.unlike({"letters": held_out}).double().mean() < 0.02
