"""A small collection to serve: coloured shapes, some of them blurred, and an encoder that sees blur as doubt.

The encoder is linear in the pixels and takes the norm as kappa: a shape that fades into the background is short.
"""

import csv
import io
import json
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFilter
from torch import nn

from aleator import CredibleIndex, Encoder, VMFKernel
from aleator.data.inputs import Inputs
from aleator.encoders.backbones import Features
from aleator.own_data.runs.run import Run

SHAPES = ("circle", "square", "triangle")
COLOURS = ((196, 78, 60), (52, 110, 160), (214, 160, 60))
DIM = 8


class Pooled(nn.Module):
    """Images (B, 3, 32, 32) -> (B, 192), eight by eight means, centred."""

    out_features = 192

    def forward(self, images):
        return nn.functional.avg_pool2d(images, 4).flatten(1) - 0.9


def draw(shape: str, colour: tuple[int, int, int], blur: float, shift: int = 0, side: int = 32) -> Image.Image:
    image = Image.new("RGB", (32, 32), (235, 232, 226))
    box = (7 + shift, 7, 25 + shift, 25)
    pen = ImageDraw.Draw(image)
    if shape == "circle":
        pen.ellipse(box, fill=colour)
    elif shape == "square":
        pen.rectangle(box, fill=colour)
    else:
        pen.polygon([(box[0], box[3]), (box[2], box[3]), ((box[0] + box[2]) // 2, box[1])], fill=colour)
    return image.filter(ImageFilter.GaussianBlur(blur)).resize((side, side))


def png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def as_run(encoder: Encoder, inputs: Inputs) -> Run:
    """What `load_run` gives, without the folder."""
    return Run(Path("nowhere"), encoder.eval(), inputs, VMFKernel(20.0), 0.5, "fingerprint", {}, {})


def image_run() -> Run:
    torch.manual_seed(3)
    encoder = Encoder(Pooled(), DIM, kappa="norm")
    inputs = Inputs("images", size=32)
    sample = [draw(shape, colour, 0.1) for shape in SHAPES for colour in COLOURS]
    encoder.set_kappa_range(inputs.prepare(sample), (150.0, 160.0))
    return as_run(encoder, inputs)


def feature_run(features: int = 5) -> Run:
    torch.manual_seed(4)
    return as_run(Encoder(Features(features), DIM, kappa="norm"), Inputs("features", features=features))


class Letters(nn.Module):
    """Texts -> how often each of 26 letters occurs."""

    out_features = 26

    def forward(self, texts):
        return torch.tensor([[text.lower().count(chr(97 + i)) for i in range(26)] for text in texts]).float()


def text_run() -> Run:
    torch.manual_seed(5)
    return as_run(Encoder(Letters(), DIM, kappa="norm"), Inputs("text"))


def shape_index(root: Path, run: Run, count: int = 90, side: int = 32) -> CredibleIndex:
    """`count` shapes written below `root`, and the index of their posteriors."""
    ids, metadata, images = [], [], []
    for i in range(count):
        shape, colour = SHAPES[i % 3], COLOURS[i // 3 % 3]
        image = draw(shape, colour, blur=0.1 + (i % 10) * 0.7, shift=i % 7 - 3, side=side)
        path = Path(shape) / f"{i}.png"
        (root / shape).mkdir(parents=True, exist_ok=True)
        image.save(root / path)
        ids.append(f"{shape}-{i}")
        metadata.append({"path": path.as_posix(), "label": shape})
        images.append(image)
    return CredibleIndex.build(run.posteriors(images), ids, metadata)


def text_index(run: Run) -> CredibleIndex:
    texts = [
        "A bank by the river, in the evening sun.",
        "The bank raised its interest rates again.",
        "She saw the man with the telescope.",
        "Time flies like an arrow; fruit flies like a banana.",
        "The trophy does not fit into the suitcase because it is too large.",
        "An unlabelled note.",
    ]
    metadata = [{"text": text, **({"label": i % 2} if i < 5 else {})} for i, text in enumerate(texts)]
    return CredibleIndex.build(run.posteriors(texts), metadata=metadata)


# What an audit of `shape_index` found. One item is not in the index; the last two labels and the last odd one are not
# suspicious enough to be findings.
AUDIT_TABLES = {
    "label_errors": [
        ["rank", "id", "given", "likelier", "p_given", "p_likelier", "score", "content"],
        [1, "square-4", "square", "circle", "0.01", "0.95", "4.55", ""],
        [2, "not-in-the-index", "square", "circle", "0.02", "0.9", "3.8", ""],
        [3, "circle-3", "circle", "triangle", "0.05", "0.9", "2.89", ""],
        [4, "circle-6", "circle", "square", "0.3", "0.6", "0.69", ""],
        [5, "circle-9", "circle", "square", "0.9", "0.05", "-inf", ""],
    ],
    "near_duplicates": [
        ["group", "id", "label", "same_content", "labels_differ", "distance", "content"],
        [1, "circle-0", "circle", "yes", "yes", "0", ""],
        [1, "square-1", "square", "yes", "yes", "0", ""],
    ],
    "confused_classes": [["given", "other", "probability", "items", "examples"]],
    "odd_ones": [
        ["rank", "id", "label", "distance", "nearest", "content"],
        [1, "triangle-2", "triangle", "3.25", "square-4", ""],
        [2, "circle-6", "circle", "1.9", "square-4", ""],
    ],
}


def write_audit(folder: Path) -> Path:
    """The folder of an audit, as `aleator audit` leaves it."""
    for name, rows in AUDIT_TABLES.items():
        with open(folder / f"{name}.csv", "w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
    (folder / "summary.json").write_text(json.dumps({"items": 90}))
    return folder
