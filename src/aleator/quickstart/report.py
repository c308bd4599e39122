"""The report of the quickstart: one HTML file that contains its figures."""

import base64
import html
from pathlib import Path
from typing import Any

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>aleator: quickstart</title>
<style>
:root {{
  color-scheme: light dark;
  --ink: #1c2330; --quiet: #5b6577; --paper: #fbfbf9; --card: #ffffff; --line: #dfe3ea;
}}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e8ebf1; --quiet: #a3adbf; --paper: #14171d; --card: #1d222b; --line: #333b48; }}
}}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }}
main {{ max-width: 72rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }}
h1 {{ font-size: 1.9rem; margin: 0 0 .3rem; letter-spacing: -.01em; }}
h2 {{ font-size: 1.3rem; margin: 2.6rem 0 .4rem; }}
p {{ max-width: 46rem; margin: .5rem 0; }}
.quiet, figcaption, footer {{ color: var(--quiet); }}
.numbers {{ display: flex; flex-wrap: wrap; gap: .75rem; margin: 1.1rem 0; padding: 0; list-style: none; }}
.numbers li {{ flex: 1 1 9rem; background: var(--card); border: 1px solid var(--line); border-radius: .5rem;
  padding: .7rem .9rem; }}
.numbers b {{ display: block; font-size: 1.45rem; font-weight: 600; font-variant-numeric: tabular-nums; }}
.numbers span {{ color: var(--quiet); font-size: .86rem; line-height: 1.35; display: block; }}
.figures {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 19rem), 1fr)); gap: 1rem; }}
figure {{ margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .8rem;
  display: flex; flex-direction: column; }}
figure.wide {{ grid-column: 1 / -1; overflow-x: auto; }}
figure img {{ width: 100%; height: auto; max-height: 26rem; object-fit: contain; background: #fff;
  border-radius: .25rem; margin: auto 0; }}
figure.wide img {{ max-height: none; min-width: 46rem; }}
figcaption {{ font-size: .88rem; padding-top: .6rem; }}
.question {{ background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: 1rem;
  display: grid; grid-template-columns: 8rem 1fr; gap: 1.1rem; align-items: start; margin: 1rem 0; }}
.question h3 {{ font-size: 1.08rem; margin: 0 0 .2rem; }}
.question p {{ margin: .3rem 0; }}
.question img {{ width: 100%; image-rendering: pixelated; border-radius: .25rem; display: block; }}
.shares {{ list-style: none; margin: .7rem 0; padding: 0; }}
.shares li {{ display: grid; grid-template-columns: 2rem 1.2rem minmax(4rem, 22rem) auto; gap: .6rem;
  align-items: center; margin: .25rem 0; font-variant-numeric: tabular-nums; }}
