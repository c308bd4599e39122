"""What the API takes and gives. These classes are its OpenAPI description."""

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

By = Literal["credible", "match", "nearest"]
Order = Literal["surest", "least-sure", "added"]
# JSON has no infinity; this word is one to Python's float() and to JavaScript's Number().
Certainty = Annotated[float, Field(ge=0)] | Literal["Infinity"]

LONGEST_TEXT = 10_000
LONGEST_VECTOR = 16_384


def certainty(kappa: float) -> Certainty:
    return "Infinity" if math.isinf(kappa) else float(kappa)


class Problem(BaseModel):
    """What went wrong, and the way out."""

    detail: str


class Health(BaseModel):
    status: Literal["ok"] = "ok"


class Item(BaseModel):
    """One item of the collection."""

    key: str = Field(description='the id as JSON text, which tells 7 from "7"; every parameter `id` takes it')
    id: str | int
    kappa: Certainty
    surer_than: float = Field(description="share of the collection with a smaller kappa")
    label: str | None
    text: str | None
    image: bool = Field(description="whether /api/image may have a picture of it")
    metadata: dict[str, Any]


class Hit(Item):
    """An item that answers a query, and why."""

    cosine: float = Field(description="of its mu with the query's")
    match_probability: float = Field(description="that both show the same, under both posteriors")


class Items(BaseModel):
    """A page of items."""

    total: int
    offset: int
    items: list[Item]


class Label(BaseModel):
    label: str
    count: int


class CertaintyDistribution(BaseModel):
    """A histogram of kappa with bins of equal ratio; 0 counts in the first bin, infinity in the last."""

    edges: list[float]
    counts: list[int]
    quantiles: dict[str, Certainty]


class CollectionInfo(BaseModel):
    name: str
    items: int
    dim: int
    certainty: CertaintyDistribution
    labels: list[Label] = Field(description="the most frequent first, at most 200")
    images: bool
    texts: bool
    model: Literal["images", "features", "text"] | None = Field(description="what the model, if any, can embed")
    model_features: int | None = Field(description="how many numbers make an item, where the model takes features")
    kernel: str
    exact: bool = Field(description="false where the index searches approximately")
    upload_bytes: int
    pixels: int


class Level(BaseModel):
    """One credible set: the items whose cosine with the query reaches `cosine`."""

    p: float
    cosine: float
    size: int


class Query(BaseModel):
    """The posterior that was asked about."""

    kappa: Certainty
    surer_than: float
    mu: list[float]
    item: Item | None = Field(description="where the query is an item of the collection; it is not among its own hits")


class Answer(BaseModel):
    query: Query
    by: By
    p: float
    size: int | None = Field(description="of the whole answer, of which `hits` are the first; null where not known")
    hits: list[Hit]
    levels: list[Level] = Field(description='credible sets of other levels; empty unless by is "credible"')


class RejectCurve(BaseModel):
    """How often an item's nearest neighbour has its label, among the surest share `kept` of the items."""

    kept: list[float]
    hits: list[float]
    items: int = Field(description="labelled items it was measured on")
    labelled: int = Field(description="labelled items there are")


class Posterior(BaseModel):
    model_config = ConfigDict(extra="forbid")
    # A little more than a unit vector's entries, for rounding; the length is checked against 1 afterwards.
    mu: list[Annotated[float, Field(ge=-1.01, le=1.01)]] = Field(min_length=2, max_length=LONGEST_VECTOR)
    kappa: Certainty


class Text(BaseModel):
    model_config = ConfigDict(extra="forbid")
    text: str = Field(min_length=1, max_length=LONGEST_TEXT)


class Features(BaseModel):
    model_config = ConfigDict(extra="forbid")
    features: list[Annotated[float, Field(allow_inf_nan=False)]] = Field(min_length=1, max_length=LONGEST_VECTOR)


class Ask(BaseModel):
    """How to search, in the query string of every question."""

    model_config = ConfigDict(extra="forbid")
    by: By = "credible"
    p: float = Field(0.95, ge=0.001, le=0.999, description="level of the credible set")
    limit: int = Field(60, ge=1, le=500, description="most hits")
    threshold: float = Field(0.5, ge=0, lt=1, description='least match probability, for by = "match"')
