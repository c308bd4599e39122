"""What `aleator train` leaves behind: a folder with all that turns raw items into posteriors.

RUN/encoder/       the weights, for `load_encoder`
RUN/inputs.json    how raw items are prepared
RUN/config.json    what was asked for and what was chosen, with the kernel and prior of match probabilities
RUN/metrics.json   how it did on the held-out items
RUN/figures/       the same, to look at
RUN/training/      logs and checkpoints
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from aleator.data import Inputs
from aleator.encoders import Encoder, load_encoder
from aleator.foundation import reject, require, write_json
from aleator.matching import VMFKernel
from aleator.own_data.evaluation import figures
from aleator.posteriors import VonMisesFisher


@dataclass(frozen=True)
class Run:
    """A trained encoder with what belongs to it. `kernel` and `prior` make its match probabilities calibrated."""

    folder: Path
    encoder: Encoder
    inputs: Inputs
    kernel: VMFKernel
    prior: float
    fingerprint: str
    config: dict[str, Any]
    metrics: dict[str, Any]

    @torch.inference_mode()
    def posteriors(self, items: Any) -> VonMisesFisher:
        """B raw items (paths, bytes, images, rows or strings) -> B posteriors, on the CPU."""
        batch = self.inputs.prepare(items)
        if isinstance(batch, torch.Tensor):
            batch = batch.to(next(self.encoder.parameters()).device)
        return self.encoder(batch).float().cpu()


def save_run(
    folder: Path,
    encoder: Encoder,
    inputs: Inputs,
    config: dict[str, Any],
    metrics: dict[str, Any],
    match: dict[str, float],
) -> None:
    """Write a run's folder; metrics.json comes last, and its presence says that the run is whole."""
    encoder.to("cpu").save(folder / "encoder", overwrite=True)
    write_json(folder / "inputs.json", inputs.to_dict())
    write_json(folder / "config.json", config | {"match": match})
    (folder / "figures").mkdir(exist_ok=True)
    for name, figure in figures(metrics).items():
        figure.savefig(folder / "figures" / f"{name}.png")
    write_json(folder / "metrics.json", metrics)


def load_run(folder: str | Path, device: str | torch.device = "cpu") -> Run:
    """The run in a folder. One that is not finished is refused: training goes on with the same `aleator train`."""
    folder = Path(folder).expanduser()
    require(folder.is_dir(), "run", str(folder), "there is no such folder", "name one that `aleator train` made")
    facts = {}
    for name in ("inputs", "config", "metrics"):
        path = folder / f"{name}.json"
        require(
            path.is_file(),
            "run",
            str(folder),
            f"has no {name}.json: it is no run of `aleator train`, or not finished",
            "finish it with the same `aleator train` command",
        )
        try:
            facts[name] = json.loads(path.read_text())
        except ValueError:
            reject("run", str(folder), f"its {name}.json is damaged", "restore it, or train again in a new folder")
    encoder = load_encoder(folder / "encoder", device=device)
    match = facts["config"]["match"]
    return Run(
        folder=folder,
        encoder=encoder,
        inputs=Inputs.from_dict(facts["inputs"]),
        kernel=VMFKernel(match["kappa_pos"]),
        prior=match["prior"],
        fingerprint=json.loads((folder / "encoder" / "encoder.json").read_text())["sha256"],
        config=facts["config"],
        metrics=facts["metrics"],
    )
