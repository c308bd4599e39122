"""The promise of an index: kept on new questions, stored, and refused where it cannot be made."""

import json

import numpy as np
import pytest
import torch

from aleator import CredibleIndex, VMFMixture, VonMisesFisher
from aleator.evaluation import conformal_quantile
from aleator.retrieval import AnswerSet, Promise
from tests.retrieval.overlapping_labels import questions_and_index, seen


def holds(answer: AnswerSet, right: str) -> bool:
    return any(hit.metadata["label"] == right for hit in answer.hits)


def ids_of(label: str, labels: list[str]) -> list[int]:
    return [i for i, one in enumerate(labels) if one == label]


ASSURANCE = 0.8
ERROR = {"labels": 0.2, "ranked": 0.3, "ids": None}


@pytest.fixture(scope="module")
def splits():
    """Coverage, sizes, and errors of sure answers on 250 new questions, for 8 calibrations of each kind."""
    questions, right, index, _, labels = questions_and_index(8 * 500, 150)
    found = {}
    for kind in ERROR:
        rows = []
        for split in range(8):
            start = 500 * split
            calibration, new = slice(start, start + 250), slice(start + 250, start + 500)
            answers = [ids_of(r, labels) for r in right[calibration]] if kind == "ids" else right[calibration]
            sets = None if kind == "ids" else kind
            promise = index.calibrate(
                questions[calibration], answers, 0.9, error=ERROR[kind], assurance=ASSURANCE, sets=sets
            )
            given = index.answer_sets(questions[new])
            covered = np.mean([holds(answer, r) for answer, r in zip(given, right[new], strict=True)])
            sure = [a.hits[0].metadata["label"] != r for a, r in zip(given, right[new], strict=True) if a.sure]
            rows.append((covered, np.mean([len(a.hits) for a in given]), np.mean(sure), len(sure) / 250, promise))
        found[kind] = rows
    return found


@pytest.mark.parametrize("kind", ["labels", "ranked", "ids"])
def test_sets_cover_as_promised(splits, kind):
    """With an assurance of 0.8 the mean is about 0.917. The mean of 8 splits has a standard deviation of 0.01."""
    covered = np.mean([row[0] for row in splits[kind]])
    assert 0.917 - 0.03 < covered < 0.917 + 0.03
    assert all(row[-1].assurance == ASSURANCE for row in splits[kind])


def test_few_questions_promise_the_average():
    questions, right, index, _, _ = questions_and_index(24, 150)
    promise = index.calibrate(questions, right, 0.95)  # 45 would be needed for an assurance of 0.9
    assert promise.assurance is None
    assert "assured" not in str(promise)


@pytest.mark.parametrize("number", [np.float32, torch.tensor])
def test_numbers_of_numpy_and_torch_promise_the_same(number):
    questions, right, index, _, _ = questions_and_index(60, 60)
    plain = index.calibrate(questions, right, 0.75, error=0.5, assurance=0.875)
    assert index.calibrate(questions, right, number(0.75), error=number(0.5), assurance=number(0.875)) == plain
    assert index.promise == plain


@pytest.mark.parametrize("kind", ["labels", "ranked"])
def test_the_error_of_sure_answers_is_kept(splits, kind):
    """1.6 of 8 may break it by chance; a share of about 150 answers has a standard error of 0.03."""
    errors = [row[2] for row in splits[kind]]
    assert np.mean(errors) < ERROR[kind]
    assert sum(error > ERROR[kind] + 0.03 for error in errors) <= 3
    assert np.mean([row[3] for row in splits[kind]]) > 0.3  # and many are answered


def test_sets_are_smaller_than_equally_many_neighbours_for_every_question(splits):
    """The fixed k, found on the same questions by the same rule, in the order of the cosine."""
    questions, right, index, _, _ = questions_and_index(8 * 500, 150)
    sizes = []
    for split in range(8):
        calibration = slice(500 * split, 500 * split + 250)
        hits = index.search(questions[calibration], by="nearest", limit=150)
        first = [
            next((j for j, hit in enumerate(own, 1) if hit.metadata["label"] == r), 10**6)
            for own, r in zip(hits, right[calibration], strict=True)
        ]
        sizes.append(conformal_quantile(first, 0.9, ASSURANCE))
    mean_size = {kind: np.mean([row[1] for row in rows]) for kind, rows in splits.items()}
    print(f"fixed k {np.mean(sizes):.2f}", {kind: f"{size:.2f}" for kind, size in mean_size.items()})
    assert mean_size["labels"] < mean_size["ranked"] < mean_size["ids"] <= np.mean(sizes)


