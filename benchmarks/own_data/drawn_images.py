"""Two collections of images that are drawn here, so that anyone can make them again without a download.

glyphs    grey, 28 x 28: letters and digits in many fonts, turned, blurred, covered and noisy; O, 0, o and Q, or I, l
          and 1, can often not be told apart
shapes    colour, 48 x 48: a shape with a texture, in random colours, on a textured ground with small shapes around it
          and another one over it; the class is the shape, so colours say nothing
"""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

GLYPHS = (
    *((f"upper-{c}", c) for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    *((f"digit-{c}", c) for c in "0123456789"),
    *((f"lower-{c}", c) for c in "loqs"),
)
_FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSansMono", "DejaVuSansMono-Bold"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "STIXGeneral", "STIXGeneralBol"),
    *("STIXGeneralItalic", "STIXGeneralBolIta", "cmr10", "cmss10", "cmtt10", "cmb10", "cmti10"),
)
SHAPES = ("circle", "square", "triangle", "cross", "star", "ring", "crescent", "hexagon", "heart", "arrow")


def glyphs(count: int, seed: int, side: int = 28) -> tuple[np.ndarray, np.ndarray]:
    """Images (count, side, side, 3) uint8, and classes (count,) that number `GLYPHS`."""
    generator = np.random.default_rng(seed)
    fonts = [_font(name) for name in _FONTS]
    labels = np.arange(count) % len(GLYPHS)
    images = np.stack([_glyph(GLYPHS[c][1], fonts[generator.integers(len(fonts))], generator, side) for c in labels])
    return np.repeat(images[..., None], 3, -1), labels


def shapes(count: int, seed: int, side: int = 48) -> tuple[np.ndarray, np.ndarray]:
    """Images (count, side, side, 3) uint8, and classes (count,) that number `SHAPES`."""
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % len(SHAPES)
    return np.stack([_scene(SHAPES[c], generator, side) for c in labels]), labels


def _font(name: str) -> ImageFont.FreeTypeFont:
    import matplotlib

    return ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts", "ttf", f"{name}.ttf"), 64)


