"""The valid cases of the corpus: one of each form that each reader reads, as small as can be."""

import csv
import json
import shutil
import struct
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from aleator import Encoder, VMFMixture, VonMisesFisher
from aleator.data import Inputs
from aleator.encoders import MLP
from aleator.evaluation import LabelModel, fit_novelty
from aleator.matching import VMFKernel
from aleator.own_data import Answers, save_run
from aleator.own_data.auditing.files import _COLUMNS, SUMMARY
from aleator.own_data.measuring.views import posteriors_and_views
from aleator.retrieval import CredibleIndex, items_header, write_items, write_posteriors
from aleator.training.checkpoints import Checkpoints
from tests.fuzzing.readers import IDS
from tests.web.shapes import DIM, draw, png

CLASSES = [f"c{i % 2}" for i in range(6)]
RECORDS = [{"id": id, "label": label} for id, label in zip(IDS, CLASSES, strict=True)]


def posteriors() -> VonMisesFisher:
    generator = torch.Generator().manual_seed(0)
    mu = torch.nn.functional.normalize(torch.randn(6, 3, generator=generator), dim=-1)
    return VonMisesFisher(mu, torch.arange(1.0, 7))


def mixtures() -> VMFMixture:
    q = posteriors()
    components = VonMisesFisher(torch.stack([q.mu, q.mu.flip(0)], 1), torch.stack([q.kappa, q.kappa.flip(0)], 1))
    return VMFMixture(torch.log(torch.tensor([[0.7, 0.3]])).expand(6, 2), components)


def label_model(names: tuple[str, ...] = ("c0", "c1")) -> LabelModel:
    return LabelModel(posteriors(), torch.eye(2)[torch.arange(6) % 2], names, VMFKernel(9.0))


def write_seeds(corpus: Path) -> None:
    """Write every valid case below a funsealed, in place of earlier ones."""
    torch.manual_seed(0)
    for write in (_audits, _bundles, _data, _images, _indexes, _items, _labels, _posteriors, _uploads):
        write(corpus)


def _fresh(path: Path) -> Path:
    if path.is_dir():
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _put(path: Path, content: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def _audits(corpus: Path) -> None:
    funsealed = _fresh(corpus / "audits" / "audit")
    funsealed.mkdir()
    rows = {
        "label_errors.csv": [
            (1, "i0", "c0", "c1", "0.1", "0.8", "0.7", "a0"),
            (2, "i1", "c1", "c0", "0.9", "0.1", "-0.8", "a1"),
        ],
        "near_duplicates.csv": [(1, "i2", "c0", "yes", "no", "0.01", "a2"), (1, "i4", "c0", "no", "no", "0.01", "a4")],
        "confused_classes.csv": [("c0", "c1", "0.3", 2, "i0 i2")],
        "odd_ones.csv": [(1, "i5", "c1", "0.9", "i3", "a5")],
    }
    for name, lines in rows.items():
        with open(funsealed / name, "w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([_COLUMNS[name], *lines])
    _put(funsealed / SUMMARY, json.dumps({"items": 6}))


def _bundles(corpus: Path) -> None:
    encoder = Encoder(MLP(3, (4,)), 3).eval()
    encoder.save(_fresh(corpus / "encoders" / "mlp"))
    Encoder(MLP(3, (4,)), 3, modes=2).save(_fresh(corpus / "encoders" / "two-modes"))
    funsealed = _fresh(corpus / "checkpoints" / "two")
    for step in (1, 2):
        Checkpoints(funsealed).save(
            step, {"step": step, "w": torch.arange(4.0), "more": [{"lr": 0.1, "betas": (1, 2)}]}
        )
    views = posteriors_and_views(encoder, torch.randn(9, 3))[1]
    answers = Answers(label_model(), fit_novelty(views, views))
    match = {"kappa_pos": 9.0, "prior": 0.2}
    config = {"settings": {"dim": 3}, "data": {"items": 6}}
    for name, more in (("plain", Answers()), ("answers", answers)):
        run = _fresh(corpus / "runs" / name)
        run.mkdir()
        save_run(run, encoder, Inputs("features", features=3), config, {"items": 6}, match, more, draw=False)
        (run / "README.md").unlink()
    (corpus / "runs" / "plain" / "checksums.json").unlink()  # as a writer that was killed leaves it


def _data(corpus: Path) -> None:
    funsealed = corpus / "data"
    _put(funsealed / "text.csv", 'text,label\nan apple,fruit\n"a car, red",thing\na pear,fruit\n')
    _put(funsealed / "soft.csv", "text;fruit;thing\nan apple;0,9;0,1\na car;0;1\n")
    _put(funsealed / "lines.txt", "one text\nand another\n")
    for name, dtype in (("x", np.float32), ("whole", np.int16), ("double", ">f8")):
        _save_npy(funsealed / f"{name}.npy", np.arange(18).reshape(6, 3).astype(dtype))


def _save_npy(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array)


def _images(corpus: Path) -> None:
    funsealed = corpus / "images"
    funsealed.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (6, 7, 3), np.uint8))
    for ending in ("png", "jpg", "gif", "bmp", "ppm", "webp", "tif"):
        picture.save(funsealed / f"colour.{ending}")
    picture.convert("P").save(funsealed / "palette.png", transparency=0)
    picture.convert("RGBA").save(funsealed / "layers.tiff", compression="tiff_lzw")
    deep = np.arange(42, dtype=np.uint16).reshape(6, 7) * 1500
    for name in ("deep.png", "deep.tif", "deep.pgm"):
        Image.fromarray(deep).save(funsealed / name)
    Image.fromarray(deep.astype(np.float32) / 9).save(funsealed / "float.tif")
    Image.fromarray(deep.astype(np.int32)).save(funsealed / "long.tif", compression="tiff_deflate")
    turned = Image.Exif()
    turned[0x0112] = 6
    picture.save(funsealed / "turned.jpg", exif=turned)