.shares i {{ display: block; background: #0072b2; height: .9rem; border-radius: .2rem; min-width: 2px; }}
.shares .right i {{ background: #009e73; }}
.shares span {{ color: var(--quiet); font-size: .86rem; }}
@media (max-width: 34rem) {{ .question {{ grid-template-columns: 5rem 1fr; }} }}
pre {{ background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .9rem 1rem;
  white-space: pre-wrap; overflow-wrap: anywhere; font-size: .88rem; line-height: 1.5; }}
footer {{ margin-top: 3rem; font-size: .84rem; overflow-wrap: anywhere; }}
</style>
</head>
<body><main>
<h1>Embeddings that know what they do not know</h1>
<p class="quiet">Results of <code>aleator quickstart</code> on this machine, in {seconds:.0f} seconds.</p>

<h2>Which digits could this be?</h2>
<p>An index holds {gallery} clear digits. The queries are {questions} digits that the encoder was not trained on,
degraded by noise, blur or a grey square. The answer to each is its 95% credible set: all digits of the index that the
query could be. A clear query gets answers of one numeral, an ambiguous one of several. In these three examples, the
bars are shares of the answers; green is the right numeral. The small picture is the nearest answer of each numeral.</p>
{samples}
<p>Over all queries:</p>
<ul class="numbers">{search_numbers}</ul>
<p class="quiet">{empty}</p>

<h2>Either this, or that</h2>
<p>With a part covered, a digit may be one of two numerals, and nothing between. The encoder says so: a posterior of two
modes answers with two groups, each with its probability. A posterior of one mode has one set for both.</p>
{modes_figure}
<p>{modes}</p>

<h2>Real images: digits, some of them hard to read</h2>
<p>Every digit is degraded by a random amount: noise, blur, or a grey square that covers a part of it. The encoder is
told which digits show the same numeral. It is not told how much an image was degraded, and yet its certainty kappa
shows it.</p>
<ul class="numbers">{digit_numbers}</ul>
<div class="figures">{digit_figures}</div>

<h2>Known posteriors, recovered from matching pairs</h2>
<p>A process in the plane blurs each input by a known amount. The encoder sees only pairs of inputs that match. It
recovers the direction and the certainty of every input, up to a rotation of the plane.</p>
<ul class="numbers">{circle_numbers}</ul>
<div class="figures">{circle_figures}</div>

<h2>What to try next</h2>
<p>Everything is in this folder, in the form that the commands use for your own data.</p>
<pre>{next_commands}</pre>
<footer>{provenance}</footer>
</main></body></html>
"""


def write_report(path: Path, report: dict[str, Any], figures: Path) -> None:
    """Write report.html.

    Args:
        path: The HTML file, in the folder of the quickstart.
        report: Contents of report.json.
        figures: Folder of the figures.
    """
    circle, digits, provenance = report["circle"], report["digits"], report["provenance"]
    page = _PAGE.format(
        seconds=provenance["wall_seconds"],
        gallery=digits["gallery"],
        questions=digits["questions"],
        circle_numbers=_numbers(
            [
                (f"{circle['mu_rank']:.3f}", "rank correlation of true and learned directions"),
                (f"{circle['kappa_rank']:.3f}", "rank correlation of true and learned certainties kappa"),
                (f"{circle['coverage']['0.95']:.1%}", "of true latents are in their credible cap, which names 95%"),
            ]
        ),
        circle_figures=_figure(
            figures / "circle.png",
            "Five inputs. Left: their true posteriors. Middle: the learned ones. Right: the learned ones, rotated to "
            "match.",
            wide=True,
        ),
        digit_numbers=_numbers(
            [
                (f"{digits['recall_at_1']:.1%}", "of degraded digits have a nearest neighbour with the same numeral"),
                (f"{digits['recall_at_1_surer_half']:.1%}", "of the half with the larger kappa"),
                (f"{digits['degradation_rank']:.2f}", "rank correlation of uncertainty and strength of degradation"),
                (f"{digits['match_ece_hits']:.3f}", "calibration error of the match probabilities of hits"),
            ]
        ),
        digit_figures=_figure(figures / "digits-examples.png", "Degraded digits with their kappa.", wide=True)
        + _figure(figures / "digits-kappa.png", "Certainty falls with degradation (median, half and 90% of images).")
        + _figure(figures / "digits-reject-curve.png", "Without the least certain images, more answers are right.")
        + _figure(figures / "digits-reliability.png", "Observed share of matches against the match probability."),
        samples="".join(_sample(path.parent, sample, digits["gallery"]) for sample in digits["sample_questions"]),
        search_numbers=_numbers(
            [
                (
                    f"{digits['credible_set_holds_the_numeral']:.1%}",
                    "of credible sets contain the right numeral; they name 95%",
                ),
                *(
                    (f"{count:.1f}", f"numerals in a set, on average, at strength {name}")
                    for name, count in digits["numerals_in_the_credible_set"].items()
                ),
            ]
        ),
        empty=f"{digits['empty_credible_sets']} of {digits['questions']} sets are empty: the image, often one with "
        "noise, is not close to any clear digit. An empty set counts as one that misses the right numeral.",
        modes_figure=_modes_figure(figures / "either-or.png"),
        modes=html.escape(" ".join(report["modes"]["sentences"])),
        next_commands=html.escape("\n".join(next_commands(path.parent))),
        provenance=html.escape(
            f"{provenance['device']}; commit {provenance['commit'] or 'unknown'}; "
            + ", ".join(f"{name} {version}" for name, version in provenance["versions"].items())
        ),
    )
    path.write_text(page, encoding="utf-8")


def next_commands(folder: Path) -> list[str]:
    """Command lines to try next.

    Args:
        folder: Folder of the quickstart.
    """
    return [
        f"aleator rank {folder}/questions.safetensors",
        f"aleator query {folder}/index {folder}/questions.safetensors --by match --limit 3",
        f"aleator serve {folder}/index --model {folder}/run --root {folder}/gallery",
        "aleator train YOUR-FOLDER --output runs/mine        # images in class folders, .csv, or .npy features",
    ]


def _sample(folder: Path, sample: dict[str, Any], gallery: int) -> str:
    """A sample question as HTML: picture, certainty, credible set by numeral, and what to see."""
    hits = sum(share["count"] for share in sample["numerals"])
    certainty = (
        f"Certainty {sample['certainty']}. Its credible set (kappa {sample['kappa']:.3g}, a radius of "
        f"{sample['cap_degrees']:.0f}\N{DEGREE SIGN}) contains {hits} of {gallery} digits."
    )
    rows = "".join(
        f"<li{' class=right' if share['numeral'] == sample['numeral'] else ''}>"
        f"{_picture(folder / 'gallery' / share['nearest'], 'nearest ' + share['numeral'])}"
        f"<b>{html.escape(share['numeral'])}</b>"
        f'<i style="width:{share["share"]:.1%}"></i>'
        f"<span>{share['share']:.0%} ({share['count']})</span></li>"
        for share in sample["numerals"]
    )
    return (
        f'<article class="question">{_picture(folder / sample["image"], sample["title"])}<div>'
        f"<h3>{html.escape(sample['title'])}</h3>"
        f'<p class="quiet">{html.escape(certainty)}</p>'
        f'<ul class="shares">{rows}</ul>'
        f"<p>{html.escape(sample['explanation'])}</p></div></article>"
    )


def _modes_figure(path: Path) -> str:
    """The figure of digits that could be one of two; nothing if there are none."""
    caption = "Digits that could be one of two numerals: the two groups of answers, next to the one set of one mode."
    return f'<div class="figures">{_figure(path, caption, wide=True)}</div>' if path.exists() else ""


def _numbers(cards: list[tuple[str, str]]) -> str:
    """Numbers as cards: each number, formatted, with its meaning."""
    return "".join(
        f"<li><b>{html.escape(number)}</b><span>{html.escape(meaning)}</span></li>" for number, meaning in cards
    )


def _figure(path: Path, caption: str, wide: bool = False) -> str:
    """A figure with a caption."""
    css_class = ' class="wide"' if wide else ""
    return f"<figure{css_class}>{_picture(path, caption)}<figcaption>{html.escape(caption)}</figcaption></figure>"


def _picture(path: Path, description: str) -> str:
    """An image that is part of the page."""
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img src="data:image/png;base64,{data}" alt="{html.escape(description)}">'
