"""What the API takes and returns. FastAPI makes the OpenAPI description from these classes."""

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from aleator.data import InputKind
from aleator.retrieval import SearchBy, SetsOf

Order = Literal["surest", "least-sure", "added"]
Finding = Literal["label-errors", "near-duplicates", "odd-ones"]
# JSON has no infinity. Python's float() and JavaScript's Number() both read this word as one.
Certainty = Annotated[float, Field(ge=0, strict=True)] | Literal["Infinity"]

# How to search, on the page: "promised" are the answer sets of a calibrated index.
AnswerBy = Literal[SearchBy, "promised"]

LONGEST_TEXT = 10_000
LONGEST_VECTOR = 16_384
LARGEST = 3.4e38  # in single precision


def certainty(kappa: float) -> Certainty:
    """A kappa as JSON can hold it."""
    return "Infinity" if math.isinf(kappa) else float(kappa)


class Problem(BaseModel):
    """What went wrong, and how to solve it."""

    detail: str


class Health(BaseModel):
    """The server is running."""

    status: Literal["ok"] = "ok"


class ItemView(BaseModel):
    """One item of the collection."""

    key: str = Field(description='The id as JSON text, so that 7 and "7" differ. Every parameter `id` accepts it.')
    id: str | int
    kappa: Certainty = Field(description="Certainty of the item: large for a clear item, small for an ambiguous one.")
    surer_than: float = Field(
        description="Share of the collection that is less certain: of its label where label probabilities are known, "
        "otherwise with a smaller kappa."
    )
    likeliest: float | None = Field(description="Probability of its likeliest label. Null if that is unknown.")
    label: str | None
    text: str | None
    image: bool = Field(description="Whether /api/image may have a picture of the item.")
    metadata: dict[str, Any]


class HitView(ItemView):
    """An item of an answer, with its scores."""

    cosine: float = Field(description="Cosine of the item's mu with the mu of the query; 1 is the same direction.")
    mode: int = Field(0, description="Number of the query's mode that the item belongs to; 0 if it has one.")
    match_probability: float = Field(
        description="Probability that item and query show the same: calibrated on hits of held-out questions, "
        "if the index was built from a run that was."
    )


class ItemPage(BaseModel):
    """A page of items."""

    total: int = Field(description="Number of items on all pages.")
    offset: int
    items: list[ItemView]


class FindingView(ItemView):
    """An item that an audit found, and why."""

    given: str | None = Field(description="Its label when the audit was made.")
    likelier: str | None = Field(description="Of a label error: the likeliest other label.")
    p_given: float | None = Field(description="Of a label error: probability of the label.")
    p_likelier: float | None = Field(description="Of a label error: probability of the likelier label.")
    group: int | None = Field(description="Of a near duplicate: number of its group.")
    labels_differ: bool | None = Field(description="Of a near duplicate: whether the labels of its group differ.")
    distance: float | None = Field(
        description="Of a near duplicate: distance to the nearest item. Of an odd one: the mean distance to its "
        "neighbours, in units of the usual one."
    )


class FindingPage(BaseModel):
    """A page of findings."""

    total: int = Field(description="Number of findings of this kind.")
    left_out: int = Field(
        description="Number of findings about items that the collection does not have, or whose label is another now."
    )
    offset: int
    items: list[FindingView]


class LabelCount(BaseModel):
    """A label, and the number of items that have it."""

    label: str
    count: int


class CertaintyDistribution(BaseModel):
    """A histogram of kappa. All bins have the same ratio; 0 counts in the first bin and infinity in the last."""

    edges: list[float]
    counts: list[int]
    quantiles: dict[str, Certainty]


class PromiseView(BaseModel):
    """What the index promises about answers to new questions that are like those of its calibration."""

    coverage: float = Field(description="Share of questions whose set holds a right answer.")
    questions: int = Field(description="Number of questions of the calibration.")
    sets: SetsOf = Field(description="One item of each possible label, or the nearest items.")
    mean_size: float = Field(description="Mean size of the sets of the calibration.")
    error: float | None = Field(description="Largest share of wrong ones among the first answers that are sure.")
    assurance: float | None = Field(description="Probability, over calibrations, that the error is kept.")


