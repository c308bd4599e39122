"""Make page.png: the page, asked about the same digit in full and with its left half hidden.

    aleator quickstart --output QUICKSTART
    python docs/figures/make_page.py QUICKSTART

The model and the collection are those of the quickstart: scikit-learn's digits. The digit of the question was not used
for training or calibration, and it is not in the collection. Digits are enlarged from 8 x 8 to 64 x 64 pixels. Needs
Chromium and playwright.
"""

import argparse
import io
import shutil
import socket
import tempfile
import threading
from pathlib import Path

import numpy as np
import uvicorn
from PIL import Image, ImageDraw, ImageFont
from playwright.sync_api import Page, sync_playwright
from sklearn.datasets import load_digits

from aleator import CredibleIndex
from aleator.own_data import Run, load_run
from aleator.web import create_app

OUTPUT = Path(__file__).with_name("page.png")
QUESTION = 23  # number of the digit in load_digits(): a 3, one of the test digits of the quickstart
PRIOR = 0.1  # one pair of digits in ten shows the same numeral
SIDE = 64
TITLES = ("Asked about a 3: all answers are 3s", "The same 3 with its left half hidden: it could be a 3 or an 8")
WIDTH, HEIGHT = 1000, 1110  # of each screenshot
COLOURS = 256  # of the PNG


def enlarged(pixels: np.ndarray) -> Image.Image:
    """An image of (8, 8) uint8 pixels, 64 pixels wide."""
    return Image.fromarray(pixels).resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def digit() -> np.ndarray:
    """The digit of the question, (8, 8) uint8."""
    return (load_digits().images[QUESTION] * (255 / 16)).round().astype(np.uint8)


def questions() -> dict[str, Image.Image]:
    """The digit in full and with a grey left half, by file name."""
    full = digit()
    half = full.copy()
    half[:, :4] = 128
    return {"digit.png": enlarged(full), "half-a-digit.png": enlarged(half)}


def make_index(run: Run, gallery: Path, root: Path) -> CredibleIndex:
    """Enlarge the gallery of the quickstart into `root`, and build an index of it in the folder `digits`."""
    paths = sorted(path.relative_to(gallery) for path in gallery.glob("*/*.png"))
    images = []
    for path in paths:
        with Image.open(gallery / path) as image:
            pixels = np.asarray(image)
        assert (pixels != digit()).any(), "the digit of the question must not be in the collection"
        images.append(enlarged(pixels))
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        images[-1].save(root / path)
    metadata = [{"path": path.as_posix(), "label": path.parts[0]} for path in paths]
    ids = [path.as_posix() for path in paths]
    posteriors = run.posteriors(images)
    return CredibleIndex.build(posteriors, ids, metadata, location=root / "digits", kernel=run.kernel, prior=PRIOR)


def screenshot(page: Page, address: str, name: str, image: Image.Image) -> Image.Image:
    """Ask the page about an image."""
    file = io.BytesIO()
    image.save(file, "PNG")
    page.goto(address)
    page.locator("main:not([aria-busy])").wait_for()
    page.set_input_files("#file", {"name": name, "mimeType": "image/png", "buffer": file.getvalue()})
    page.locator("#query-title", has_text=name).wait_for()
    page.locator("#id").focus()  # no frame around the first hit
    page.locator("#id").blur()
    page.mouse.move(0, 0)
    page.wait_for_load_state("networkidle")
    page.locator("#tab-size").wait_for()
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def side_by_side(pictures: dict[str, Image.Image]) -> Image.Image:
    """Pictures beside each other, each below its title."""
    font = ImageFont.load_default(size=26)
    bar, gap = 64, 16
    sheet = Image.new("RGB", (len(pictures) * WIDTH + gap, HEIGHT + bar), "white")
    pen = ImageDraw.Draw(sheet)
    for number, (title, picture) in enumerate(pictures.items()):
        left = number * (WIDTH + gap)
        pen.text((left + 24, 16), title, fill="#23262b", font=font)
        sheet.paste(picture, (left, bar))
    return sheet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("quickstart", type=Path, help="output folder of `aleator quickstart`")
    quickstart = parser.parse_args().quickstart
    run = load_run(quickstart / "run")
    with (
        tempfile.TemporaryDirectory() as root,
        make_index(run, quickstart / "gallery", Path(root)) as index,
        socket.create_server(("127.0.0.1", 0)) as listener,
        sync_playwright() as driver,
    ):
        app = create_app(index, run=run, root=root)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page = context.new_page()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        asked = zip(TITLES, questions().items(), strict=True)
        pictures = {title: screenshot(page, address, name, image) for title, (name, image) in asked}
        browser.close()
        server.should_exit = True
        thread.join()
    side_by_side(pictures).quantize(COLOURS).save(OUTPUT, optimize=True)
    print(f"{OUTPUT}: {OUTPUT.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
