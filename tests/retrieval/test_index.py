"""`CredibleIndex` returns what was stored, and refuses what it must not store, with every store."""

import math

import numpy as np
import psycopg
import pytest
import torch

from aleator import VMFMixture, VonMisesFisher, ZonalKernel
from aleator.matching import LogOddsMap, MatchMaps
from aleator.retrieval import CredibleIndex

NASTY = [
    "'; DROP TABLE items; --",
    '"; DROP SCHEMA public CASCADE; --',
    "../../etc/passwd",
    "/absolute",
    "a\0b",
    "\ud800",
    "%s %(x)s {schema} $1",
    "\n\r\t",
    "",
    "NULL",
    "{}",
    "ß漢字🎲",
]


def some(n: int, dim: int = 6, seed: int = 0) -> VonMisesFisher:
    generator = torch.Generator().manual_seed(seed)
    mu = torch.nn.functional.normalize(torch.randn(n, dim, generator=generator), dim=-1)
    return VonMisesFisher(mu, torch.rand(n, generator=generator) * 50)


def raw(mu, kappa) -> VonMisesFisher:
    """Posteriors that nobody has checked."""
    return VonMisesFisher(mu, kappa, validate_args=False)


def content(index):
    return index.search(VonMisesFisher.uniform(index.dim, (1,)))


@pytest.fixture
def index(location):
    built = CredibleIndex.build(some(5), ["a", "b", 3, 4, 5], [{"n": i} for i in range(5)], location=location)
    yield built
    built.close()


def test_ids_and_metadata_come_back_as_they_went_in(location):
    metadata = [{key: [value, {"deep": key}], "n": 1.5} for key, value in zip(NASTY, reversed(NASTY), strict=True)]
    index = CredibleIndex.build(some(len(NASTY)), NASTY, metadata, location=location)
    index.add(some(3, seed=1), [7, "7", 2**80], [{"x": 1e308}, None, {"y": -0.0, "z": [True, None]}])
    index.close()
    with CredibleIndex.open(location) as index:
        found = {hit.id: hit.metadata for hit in content(index)[0]}
        assert found == {
            **dict(zip(NASTY, metadata, strict=True)),
            7: {"x": 1e308},
            "7": {},
            2**80: {"y": -0.0, "z": [True, None]},
        }
        for nasty in NASTY:
            hits = index.search(some(1), by="nearest", limit=20, filter={nasty: {"ne": nasty}})[0]
            assert [hit.id for hit in hits] == [id for id in (hit.id for hit in hits) if nasty in found[id]]
        index.remove(NASTY)
        assert len(index) == 3


def test_an_index_keeps_prior_and_maps(location):
    maps = MatchMaps(LogOddsMap((0.0, 1.0), (0.0, 2.0)), LogOddsMap((0.0, 1.5), (-1.0, 0.1)))
    CredibleIndex.build(some(5), location=location, prior=0.2, maps=maps).close()
    with CredibleIndex.open(location) as index:
        assert (index.prior, index.maps) == (0.2, maps)
        before = content(index)
        del index.store.config["maps"]  # as in an index of an older version
        assert not index.maps.calibrated
        assert content(index) != before
    with CredibleIndex.build(some(5), prior=0.2) as plain:
        assert not plain.maps.calibrated


@pytest.mark.parametrize("number", [np.float32, torch.tensor])
def test_numbers_of_numpy_and_torch_are_stored(number, location):
    CredibleIndex.build(
        some(5), location=location, prior=number(0.25), recall=number(0.5), exact_below=np.int64(7)
    ).close()
    with CredibleIndex.open(location) as index:
        assert index.prior == 0.25
        assert (index.store.config["recall"], index.store.config["exact_below"]) == (0.5, 7)


def test_a_tilde_is_the_home_of_the_user(tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))  # its name on Windows
    monkeypatch.chdir(tmp_path)
    CredibleIndex.build(some(5), location="~/gallery").close()
    with pytest.raises(ValueError, match="already holds an index"):
        CredibleIndex.build(some(5), location="~/gallery")
    with CredibleIndex.open("~/gallery") as index:
        index.save("~/moved")
        assert index.location == str(home / "moved")
    assert {path.name for path in home.iterdir()} == {"gallery", "moved"}
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_the_name_of_an_index_is_only_a_name(server_url):
    for name in ("public", "pg_catalog", "Ünïcode-2_x"):
        location = f"{server_url}#{name}"
        CredibleIndex.build(some(3), location=location, replace=True).close()
        with CredibleIndex.open(location) as index:
            assert len(index) == 3
        with psycopg.connect(server_url, autocommit=True) as connection:
            connection.execute(f'DROP SCHEMA "aleator_{name}" CASCADE')
            assert connection.execute("SELECT to_regnamespace('public')").fetchone()[0] is not None
    for name in ("x" * 51, "a\0b", 'x"; DROP SCHEMA public CASCADE; --', "%s", "{schema}", "a b"):
        with pytest.raises(ValueError, match="not a name for an index"):
            CredibleIndex.open(f"{server_url}#{name}")
    with pytest.raises(ValueError, match="is not an index in this database"):
        CredibleIndex.open(f"{server_url}#nowhere")