class CollectionInfo(BaseModel):
    """What the collection holds, and which questions the server can answer."""

    name: str
    key: str = Field(description="Tells the collection from others of its name. It says nothing else.")
    items: int = Field(description="Number of items.")
    dim: int = Field(description="Dimension of the posteriors.")
    certainty: CertaintyDistribution
    by_labels: bool = Field(
        description="Whether `surer_than` compares the certainty of the label, and not kappa alone. An item that shows "
        "much but lies between two labels has a large kappa and an uncertain label."
    )
    labels: list[LabelCount] = Field(description="The most frequent labels first, at most 200.")
    images: bool = Field(description="Whether items have pictures.")
    texts: bool = Field(description="Whether items have texts.")
    model: InputKind | None = Field(description="What the model can embed; null without a model.")
    model_features: int | None = Field(description="How many numbers make an item, if the model takes features.")
    kernel: str = Field(description="Kernel of the match probabilities.")
    exact: bool = Field(description="False if the index searches approximately.")
    promise: PromiseView | None = Field(description="Null if the index is not calibrated, or the promise is void.")
    promise_is_void: bool = Field(description="Whether the items have changed since the index was calibrated.")
    findings: dict[Finding, int] = Field(description="Number of findings of each kind; empty without an audit.")
    upload_bytes: int = Field(description="Largest upload, in bytes.")
    pixels: int = Field(description="Most pixels of an uploaded image.")


class CredibleLevel(BaseModel):
    """One credible set: the items whose cosine with the query is at least `cosine`."""

    p: float = Field(description="Level of the credible set.")
    cosine: float | None = Field(
        description="Null if the query or items have several modes: the set is the first hits."
    )
    size: int = Field(description="Number of items in the set.")


class LikelyLabel(BaseModel):
    """A label that a query could have."""

    label: str
    probability: float = Field(ge=0, le=1)


class QueryView(BaseModel):
    """The posterior that was asked about."""

    kappa: Certainty
    surer_than: float = Field(description="Share of the collection that is less certain.")
    labels: list[LikelyLabel] = Field(description="What it could be: the likeliest labels first. Empty if unknown.")
    unlike: bool | None = Field(description="Whether it is unlike anything seen in training. Null if unknown.")
    mu: list[float] = Field(description="The likeliest direction.")
    modes: list[float] = Field([], description="Weights of the modes, if there are several: either this, or that.")
    item: ItemView | None = Field(
        description="The item, if the query is an item of the collection. It is not one of its own hits."
    )


class Answer(BaseModel):
    """The items that a query could be."""

    query: QueryView
    by: AnswerBy
    p: float
    size: int | None = Field(description="Number of items in the whole answer; `hits` may be fewer. Null if unknown.")
    hits: list[HitView]
    levels: list[CredibleLevel] = Field(
        description='Sizes of the credible sets of all levels; empty unless by is "credible".'
    )
    sure: bool | None = Field(
        description="False if the first hit is not sure enough to be the answer, by the error that was promised. "
        'Null unless by is "promised".',
    )


class RejectCurve(BaseModel):
    """Share of items whose nearest neighbour has the same label, among the most certain items."""

    kept: list[float] = Field(description="Share of the items that is kept, the most certain ones.")
    hits: list[float] = Field(description="Share of the kept items whose nearest neighbour has the same label.")
    items: int = Field(description="Number of labelled items that were asked about.")
    labelled: int = Field(description="Number of labelled items in the collection.")


class PosteriorQuestion(BaseModel):
    """A posterior to ask about."""

    model_config = ConfigDict(extra="forbid")
    # A little more than the entries of a unit vector, for rounding. The length is checked later.
    mu: list[Annotated[float, Field(ge=-1.01, le=1.01, strict=True)]] = Field(min_length=2, max_length=LONGEST_VECTOR)
    kappa: Certainty


class TextQuestion(BaseModel):
    """A text to ask about."""

    model_config = ConfigDict(extra="forbid")
    text: str = Field(min_length=1, max_length=LONGEST_TEXT)


class FeaturesQuestion(BaseModel):
    """Features to ask about."""

    model_config = ConfigDict(extra="forbid")
    features: list[Annotated[float, Field(ge=-LARGEST, le=LARGEST, strict=True)]] = Field(
        min_length=1, max_length=LONGEST_VECTOR
    )


class SearchOptions(BaseModel):
    """How to search; in the query string of every question."""

    model_config = ConfigDict(extra="forbid")
    by: AnswerBy = Field(
        "credible",
        description="Which items belong to the answer: those in the credible set of the query, "
        "those with a high match probability, the nearest ones, or a set that keeps the promise of the index.",
    )
    p: float = Field(0.95, ge=0.001, le=0.999, description="Level of the credible set.")
    limit: int = Field(60, ge=1, le=500, description="Most hits in the answer.")
    threshold: float = Field(0.5, ge=0, lt=1, description='Least match probability, for by = "match".')
