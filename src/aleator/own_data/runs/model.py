"""`AleatorModel`: a trained model in the form that Python users know. Load it, encode items, save it, share it."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aleator.encoders import Encoder, find_model, hub_answers
from aleator.foundation import CountBar, read_json, reject, require, require_count, require_new_folder, resolve_device
from aleator.own_data.collection.reading_ahead import BATCH_SIZES, prefetched, spans
from aleator.own_data.collection.used_items import FILE as USED_ITEMS
from aleator.own_data.runs.model_card import write_model_card
from aleator.own_data.runs.onnx_export import export_onnx
from aleator.own_data.runs.run import Run, load_run, save_run, write_run_checksums
from aleator.posteriors import PosteriorBatch

_PARTS = ("inputs", "config", "metrics")  # the JSON files of a run folder
_PRIVATE = ("command", "commit")  # parts of the provenance that name folders of this machine


class AleatorModel:
    """A trained model: raw items in, posteriors out.

    `aleator train`, `aleator.own_data.train` and `AleatorClassifier.to_model` make one; `from_pretrained` loads it.

    Args:
        run: A finished run, as `load_run` and `train` return it.

    Examples:
        >>> import numpy as np, aleator as al
        >>> from aleator.own_data import Settings, read_collection, train
        >>> np.save("x.npy", np.random.default_rng(0).standard_normal((80, 3)))
        >>> np.save("y.npy", np.arange(80) % 2)
        >>> _ = train(read_collection("x.npy", "y.npy"), "run", Settings(steps=1, width=8), device="cpu")
        >>> model = al.AleatorModel.from_pretrained("run", device="cpu")
        >>> model.encode(np.eye(3))
        VonMisesFisher(batch_shape=(3,), dim=8, dtype=torch.float32)
        >>> model.label_names
        ('0', '1')
    """

    def __init__(self, run: Run):
        self.run = run

    @classmethod
    def from_pretrained(cls, name: str | os.PathLike[str], device: str = "auto") -> "AleatorModel":
        """Load a model.

        Args:
            name: A run folder of `aleator train`, a folder of `save_pretrained`, or a name on the Hugging Face hub.
            device: Where to load it: "auto", "cpu", "cuda" or "cuda:1", for example.

        Returns:
            The model.

        Raises:
            ValueError: If there is no such model, if it is damaged, or if it is on the hub and the hub does not answer.
        """
        folder = find_model(os.fspath(name))
        if not Path(folder).is_dir():
            folder = _download(folder)
        return cls(load_run(folder, device=resolve_device(device)))

    @property
    def encoder(self) -> Encoder:
        """The torch module, from prepared inputs to posteriors."""
        return self.run.encoder

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return next(self.run.encoder.parameters()).device

    @property
    def dim(self) -> int:
        """D, the dimension of the posteriors."""
        return self.run.encoder.dim

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the labels of `label_probabilities`; empty if the model learned from groups or pairs."""
        return self.run.label_names

    def encode(self, items: Any, batch_size: int | None = None, show_progress: bool | None = None) -> PosteriorBatch:
        """Posteriors of raw items, a batch at a time.

        Args:
            items: Images: paths, bytes, PIL images, arrays (H, W[, 3]) or tensors (3, H, W) of uint8, mixed as you
                like. Texts: strings. Features: an array (N, F), or vectors (F,). A single item is taken, too.
            batch_size: Number of items in a batch. Default: 64 images or texts, 4096 rows of features.
            show_progress: Whether to show a progress bar. Default: on a terminal, if there are several batches.

        Returns:
            Posteriors in float32 on the CPU, batch shape (N,): `VonMisesFisher`, or `VMFMixture` if the model has
            several modes. Batch shape () for a single item.

        Raises:
            ValueError: If there is no item, or one cannot be read. The error names it.
        """
        single = _is_single(items, self.run.inputs.kind)
        items = [items] if single else items
        q = PosteriorBatch.cat([self._posteriors(part) for part in self._batches(items, batch_size, show_progress)])
        return q[0] if single else q

    def label_probabilities(
        self, items: Any, batch_size: int | None = None, show_progress: bool | None = None
    ) -> Tensor:
        """Which labels the items could have.

        Args:
            items: Items, as for `encode`.
            batch_size: Number of items in a batch. Default: as for `encode`.
            show_progress: Whether to show a progress bar. Default: as for `encode`.

        Returns:
            Probabilities, shape (N, C) or, for a single item, (C,), in the order of `label_names`.

        Raises:
            ValueError: If an item cannot be read, or if the model learned from groups or pairs.
        """
        model = self.run.answers.labels
        if model is None:
            problem = "has no label probabilities: it learned from pairs or groups, or an older release trained it"
            reject("model", str(self.run.folder), problem, "train again on classes or soft labels")
        q = self.encode(items, batch_size, show_progress)
        return model.probabilities(q) if len(q.batch_shape) else model.probabilities(q.unsqueeze(0))[0]

    def unlike(self, items: Any, batch_size: int | None = None) -> Tensor:
        """Which items are unlike anything that the model was trained on, such as a blank image.

        Args:
            items: Items, as for `encode`.
            batch_size: Number of items in a batch. Default: as for `encode`.

        Returns:
            Booleans, shape (N,); shape () for a single item.

        Raises:
            ValueError: If an item cannot be read, or if an older release trained the model.
        """
        single = _is_single(items, self.run.inputs.kind)
        parts = self._batches([items] if single else items, batch_size, show=False)
        flags = torch.cat([self._flags(part) for part in parts])
        return flags[0] if single else flags

    def save_pretrained(self, folder: str | os.PathLike[str]) -> Path:
        """Save the model, with its model card, for `from_pretrained`. Training logs and checkpoints are left out.

        Args:
            folder: A new or empty folder.

        Returns:
            The folder.

        Raises:
            ValueError: If the folder holds something.
        """
        path = Path(folder).expanduser()
        require_new_folder("folder", path)
        path.mkdir(parents=True, exist_ok=True)
        run, device = self.run, self.device
        try:
            save_run(path, run.encoder, run.inputs, run.config, run.metrics, run.config["match"], run.answers)
        finally:
            run.encoder.to(device)  # saving moved it to the CPU
        if (run.folder / USED_ITEMS).is_file():
            shutil.copy2(run.folder / USED_ITEMS, path / USED_ITEMS)
            write_run_checksums(path)
        return path

    def push_to_hub(
        self,
        name: str,
        *,
        private: bool | None = None,
        token: str | None = None,
        message: str = "Upload an aleator model",
    ) -> str:
        """Upload the model to the Hugging Face hub. `from_pretrained(name)` then loads it anywhere.

        What says where your data are is left out: folders, the command, and the digests of training items.

        Args:
            name: Name on the hub, such as "you/photos".
            private: Whether a new repository is private. Default: what your account says.
            token: Your access token. Default: that of `hf auth login`.
            message: Message of the commit.

        Returns:
            Address of the model.

        Raises:
            ValueError: If the hub does not answer, or refuses. Nothing is lost: the model is as before.
        """
        require(
            name.count("/") <= 1 and bool(name.strip("/")), "name", name, "not a name on the hub", 'pass "you/name"'
        )
        hub = _hub()
        problem = "the hub does not answer from here"
        way_out = "use save_pretrained, and upload the folder from a machine with a network"
        require(hub_answers(), "name", name, problem, way_out)
        with tempfile.TemporaryDirectory() as temporary:
            folder = self.save_pretrained(Path(temporary) / "model")
            _forget_places(folder, name.split("/")[-1])
            try:
                address = hub.create_repo(name, private=private, token=token, exist_ok=True)
                hub.upload_folder(repo_id=address.repo_id, folder_path=str(folder), commit_message=message, token=token)
            except (OSError, hub.errors.HfHubHTTPError, hub.errors.HFValidationError) as refusal:
                reason = str(refusal).strip().splitlines()[0]
                reject("name", name, f"the hub refuses ({reason})", "log in with `hf auth login`, and check the name")
        return str(address)

    def export_onnx(self, path: str | os.PathLike[str]) -> Path:
        """Write the model as an ONNX file, for programs without torch. Needs the extra onnx.

        Inputs are "pixels" (B, 3, S, S) in [0, 1]; or "features" (B, F); or, for text, "input_ids" and
        "attention_mask" (B, T), whose tokeniser is written to NAME.tokenizer.json. Outputs are "mu" (B, D) and "kappa"
        (B,); of K modes (B, K, D), (B, K), and "log_weights" (B, K).

        Args:
            path: The .onnx file. It is replaced if it exists.

        Returns:
            The file.

        Raises:
            ValueError: If a package is missing, or onnxruntime, if it is installed, computes something else.
        """
        return export_onnx(self.run, Path(path).expanduser())

    def __repr__(self) -> str:
        inputs = self.run.inputs
        return f"AleatorModel({inputs.kind}, dim={self.dim}, labels={len(self.label_names)}, device={self.device})"

    def _batches(self, items: Any, batch_size: int | None, show: bool | None) -> Iterator[Any]:
        """Items in batches, prepared a few ahead, on the device of the encoder."""
        count, kind = len(items), self.run.inputs.kind
        require(count > 0, "items", 0, "no item", "pass at least one")
        size = BATCH_SIZES[kind] if batch_size is None else batch_size
        require_count("batch_size", size, "pass for example 64")
        parts = list(spans(0, count, size))
        shown = False if len(parts) == 1 and show is None else show
        with CountBar("encoding", count, 0, shown) as bar:
            ready = prefetched(lambda span: self.run.inputs.prepare(items[span[0] : span[1]]), parts)
            for (start, stop), batch in zip(parts, ready, strict=True):
                yield batch.to(self.device) if isinstance(batch, Tensor) else batch
                bar.advance(stop - start)

    @torch.inference_mode()
    def _posteriors(self, batch: Any) -> PosteriorBatch:
        return self.run.encoder(batch).float().cpu()

    def _flags(self, batch: Any) -> Tensor:
        novelty = self.run.encode(batch)[1]
        if novelty is None:
            reject("model", str(self.run.folder), "cannot tell: an older release trained it", "train again")
        return novelty > 0