REFUSED_ADDITIONS = {
    "wrong dimension": (some(1, dim=7), ["x"], None, "dimensions"),
    "nan": (raw(torch.full((1, 6), math.nan), torch.ones(1)), ["x"], None, "unit vector of finite numbers"),
    "infinite": (raw(torch.tensor([[math.inf, 0, 0, 0, 0, 0]]), torch.ones(1)), ["x"], None, "unit vector"),
    "zero vector": (raw(torch.zeros(1, 6), torch.ones(1)), ["x"], None, "unit vector"),
    "not a unit vector": (raw(torch.ones(1, 6), torch.ones(1)), ["x"], None, "unit vector"),
    "nan kappa": (raw(torch.eye(1, 6), torch.tensor([math.nan])), ["x"], None, "negative or NaN"),
    "negative kappa": (raw(torch.eye(1, 6), torch.tensor([-1.0])), ["x"], None, "negative or NaN"),
    "one bad among good": (
        raw(torch.cat([torch.eye(2, 6), torch.ones(1, 6)]), torch.ones(3)),
        ["x", "y", "z"],
        None,
        "unit vector",
    ),
    "a tensor": (torch.eye(1, 6), ["x"], None, "pass a VonMisesFisher or VMFMixture"),
    "another batch shape": (VonMisesFisher(torch.eye(6)[None, :2], torch.ones(1, 2)), ["x"], None, "batch shape"),
    "duplicate in the call": (some(2), ["x", "x"], None, "given twice"),
    "duplicate in the index": (some(2), ["x", "b"], None, "already in the index"),
    "too few ids": (some(2), ["x"], None, "2 posteriors"),
    "a float id": (some(1), [1.5], None, "cannot be a float"),
    "a boolean id": (some(1), [True], None, "cannot be a bool"),
    "no id": (some(1), [None], None, "cannot be a NoneType"),
    "a long id": (some(1), ["x" * 2000], None, "bytes as JSON"),
    "nan in metadata": (some(1), ["x"], [{"n": math.nan}], "cannot be stored as JSON"),
    "an object in metadata": (some(1), ["x"], [{"n": object()}], "cannot be stored as JSON"),
    "a number as key": (some(1), ["x"], [{1: "n"}], "cannot be stored as JSON"),
    "metadata that is no dict": (some(1), ["x"], ["text"], "cannot be stored as JSON"),
    "too little metadata": (some(2), ["x", "y"], [{}], "2 posteriors"),
    "one dict for all": (some(2), ["x", "y"], {"a": 1}, "one dict"),
}


@pytest.mark.parametrize("case", REFUSED_ADDITIONS)
def test_bad_additions_change_nothing(index, case):
    posteriors, ids, metadata, message = REFUSED_ADDITIONS[case]
    before = content(index)
    with pytest.raises(ValueError, match=message):
        index.add(posteriors, ids, metadata)
    assert content(index) == before
    assert len(index) == 5
    assert "x" not in index


def test_metadata_that_contains_itself_is_refused(index):
    loop: dict = {}
    loop["self"] = loop
    with pytest.raises(ValueError, match="cannot be stored as JSON"):
        index.add(some(1), ["x"], [loop])


def test_removals_happen_together_or_not_at_all(index):
    before = content(index)
    for ids, message in (
        (["a", "nobody"], "'nobody': not in the index"),
        (["a", "a"], "given twice"),
        (["a", "3"], "'3': not in the index"),
        ("a", "one string"),
        ([b"a"], "cannot be a bytes"),
    ):
        with pytest.raises(ValueError, match=message):
            index.remove(ids)
        assert content(index) == before
    index.remove(["a", 3])
    assert len(index) == 3


