"""The run folder that `aleator train` writes. It has everything that turns raw items into posteriors.

RUN/encoder/       the weights, for `load_encoder`
RUN/inputs.json    how raw items are prepared
RUN/config.json    settings, those given and those chosen; kernel, prior and maps of match probabilities
RUN/metrics.json   metrics on held-out items
RUN/README.md      the model card: data, figures, how to load it, limits
RUN/items.npz      digests of the items that were trained on, calibrated on and tested on
RUN/figures/       figures of these metrics
RUN/labels/        label probabilities, for `Run.label_probabilities`
RUN/novelty/       what items look like, for `Run.unlike`
RUN/baselines/     what its features can do without it, for `evaluate`; at most about 70 MB
RUN/training/      log and checkpoints
RUN/checksums.json SHA-256 of the files that decide an answer
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aleator.data import Inputs
from aleator.encoders import Encoder, load_encoder
from aleator.foundation import (
    digest,
    read_json,
    reject,
    require,
    save_figure,
    using_contents,
    verify_checksums,
    write_checksums,
    write_json,
)
from aleator.matching import MatchMaps, VMFKernel
from aleator.own_data.measuring.answers import Answers, load_answers, pack_answers, save_answers
from aleator.own_data.measuring.baselines import Baselines, save_baselines
from aleator.own_data.measuring.evaluation import figures
from aleator.own_data.measuring.views import posteriors_and_views
from aleator.own_data.runs.model_card import write_model_card
from aleator.posteriors import PosteriorBatch

_CHECKED = (
    "inputs.json",
    "config.json",
    "metrics.json",
    "items.npz",
    "encoder/encoder.json",
    "labels/labels.json",
    "novelty/novelty.json",
    "baselines/baselines.json",
)
_WAY_OUT = "restore the run from a copy, or train again in a new folder"


@dataclass(frozen=True)
class Run:
    """A trained encoder, and what is needed to use it on raw items.

    Args:
        folder: The run folder.
        encoder: The encoder.
        inputs: How raw items are prepared for the encoder.
        kernel: Kernel of calibrated match probabilities.
        prior: Share of matches among random pairs of the training collection.
        fingerprint: Checksum of the encoder. An index refuses posteriors with another fingerprint.
        config: Contents of config.json.
        metrics: Contents of metrics.json.
        answers: Label probabilities and novelty; empty for runs of older releases.
        maps: Maps of calibrated match probabilities. Runs of older versions have none: their prior alone was fitted.

    Examples:
        >>> import numpy as np, aleator as al
        >>> from pathlib import Path
        >>> from aleator.data import Inputs
        >>> from aleator.encoders import MLP
        >>> from aleator.own_data import Run
        >>> encoder = al.Encoder(MLP(3, [8]), dim=4)
        >>> run = Run(Path("run"), encoder, Inputs("features", features=3), al.VMFKernel(), 0.5, "abc", {}, {})
        >>> run.posteriors(np.eye(3)).kappa.shape
        torch.Size([3])
    """

    folder: Path
    encoder: Encoder
    inputs: Inputs
    kernel: VMFKernel
    prior: float
    fingerprint: str
    config: dict[str, Any]
    metrics: dict[str, Any]
    answers: Answers = field(default_factory=Answers)
    maps: MatchMaps = field(default_factory=MatchMaps)

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the labels of `label_probabilities`; empty if the run has none."""
        return () if self.answers.labels is None else self.answers.labels.names

    @property
    def columns(self) -> list[str] | None:
        """The columns of the table of numbers that the run was trained on, in order; None if it was no such table."""
        return self.config.get("data", {}).get("columns")

    def digest(self) -> str:
        """What the run is: a digest of all that decides its answers.

        Returns:
            32 hexadecimal digits, made from the encoder, the preparation of items, the calibration of match
            probabilities, label probabilities and novelty.
        """
        match = [float(self.kernel.kappa_pos), self.prior, self.maps.to_dict()]
        parts: list[Any] = [self.fingerprint, self.inputs.to_dict(), self.columns, match]
        for name, (facts, tensors) in sorted(pack_answers(self.answers).items()):
            parts += [name, facts, *(part for key in sorted(tensors) for part in (key, tensors[key].cpu().numpy()))]
        return digest(*parts)

    def label_probabilities(self, items: Any) -> Tensor:
        """Probability of each label, for raw items.

        Args:
            items: B items, as for `posteriors`.

        Returns:
            Probabilities, shape (B, C), in the order of `label_names`.

        Raises:
            ValueError: If an item cannot be read, or if the run has no label probabilities.
        """
        problem = "has no label probabilities: it learned from pairs or groups, or an older release trained it"
        way_out = "train again on classes or soft labels"
        if self.answers.labels is None:
            reject("run", str(self.folder), problem, way_out)
        return self.answers.labels.probabilities(self.posteriors(items))

    def unlike(self, items: Any) -> Tensor:
        """Which raw items are unlike anything that the run was trained on.

        Args:
            items: B items, as for `posteriors`.

        Returns:
            Flags, shape (B,).

        Raises:
            ValueError: If an item cannot be read, or if an older release trained the run.
        """
        novelty = self.posteriors_and_novelty(items)[1]
        if novelty is None:
            reject("run", str(self.folder), "cannot tell: an older release trained it", "train again")
        return novelty > 0

    def posteriors_and_novelty(self, items: Any) -> tuple[PosteriorBatch, Tensor | None]:
        """Posteriors of raw items, and how unlike the training items they are.

        Args:
            items: B items, as for `posteriors`.

        Returns:
            Posteriors, batch shape (B,), and `NoveltyDetector.excess`, shape (B,): positive for items that are unlike
            anything seen. None in its place for a run of an older release.

        Raises:
            ValueError: If an item cannot be read.
        """
        return self.encode(self._prepared(items))

    def encode(self, batch: Any) -> tuple[PosteriorBatch, Tensor | None]:
        """`posteriors_and_novelty` of items that are prepared already.

        Args:
            batch: B items as `Inputs.prepare` gives them, on the device of the encoder.

        Returns:
            Posteriors, batch shape (B,), and their novelty, shape (B,), or None. In float32 on the CPU.
        """
        q, views = posteriors_and_views(self.encoder, batch)
        return q, None if self.answers.novelty is None else self.answers.novelty.excess(views)

    @torch.inference_mode()
    def posteriors(self, items: Any) -> PosteriorBatch:
        """Posteriors of raw items.

        Args:
            items: B paths, bytes or images; rows of features (B, F); or B strings.

        Returns:
            Posteriors, batch shape (B,), in float32 on the CPU.

        Raises:
            ValueError: If an item cannot be read.
        """
        return self.encoder(self._prepared(items)).float().cpu()

    def _prepared(self, items: Any) -> Any:
        """Raw items as the encoder takes them, on its device."""
        batch = self.inputs.prepare(items)
        return batch.to(next(self.encoder.parameters()).device) if isinstance(batch, Tensor) else batch