def _is_single(items: Any, kind: str) -> bool:
    """Whether `items` is one item and not a sequence of items."""
    if isinstance(items, str | bytes | os.PathLike):
        return True
    if kind == "text":
        return False
    if kind == "features":
        require(hasattr(items, "__len__"), "items", items, "no rows of numbers", "pass an array (B, F)")
        return len(items) > 0 and np.ndim(items[0]) == 0
    if isinstance(items, np.ndarray | Tensor):
        colours = items.shape[0] if isinstance(items, Tensor) else items.shape[-1]
        return items.ndim == 2 or (items.ndim == 3 and colours in (1, 3, 4))
    return not isinstance(items, Sequence)


def _hub() -> Any:
    """The package huggingface_hub, or an error that says how to install it."""
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError:
        reject("name", "on the hub", "needs the package huggingface_hub", "pip install 'aleator[hub]'")
    return huggingface_hub


def _download(name: str) -> str:
    """Folder of a model that is fetched from the hub."""
    hub = _hub()
    try:
        return str(hub.snapshot_download(name))
    except (OSError, hub.errors.HfHubHTTPError, hub.errors.HFValidationError) as refusal:
        reason = str(refusal).strip().splitlines()[0]
        way_out = "check the path of the folder, or the name on the hub"
        return reject("name", name, f"is no folder, and the hub does not give it ({reason})", way_out)


def _forget_places(folder: Path, name: str) -> None:
    """Take out of a saved model what says where the data were, and what identifies them."""
    (folder / USED_ITEMS).unlink(missing_ok=True)
    inputs, config, metrics = (read_json(folder / f"{part}.json", "save the model again") for part in _PARTS)
    config.pop("requested", None)
    if "source" in config.get("data", {}):
        config["data"]["source"] = Path(config["data"]["source"]).name
    backbone = config.get("settings", {}).get("backbone")
    if isinstance(backbone, str) and Path(backbone.removeprefix("hf:")).is_absolute():
        config["settings"]["backbone"] = f"hf:{Path(backbone).name}"
    if config.get("settings", {}).get("start"):
        config["settings"]["start"] = Path(config["settings"]["start"]).name
    for part in _PRIVATE:
        metrics.get("provenance", {}).pop(part, None)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
    write_model_card(folder, inputs, config, metrics, name)
    write_run_checksums(folder)