def test_another_encoder_is_refused(location):
    built = CredibleIndex.build(some(3), location=location, fingerprint="one")
    before = content(built)
    with pytest.raises(ValueError, match="made by the encoder one;"):
        built.add(some(1), ["x"], fingerprint="two")
    with pytest.raises(ValueError, match="made by the encoder one;"):
        built.search(some(1), fingerprint="two")
    built.close()
    with pytest.raises(ValueError, match="made by the encoder one;"):
        CredibleIndex.open(location, fingerprint="two")
    with CredibleIndex.open(location, fingerprint="one") as index:
        assert content(index) == before
        index.add(some(1), ["x"], fingerprint="one")
        assert len(index.search(some(1), by="nearest", fingerprint="one")[0]) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "magic"}, "not known"),
        ({"p": 0.0}, "level"),
        ({"p": 1.0}, "level"),
        ({"p": math.nan}, "level"),
        ({"p": None}, "level"),
        ({"p": "0.5"}, "level"),
        ({"by": "match", "threshold": None}, "threshold"),
        ({"limit": 0}, "limit = 0: not a positive whole number; pass 1 or more, or None for all"),
        ({"limit": 2.5}, r"limit = 2\.5: not a positive whole number"),
        ({"by": "match", "threshold": 1.0}, "threshold"),
        ({"by": "match", "prior": 0.0}, "prior"),
        ({"threshold": 0.3}, r'threshold = 0\.3: has no effect with by="credible"; leave it out, or pass by="match"'),
        ({"by": "match", "p": 0.3}, r'p = 0\.3: has no effect with by="match"; leave it out, or pass by="credible"'),
        ({"by": "nearest", "p": 0.3}, "no effect"),
        ({"by": "nearest", "threshold": 0.3}, "no effect"),
        ({"filter": ["n"]}, "is not a dict"),
        ({"filter": {"n": {"$where": "1"}}}, "not known"),
        ({"filter": {"n": {"gte": None}}}, "has no order"),
        ({"filter": {"n": {"gt": True}}}, "has no order"),
        ({"filter": {"n": {"in": "abc"}}}, "not a list"),
        ({"filter": {"n": {}}}, "has no condition"),
        ({"filter": {3: 1}}, "not a metadata key"),
    ],
)
def test_searches_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        CredibleIndex.build(some(3)).search(some(1), **options)


@pytest.mark.parametrize(
    ("by", "level", "of_numpy"),
    [
        ("credible", {"p": 0.9}, {"p": np.float32(0.9)}),
        ("nearest", {}, {}),
        ("match", {"threshold": 0.01}, {"threshold": torch.tensor(0.01)}),
    ],
)
def test_searches_take_numbers_of_numpy_and_torch(by, level, of_numpy):
    index, queries = CredibleIndex.build(some(30)), some(4)
    plain = index.search(queries, limit=2, by=by, prior=0.1, **level)
    of_numpy = index.search(queries, limit=np.int64(2), by=by, prior=torch.tensor(0.1), **of_numpy)
    assert [[hit.id for hit in hits] for hits in of_numpy] == [[hit.id for hit in hits] for hits in plain]
    assert all(len(hits) <= 2 for hits in plain)


@pytest.mark.parametrize("number", [-1, 2.5, math.nan, math.inf, "many"])
def test_a_size_of_exact_search_that_is_no_number_of_items(number):
    with pytest.raises(ValueError, match=r"exact_below = .*: not a number of items; pass for example 100_000"):
        CredibleIndex.build(some(3), exact_below=number)


@pytest.mark.parametrize("fingerprint", [5, b"one", ["one"]])
def test_a_fingerprint_is_a_text(fingerprint):
    with pytest.raises(
        ValueError, match=r"fingerprint = '(int|bytes|list)': not a str; pass a text that names the encoder"
    ):
        CredibleIndex.build(some(3), fingerprint=fingerprint)


def test_a_kappa_that_float32_cannot_hold_is_refused(index):
    """Stored as inf it would be a point mass, which is another posterior."""
    largest = torch.finfo(torch.float32).max
    for kappa in (1e300, 1.001 * largest):
        double = VonMisesFisher(torch.eye(1, 6, dtype=torch.float64), kappa)
        mixture = VMFMixture(torch.zeros(1, 1, dtype=torch.float64), double[:, None])
        for posteriors in (double, mixture):
            with pytest.raises(ValueError, match=r"posteriors\.kappa = .*: too large for float32.* math\.inf"):
                CredibleIndex.build(posteriors)
        with pytest.raises(ValueError, match=r"posteriors\.kappa = .*: too large for float32"):
            index.add(double)
        assert len(index) == 5
        assert index.search(double, by="nearest")[0]  # a query is not stored
    for kappa in (largest, math.inf):
        index.add(VonMisesFisher(torch.eye(1, 6, dtype=torch.float64), kappa), [str(kappa)])
    assert max(hit.kappa for hit in content(index)[0]) == math.inf


