"""`aleator export`: a trained model for other programs."""

from pathlib import Path
from typing import Annotated

import typer

from aleator.cli.errors import plain_errors
from aleator.cli.terminal import print_line


def export(
    run: Annotated[Path, typer.Argument(help="run folder of `aleator train`")],
    path: Annotated[Path, typer.Option("--onnx", help="the .onnx file to write; it is replaced if it exists")],
) -> None:
    """Write a trained model as an ONNX file, which gives mu and kappa without torch.

    Images are fed as pixels (B, 3, S, S) in [0, 1], features as (B, F), texts as input_ids and attention_mask; their
    tokeniser is written beside the file. Needs the extra onnx. With onnxruntime the outputs are compared with torch's.

    Example: aleator export runs/photos --onnx photos.onnx
    """
    from aleator.own_data import AleatorModel

    with plain_errors():
        written = AleatorModel.from_pretrained(run, device="cpu").export_onnx(path)
    print_line(f"{written}: {written.stat().st_size / 1e6:.1f} MB")