def _indexes(corpus: Path) -> None:
    funsealed = corpus / "indexes"
    CredibleIndex.build(posteriors(), IDS, RECORDS, location=_fresh(funsealed / "saved")).close()
    with CredibleIndex.build(posteriors(), IDS, RECORDS, location=_fresh(funsealed / "changed")) as index:
        index.add(posteriors()[:2], ["x", "y"], [{"label": "c0"}, None])
        index.remove(["i1"])
    CredibleIndex.build(mixtures(), IDS, RECORDS, location=_fresh(funsealed / "two-modes"), label_model=None).close()


def _items(corpus: Path) -> None:
    _put(corpus / "items" / "plain.jsonl", "".join(json.dumps(record) + "\n" for record in RECORDS[:3]))
    _put(corpus / "items" / "more.jsonl", '{"id": 7, "labels": {"a": 0.5, "b": 0.5}, "path": "a\\u2028b.png"}\n')


def _labels(corpus: Path) -> None:
    funsealed = corpus / "labels"
    _put(funsealed / "classes.csv", "label\n" + "\n".join(CLASSES) + "\n")
    _put(funsealed / "ids.csv", "id,label\n" + "\n".join(f"{i},{c}" for i, c in enumerate(CLASSES)) + "\n")
    _put(funsealed / "soft.csv", "cat,dog\n" + "0.25,0.75\n" * 6)
    _put(funsealed / "votes.csv", "id;cat;dog\n" + "".join(f"{i};{i};1\n" for i in range(6)))
    _put(funsealed / "pairs.csv", "first,second\n0,1\n2,5\n")
    _save_npy(funsealed / "numbers.npy", np.arange(6) % 3)
    _save_npy(funsealed / "names.npy", np.array(CLASSES))
    _save_npy(funsealed / "soft.npy", np.full((6, 4), 0.25, np.float32))


def _posteriors(corpus: Path) -> None:
    q, funsealed = posteriors(), corpus / "posteriors"
    blocks = [(q.mu.numpy(), q.kappa.numpy(), np.zeros(6, np.float32))]
    sealed = _fresh(funsealed / "sealed")
    sealed.mkdir()
    write_items(sealed / "p.jsonl", RECORDS)
    header = {"fingerprint": "f", "prior": "0.25", "kappa_pos": "9.0"} | items_header(RECORDS)
    write_posteriors(sealed / "p.safetensors", 6, 3, blocks, header, novelty=True, labels=label_model())
    unsealed = _fresh(funsealed / "unsealed")  # the same without checksums, as a person may write it
    shutil.copytree(sealed, unsealed)
    path = unsealed / "p.safetensors"
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    layout = json.loads(data[8 : 8 + length])
    for key in ("version", "sha256", "items_sha256", "ids_sha256"):
        del layout["__metadata__"][key]
    text = json.dumps(layout).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    modes = mixtures()
    both = _fresh(funsealed / "two-modes")
    both.mkdir()
    arrays = (modes.components.mu.numpy(), modes.components.kappa.numpy(), modes.log_weights.numpy())
    write_posteriors(both / "p.safetensors", 6, 3, [arrays], {}, modes=2)
    npz = _fresh(funsealed / "npz")
    npz.mkdir()
    np.savez(npz / "p.npz", mu=q.mu.numpy(), kappa=q.kappa.numpy())


def _uploads(corpus: Path) -> None:
    funsealed = corpus / "uploads"
    _put(funsealed / "image-shape.png", png(draw("circle", (52, 110, 160), 0.1)))
    _put(funsealed / "features-three.body", json.dumps({"features": [0.5, -1, 2]}))
    _put(funsealed / "text-short.body", json.dumps({"text": "a bank by the river"}))
    _put(funsealed / "posterior-unit.body", json.dumps({"mu": [1.0] + [0.0] * (DIM - 1), "kappa": 9.5}))
