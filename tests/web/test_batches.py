"""Items that come together are answered together, each with its own result or its own error."""

import threading

import pytest
import torch

from aleator.web.batches import Batches
from aleator.web.limits import Limits
from aleator.web.service import Service
from tests.web.shapes import COLOURS, SHAPES, draw, image_run, png, text_index, text_run


class Gate:
    """Squares numbers; the first batch waits until the gate is opened."""

    def __init__(self):
        self.entered, self.opened, self.sizes = threading.Event(), threading.Event(), []

    def __call__(self, key, items):
        self.entered.set()
        assert self.opened.wait(30)
        self.sizes.append((key, len(items)))
        if any(item < 0 for item in items):
            raise ValueError(f"negative: {items}")
        return [item**2 for item in items]


def gathered(most, submit):
    """What is submitted while the first batch is answered."""
    gate = Gate()
    batches = Batches(gate, most)
    first = batches.submit("a", 1)
    assert gate.entered.wait(30)
    futures = submit(batches)
    gate.opened.set()
    assert first.result(30) == 1
    return gate, futures


def test_what_waits_is_answered_in_one_call():
    gate, futures = gathered(8, lambda batches: [batches.submit("a", i) for i in range(20)])
    assert [future.result(30) for future in futures] == [i**2 for i in range(20)]
    assert gate.sizes == [("a", 1), ("a", 8), ("a", 8), ("a", 4)]


def test_items_of_different_keys_are_not_mixed_and_the_oldest_goes_first():
    gate, futures = gathered(8, lambda batches: [batches.submit("ab"[i % 2], i) for i in range(6)])
    assert [future.result(30) for future in futures] == [i**2 for i in range(6)]
    assert gate.sizes[1:] == [("a", 3), ("b", 3)]


def test_one_bad_item_does_not_spoil_the_others():
    _, futures = gathered(8, lambda batches: [batches.submit("a", i) for i in (2, -3, 4)])
    assert (futures[0].result(30), futures[2].result(30)) == (4, 16)
    with pytest.raises(ValueError, match=r"negative: \[-3\]"):
        futures[1].result(30)


def test_a_window_gathers_what_arrives_within_it():
    sizes = []
    batches = Batches(lambda key, items: items, most=3, window=30.0, note=sizes.append)
    futures = [batches.submit("a", i) for i in range(3)]  # a full batch does not wait
    assert [future.result(30) for future in futures] == [0, 1, 2]
    assert sizes == [3]
    batches.close()


def test_closing_cancels_what_waits_and_it_can_be_used_again():
    gate = Gate()
    batches = Batches(gate)
    first = batches.submit("a", 1)
    assert gate.entered.wait(30)
    waiting = batches.submit("a", 2)
    batches.close()
    assert waiting.cancelled()
    gate.opened.set()
    assert first.result(30) == 1
    assert batches.submit("a", 3).result(30) == 9


def together(service, prepared):
    return service._encode(None, prepared)


def test_encoded_together_or_alone_images_have_the_same_posterior(index, run, root):
    service = Service(index, run, root, Limits())
    images = [png(draw(shape, colour, 0.3)) for shape in SHAPES for colour in COLOURS]
    prepared = [service._prepare(run, "images", image) for image in images]
    for (one, _), alone in zip(together(service, prepared), prepared, strict=True):
        ((other, _),) = together(service, [alone])
        torch.testing.assert_close(one.mu, other.mu)
        torch.testing.assert_close(one.kappa, other.kappa)


def test_texts_too():
    run = text_run()
    service = Service(text_index(run), run, None, Limits())
    prepared = [run.inputs.prepare([text]) for text in ("a bank", "another bank", "time flies")]
    for (one, _), (text,) in zip(together(service, prepared), prepared, strict=True):
        torch.testing.assert_close(one.mu, run.posteriors([text]).mu)


@pytest.mark.gpu
def test_images_on_a_gpu(index, root):
    run = image_run()
    run.encoder.to("cuda")
    service = Service(index, run, root, Limits())
    prepared = [service._prepare(run, "images", png(draw(shape, COLOURS[0], 0.3))) for shape in SHAPES]
    on_cpu = image_run().encode(torch.cat(prepared))[0]
    joined = [one for one, _ in together(service, prepared)]
    assert all(one.mu.device.type == "cpu" for one in joined)
    torch.testing.assert_close(torch.cat([one.mu for one in joined]), on_cpu.mu, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("by", "level"), [("credible", 0.9), ("match", 0.3), ("nearest", None)])
def test_searched_together_or_alone_questions_have_the_same_hits(index, run, root, by, level):
    service = Service(index, run, root, Limits())
    labels = service.served.labels
    questions = [(service.served.collection.posterior(i), 5 + i, labels) for i in range(12)]
    found = service._search_all((by, level), questions)
    for (hits, *_), question in zip(found, questions, strict=True):
        ((alone, *_),) = service._search_all((by, level), [question])
        assert len(hits) <= question[1]
        assert [hit.id for hit in hits] == [hit.id for hit in alone]
        assert [hit.match_probability for hit in hits] == pytest.approx([hit.match_probability for hit in alone])