def test_promise_describes_the_calibration(splits):
    for kind, need in (("labels", {"share"}), ("ranked", {"mass"}), ("ids", {"rank", "rank-kappa"})):
        for row in splits[kind]:
            promise = row[-1]
            assert promise.need in need
            assert promise.questions == (250 if kind == "labels" else 200)  # a fifth chooses the need
            assert 0.9 <= promise.covered < 0.9 + 0.05
            assert promise.mean_size == pytest.approx(row[1], rel=0.35)
            low, high = promise.coverage_range
            assert low < 0.9 < high


def test_questions_that_are_sure_get_smaller_sets():
    questions, right, index, _, _ = questions_and_index(1200, 150)
    index.calibrate(questions[:400], right[:400])
    size = np.array([len(answer.hits) for answer in index.answer_sets(questions[400:])])
    surer = (questions[400:].kappa > questions[400:].kappa.median()).numpy()
    assert size[surer].mean() < size[~surer].mean()
    assert size.min() == 1


def test_higher_coverage_gives_larger_sets_that_hold_the_smaller_ones():
    questions, right, index, _, _ = questions_and_index(600, 200)
    before = [set() for _ in range(100)]
    for coverage in (0.5, 0.8, 0.9, 0.95, 0.99):
        index.calibrate(questions[:500], right[:500], coverage)
        after = [{hit.id for hit in answer.hits} for answer in index.answer_sets(questions[500:])]
        assert all(small <= large for small, large in zip(before, after, strict=True))
        before = after


def test_a_set_of_labels_is_never_empty():
    """Also where first answers are right more often than the coverage asks."""
    questions, right, index, _, _ = questions_and_index(600, 150)
    index.calibrate(questions[:300], right[:300], 0.5)
    answers = index.answer_sets(questions[300:])
    assert min(len(answer.hits) for answer in answers) == 1
    assert np.mean([holds(answer, one) for answer, one in zip(answers, right[300:], strict=True)]) > 0.56


def test_it_looks_deeper_where_right_answers_lie_far_away():
    """400 items of a wrong label lie nearer than the first right one."""
    near = torch.nn.functional.normalize(torch.tensor([[1.0, 0.0, 0.0]]) + 0.01 * torch.randn(401, 3), dim=-1)
    mu = torch.cat([near[:400], torch.tensor([[0.0, 1.0, 0.0]])])
    index = CredibleIndex.build(VonMisesFisher(mu, 5.0), metadata=[{"label": "a"}] * 400 + [{"label": "b"}])
    questions = VonMisesFisher(near[:1].expand(40, 3), 5.0)
    promise = index.calibrate(questions, ["a", "b"] * 20, 0.9)
    assert promise.depth == 401
    assert [hit.metadata["label"] for hit in index.answer_sets(questions[:1])[0].hits] == ["a", "b"]


class TestStored:
    def test_a_promise_is_there_when_the_index_is_opened_again(self, location):
        questions, right, index, _, _ = questions_and_index(60, 50, location=location)
        assert index.promise is None
        promise = index.calibrate(questions, right, 0.9)
        before = index.answer_sets(questions)
        index.close()
        with CredibleIndex.open(location) as opened:
            assert opened.promise == promise
            assert opened.answer_sets(questions) == before

    def test_items_that_were_exchanged_for_as_many_others_make_it_void(self, location):
        """By another client, too. With the same items as before it holds again."""
        questions, right, index, gallery, labels = questions_and_index(60, 50, location=location)
        promise = index.calibrate(questions, right, 0.9)
        ids, one_label = list(range(25)), [{"label": labels[0]}] * 25
        with CredibleIndex.open(location) as other:
            other.remove(ids)
            other.add(gallery[:25], ids, metadata=one_label)
            other.save()
        assert (len(index), index.promise, index.promise_is_void) == (50, None, True)
        with pytest.raises(ValueError, match="have changed since it was calibrated"):
            index.answer_sets(questions)
        index.remove(ids)
        index.add(gallery[:25], ids, metadata=[{"label": label} for label in labels[:25]])
        assert (index.promise, index.promise_is_void) == (promise, False)
        again = index.calibrate(questions, right, 0.9)
        assert index.promise == again
        index.close()

    def test_another_client_that_saves_later_does_not_lose_it(self, location):
        questions, right, index, _, _ = questions_and_index(60, 50, location=location, exact_below=20)
        with CredibleIndex.open(location) as other:
            promise = index.calibrate(questions, right, 0.9)
            other.add(questions[:1])
            other.save()
        index.close()
        with CredibleIndex.open(location) as opened:
            assert opened.promise_is_void
            assert opened.recall_report is not None
            opened.remove([50])
            assert opened.promise == promise

    def test_from_memory_to_a_folder(self, tmp_path):
        questions, right, index, _, _ = questions_and_index(100, 50)
        promise = index.calibrate(questions, right, 0.9, error=0.5)
        index.save(tmp_path / "index")
        index.close()
        with CredibleIndex.open(tmp_path / "index") as opened:
            assert opened.promise == promise
        with CredibleIndex.open(tmp_path / "index", memory_map=True) as read_only:
            assert len(read_only.answer_sets(questions)) == 100
            with pytest.raises(ValueError, match="memory_map = True: is read-only"):
                read_only.calibrate(questions, right, 0.9)

    def test_a_promise_as_json(self):
        questions, right, index, _, _ = questions_and_index(100, 50)
        for error in (None, 0.5):
            promise = index.calibrate(questions, right, 0.9, error=error)
            assert Promise.from_dict(json.loads(json.dumps(promise.to_dict()))) == promise
        assert "at most 50 % are wrong (90 % assured)" in str(promise)