def test_queries_are_checked_like_items():
    index = CredibleIndex.build(some(3))
    for bad in (some(1, dim=7), raw(torch.full((1, 6), math.nan), torch.ones(1)), torch.eye(1, 6)):
        with pytest.raises(ValueError, match="queries"):
            index.search(bad)


def test_a_kernel_that_is_code_is_not_stored():
    kernel = ZonalKernel(lambda t: torch.exp(5 * t))
    with pytest.raises(ValueError, match="cannot be stored"):
        CredibleIndex.build(some(3), kernel=kernel)
    assert len(CredibleIndex.build(some(3)).search(some(2), by="nearest", kernel=kernel)) == 2


def test_an_index_is_not_built_over_another_or_over_anything_else(location, tmp_path):
    CredibleIndex.build(some(3), location=location).close()
    with pytest.raises(ValueError, match="already holds an index"):
        CredibleIndex.build(some(4), location=location)
    with CredibleIndex.open(location) as index:
        assert len(index) == 3
    CredibleIndex.build(some(4, dim=9), location=location, replace=True).close()
    with CredibleIndex.open(location) as index:
        assert (len(index), index.dim) == (4, 9)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("text")
    with pytest.raises(ValueError, match="not an index"):
        CredibleIndex.build(some(3), location=tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_memory_needs_a_place_to_be_saved_in():
    with pytest.raises(ValueError, match="name a folder"):
        CredibleIndex.build(some(3)).save()


def test_a_password_is_not_shown(server_url, url):
    index = CredibleIndex.build(some(2), location=url.replace("postgres:@", "postgres:secret@"))
    assert "secret" not in repr(index)
    index.close()


def test_what_is_stored_is_not_the_callers_memory():
    posteriors = some(4)
    index = CredibleIndex.build(posteriors)
    before = content(index)
    posteriors.mu.zero_()
    posteriors.kappa.zero_()
    assert content(index) == before


def test_an_empty_index_is_an_index(location):
    index = CredibleIndex.build(some(0), location=location)
    assert index.dim == 6
    for by in ("credible", "match", "nearest"):
        assert index.search(some(2), by=by) == [[], []]
    assert index.add(some(2)) == [0, 1]
    index.save()
    index.remove([0, 1])
    index.save()
    assert index.search(some(1)) == [[]]
    assert len(index) == 0
    index.close()


def test_new_ids_are_none_that_the_index_holds(location):
    """Whatever integers the user has taken, also those that the store would propose next."""
    mine = [5, 6, *range(9, 25), 2**80]
    with CredibleIndex.build(some(len(mine)), mine, location=location) as index:
        held = set(mine)
        for count in (3, 1, 20, 1):
            new = index.add(some(count, seed=count))
            assert len(set(new)) == count
            assert not held & set(new)
            held |= set(new)
            assert len(index) == len(held)
        with pytest.raises(ValueError, match=f"ids = {new[0]}: already in the index"):
            index.add(some(1), new)
        index.save()
        assert {hit.id for hit in content(index)[0]} == held


def test_new_ids_of_two_who_add_at_once_differ(location):
    CredibleIndex.build(some(2), location=location).close()
    with CredibleIndex.open(location) as one, CredibleIndex.open(location) as other:
        propose = one.store.reserve_ids

        def propose_and_let_the_other_add(count):
            ids = propose(count)
            other.add(some(3, seed=1), ids)
            return ids

        one.store.reserve_ids = propose_and_let_the_other_add
        assert len({*one.add(some(3, seed=2)), *other.add(some(3, seed=3))}) == 6
        assert len(one) == len(other) == 11


def test_additions_without_ids_that_fail_for_another_reason_fail(index, monkeypatch):
    def no_space(items):
        raise ValueError("no space")

    monkeypatch.setattr(index.store, "insert", no_space)
    with pytest.raises(ValueError, match="no space"):
        index.add(some(2))


def test_what_is_no_store_is_refused():
    with pytest.raises(ValueError, match=r"store = 'int': not a store; make an index with CredibleIndex\.build"):
        CredibleIndex(8)