def save_run(
    folder: Path,
    encoder: Encoder,
    inputs: Inputs,
    config: dict[str, Any],
    metrics: dict[str, Any],
    match: dict[str, Any],
    answers: Answers | None = None,
    draw: bool = True,
    baselines: Baselines | None = None,
) -> None:
    """Write a run folder. A folder that has metrics.json is complete; only checksums.json is written after it.

    Args:
        folder: The run folder.
        encoder: The trained encoder. It is moved to the CPU.
        inputs: How raw items are prepared for it.
        config: Settings and description of the data, for config.json.
        metrics: Metrics on held-out items, as `evaluate` returns them.
        match: "kappa_pos", "prior" and "maps" (as `MatchMaps.to_dict` gives them) of calibrated match probabilities.
        answers: Label probabilities and novelty, if there are any.
        draw: Whether to draw figures of the metrics.
        baselines: What the baselines learned, if there was a comparison.
    """
    encoder.to("cpu").save(folder / "encoder", overwrite=True)
    write_json(folder / "inputs.json", inputs.to_dict())
    write_json(folder / "config.json", config | {"match": match})
    save_answers(folder, answers or Answers())
    if baselines is not None:
        save_baselines(folder, baselines)
    if draw:
        (folder / "figures").mkdir(exist_ok=True)
        for name, figure in figures(metrics).items():
            save_figure(figure, folder / "figures" / f"{name}.png")
    write_model_card(folder, inputs.to_dict(), config, metrics)
    (folder / "checksums.json").unlink(missing_ok=True)
    write_json(folder / "metrics.json", metrics)
    write_run_checksums(folder)


def write_run_checksums(folder: Path) -> None:
    """Write the checksums of a finished run folder. Call it again after a change of its files.

    Args:
        folder: The run folder.
    """
    write_checksums(folder, _CHECKED)


def load_run(folder: str | Path, device: str | torch.device = "cpu") -> Run:
    """Load a finished run.

    Args:
        folder: A run folder that `aleator train` wrote.
        device: Where to load the encoder.

    Returns:
        The run.

    Raises:
        ValueError: If the folder is missing, or of a run that is not finished.
        DamagedFileError: If a file of it is damaged.

    Examples:
        >>> import numpy as np
        >>> from aleator.own_data import Settings, load_run, read_collection, train
        >>> np.save("x.npy", np.random.default_rng(0).standard_normal((80, 3)))
        >>> np.save("y.npy", np.arange(80) % 2)
        >>> _ = train(read_collection("x.npy", "y.npy"), "run", Settings(steps=1, width=8), device="cpu")
        >>> run = load_run("run")
        >>> run.inputs.features
        3
    """
    folder = Path(folder).expanduser()
    require(folder.is_dir(), "run", str(folder), "there is no such folder", "name one that `aleator train` made")
    inputs, config, metrics = (_read_part(folder, name) for name in ("inputs", "config", "metrics"))
    verify_checksums(folder, _WAY_OUT)
    encoder = load_encoder(folder / "encoder", device=device)
    with using_contents(folder, _WAY_OUT):
        return _make_run(folder, encoder, inputs, config, metrics)


def _make_run(folder: Path, encoder: Encoder, inputs: Any, config: Any, metrics: Any) -> Run:
    """The run, from the contents of its files."""
    return Run(
        folder=folder,
        encoder=encoder,
        inputs=Inputs.from_dict(inputs),
        kernel=VMFKernel(config["match"]["kappa_pos"]),
        prior=config["match"]["prior"],
        fingerprint=json.loads((folder / "encoder" / "encoder.json").read_text())["sha256"],
        config=config,
        metrics=metrics,
        answers=load_answers(folder),
        maps=MatchMaps.from_dict(config["match"].get("maps")),
    )


def _read_part(folder: Path, name: str) -> dict[str, Any]:
    """Contents of one JSON file of a run folder."""
    path = folder / f"{name}.json"
    problem = f"has no {name}.json: it is not a run of `aleator train`, or not finished"
    require(path.is_file(), "run", str(folder), problem, "finish it with the same `aleator train` command")
    return read_json(path, _WAY_OUT)