class TestRefused:
    def test_too_few_questions(self):
        questions, right, index, _, _ = questions_and_index(18, 50)
        with pytest.raises(ValueError, match="questions = 18: too few to promise"):
            index.calibrate(questions, right)
        assert index.promise is None

    def test_questions_of_another_encoder(self):
        questions, right, index, _, _ = questions_and_index(60, 50, fingerprint="a")
        with pytest.raises(ValueError, match="made by the encoder a;"):
            index.calibrate(questions, right, fingerprint="b")
        index.calibrate(questions, right, fingerprint="a")
        with pytest.raises(ValueError, match="made by the encoder a;"):
            index.answer_sets(questions, fingerprint="b")

    def test_answers_without_a_calibration(self):
        questions, _, index, _, _ = questions_and_index(1, 50)
        with pytest.raises(ValueError, match="is not calibrated"):
            index.answer_sets(questions)

    def test_right_answers_that_are_not_in_the_index(self):
        questions, right, index, _, _ = questions_and_index(60, 50)
        with pytest.raises(
            ValueError,
            match=r"right = \['unknown'\]: no item near to any question has its label; items have labels such as '?\w",
        ):
            index.calibrate(questions, ["unknown"] * 60)
        with pytest.raises(ValueError, match=r"for 30 of 60 .* promise less than 0\.5"):
            index.calibrate(questions, right[:30] + ["unknown"] * 30)
        with pytest.raises(ValueError, match=r"right = \['\"x\"'\]: not in the index"):
            index.calibrate(questions, [["x"]] * 60)

    def test_wrong_arguments(self):
        questions, right, index, _, _ = questions_and_index(60, 50)
        for message, arguments in {
            "right = 59: there are 60 questions": {"right": right[:59]},
            "right = None: not a label": {"right": [*right[:59], None]},
            "right = 'label .': not a list of ids": {"right": [[1], *right[1:]]},
            "coverage = 1": {"coverage": 1},
            "sets = 'all': not known": {"sets": "all"},
            "sets = 'labels': right answers are ids here": {"right": [[1]] * 60, "sets": "labels"},
            "error = 0.001: no confidence keeps it with an assurance of 0.9": {"error": 0.001},
            "error = 2: not a probability": {"error": 2},
        }.items():
            with pytest.raises(ValueError, match=message):
                index.calibrate(questions, **{"right": right, **arguments})
        assert index.promise is None

    def test_labels_may_be_arrays(self):
        generator = torch.Generator().manual_seed(0)
        gallery, labels = seen(50, generator)
        numbers = [int(label[-1]) for label in labels]
        index = CredibleIndex.build(gallery, metadata=[{"label": number} for number in numbers])
        for right in (numbers, np.array(numbers), torch.tensor(numbers), np.array(numbers, float)):
            assert index.calibrate(gallery, right, 0.9).covered >= 0.9


@pytest.mark.parametrize("sets", ["labels", "ranked"])
@pytest.mark.parametrize("modes", [1, 2])
def test_a_question_that_is_an_item_does_not_answer_itself(sets, modes):
    """Labels that mean nothing: a set that finds the question itself would be small, and hold nothing for others."""
    generator = torch.Generator().manual_seed(0)

    def noise(n):
        mu = torch.nn.functional.normalize(torch.randn(n, modes, 8, generator=generator), dim=-1)
        weights = torch.tensor([0.7, 0.3]).log().expand(n, 2)
        components = VonMisesFisher(mu, torch.full((n, modes), 30.0))
        q = components[:, 0] if modes == 1 else VMFMixture(weights, components)
        return q, torch.randint(5, (n,), generator=generator).tolist()

    items, labels = noise(300)
    index = CredibleIndex.build(items, metadata=[{"label": label} for label in labels])
    index.calibrate(items, labels, 0.9, sets=sets)
    new, right = noise(300)
    answers = index.answer_sets(new)
    assert np.mean([holds(answer, r) for answer, r in zip(answers, right, strict=True)]) > 0.85