def _glyph(letter: str, font: ImageFont.FreeTypeFont, generator: np.random.Generator, side: int) -> np.ndarray:
    left, top, right, bottom = font.getbbox(letter)
    picture = Image.new("L", (128, 128))
    origin = (64 - (left + right) / 2, 64 - (top + bottom) / 2)
    ImageDraw.Draw(picture).text(origin, letter, 255, font)
    height = bottom - top
    zoom = (
        generator.uniform(0.55, 0.9) * side / height
    )  # all letters end up equally high: o and O differ by shape alone
    angle = np.deg2rad(generator.normal(0, 8))
    shear, squeeze = generator.normal(0, 0.1), generator.uniform(0.85, 1.15)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    matrix = turn @ np.array([[1, shear], [0, 1]]) @ np.diag([squeeze / zoom, 1 / zoom])
    centre = side / 2 + generator.uniform(-2.5, 2.5, 2)
    offset = np.array([64, 64]) - matrix @ centre
    data = (*matrix[0], offset[0], *matrix[1], offset[1])
    picture = picture.filter(ImageFilter.GaussianBlur(0.4 / zoom))
    picture = picture.transform((side, side), Image.Transform.AFFINE, data, Image.Resampling.BILINEAR)
    picture = picture.filter(ImageFilter.GaussianBlur(generator.gamma(1.5, 0.5)))
    ink = np.asarray(picture, np.float32) / 255
    if generator.random() < 0.35:  # a bar covers a part
        width = generator.integers(3, side // 2)
        start = generator.integers(0, side - width)
        bar = (slice(start, start + width), slice(None))
        ink[bar if generator.random() < 0.5 else bar[::-1]] = generator.random()
    ground, contrast = generator.uniform(0, 0.4), generator.uniform(0.25, 1.0)
    pixels = ground + contrast * (1 - ground) * ink
    pixels = pixels + np.linspace(0, generator.normal(0, 0.15), side)[:, None]
    pixels = pixels + generator.normal(0, generator.uniform(0.02, 0.2), pixels.shape)
    if generator.random() < 0.3:
        pixels = 1 - pixels
    return (255 * pixels.clip(0, 1)).round().astype(np.uint8)


def _scene(shape: str, generator: np.random.Generator, side: int) -> np.ndarray:
    canvas = _texture(generator, side)
    for _ in range(generator.integers(2, 7)):  # small shapes around it
        mask = _mask(str(generator.choice(SHAPES)), generator, side, generator.uniform(0.06, 0.14), 0.5)
        canvas = np.where(mask[..., None], _texture(generator, side), canvas)
    mask = _mask(shape, generator, side, generator.uniform(0.2, 0.38), 0.14)
    canvas = np.where(mask[..., None], _texture(generator, side), canvas)
    for _ in range(generator.integers(0, 3)):  # others over it
        mask = _mask(str(generator.choice(SHAPES)), generator, side, generator.uniform(0.08, 0.2), 0.35)
        canvas = np.where(mask[..., None], _texture(generator, side), canvas)
    canvas = canvas + generator.normal(0, generator.uniform(0.0, 0.12), canvas.shape)
    picture = Image.fromarray((255 * canvas.clip(0, 1)).round().astype(np.uint8))
    return np.asarray(picture.filter(ImageFilter.GaussianBlur(generator.uniform(0, 1.0))))


def _texture(generator: np.random.Generator, side: int) -> np.ndarray:
    """Two random colours in stripes, checks, dots, a gradient or noise; (side, side, 3) in [0, 1]."""
    y, x = np.mgrid[:side, :side] / side
    angle, period = generator.uniform(0, np.pi), generator.uniform(0.08, 0.3)
    u = (x * np.cos(angle) + y * np.sin(angle)) / period + generator.random()
    v = (-x * np.sin(angle) + y * np.cos(angle)) / period + generator.random()
    kind = generator.integers(5)
    if kind == 0:
        weight = (u % 1 < 0.5).astype(float)
    elif kind == 1:
        weight = ((u % 1 < 0.5) ^ (v % 1 < 0.5)).astype(float)
    elif kind == 2:
        weight = ((u % 1 - 0.5) ** 2 + (v % 1 - 0.5) ** 2 < 0.09).astype(float)
    elif kind == 3:
        weight = (u * period).clip(0, 1)
    else:
        weight = generator.random((side, side))
    first, second = generator.random((2, 3))
    return first + generator.uniform(0.3, 1.0) * weight[..., None] * (second - first)


def _mask(shape: str, generator: np.random.Generator, side: int, radius: float, off_centre: float) -> np.ndarray:
    """Where a shape lies, (side, side) booleans: turned, squeezed, and off the centre by up to a share of the side."""
    centre = 0.5 + generator.uniform(-off_centre, off_centre, 2)
    angle, squeeze = generator.uniform(-0.5, 0.5), generator.uniform(0.8, 1.25)
    y, x = (np.mgrid[:side, :side] + 0.5) / side
    x, y = x - centre[0], y - centre[1]
    x, y = (x * np.cos(angle) + y * np.sin(angle)) * squeeze, -x * np.sin(angle) + y * np.cos(angle)
    x, y = x / radius, y / radius  # the shape fills about the unit circle
    r, phi = np.hypot(x, y), np.arctan2(x, -y)
    if shape == "circle":
        return r < 0.9
    if shape == "square":
        return np.maximum(abs(x), abs(y)) < 0.8
    if shape == "triangle":
        return (y < 0.6) & (y > -0.95 + 1.7 * abs(x))
    if shape == "cross":
        return (np.minimum(abs(x), abs(y)) < 0.3) & (np.maximum(abs(x), abs(y)) < 0.95)
    if shape == "star":
        return r < 0.72 + 0.33 * np.cos(5 * phi)
    if shape == "ring":
        return (r < 0.95) & (r > 0.55)
    if shape == "crescent":
        return (r < 0.95) & (np.hypot(x - 0.45, y) > 0.75)
    if shape == "hexagon":
        return np.maximum(abs(y), abs(x) * np.sqrt(3) / 2 + abs(y) / 2) < 0.82
    if shape == "heart":
        return (x**2 + (-y) ** 2 - 0.55) ** 3 < x**2 * (-y) ** 3 * 1.0
    return ((abs(x) < 0.25) & (y > -0.2) & (y < 0.95)) | ((y <= -0.1) & (abs(x) < y + 0.95))  # arrow
