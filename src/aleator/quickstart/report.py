"""The report of the quickstart: one HTML file with its figures inside."""

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
main {{ max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }}
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
figure.wide {{ grid-column: 1 / -1; }}
figure img {{ width: 100%; height: auto; max-height: 26rem; object-fit: contain; background: #fff;
  border-radius: .25rem; margin: auto 0; }}
figcaption {{ font-size: .88rem; padding-top: .6rem; }}
pre {{ background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .9rem 1rem;
  overflow-x: auto; font-size: .88rem; line-height: 1.5; }}
footer {{ margin-top: 3rem; font-size: .84rem; overflow-wrap: anywhere; }}
</style>
</head>
<body><main>
<h1>Embeddings that know what they do not know</h1>
<p class="quiet">What <code>aleator quickstart</code> did on this machine, in {seconds:.0f} seconds.</p>

<h2>Known posteriors, recovered from matching pairs</h2>
<p>A process in the plane blurs each input by a known amount. An encoder sees nothing but pairs that match, and finds
every input's direction and certainty again, up to a rotation of the whole.</p>
<ul class="numbers">{circle_numbers}</ul>
<div class="figures">{circle_figures}</div>

<h2>Real images: digits, some of them hard to read</h2>
<p>Every digit is made worse by a random amount: noise, blur, or a grey square over a part of it. The encoder is told
which digits show the same numeral, never how bad an image is. Its certainty kappa finds out.</p>
<ul class="numbers">{digit_numbers}</ul>
<div class="figures">{digit_figures}</div>

<h2>Which digits could this be?</h2>
<p>An index holds {gallery} clear digits. For each of {questions} degraded ones that the encoder has never seen it
answers with the 95 % credible set: one numeral where the image is clear, several where it is not.</p>
<ul class="numbers">{search_numbers}</ul>
<div class="figures">{search_figures}</div>

<h2>What to try next</h2>
<p>Everything lies in this folder, in the form that the commands use for your own data.</p>
<pre>{next_commands}</pre>
<footer>{provenance}</footer>
</main></body></html>
"""


def write_report(path: Path, report: dict[str, Any], figures: Path) -> None:
    circle, digits, origin = report["circle"], report["digits"], report["provenance"]
    numerals = digits["numerals_in_the_credible_set"]
    page = _PAGE.format(
        seconds=origin["wall_seconds"],
        gallery=digits["gallery"],
        questions=digits["questions"],
        circle_numbers=_numbers(
            {
                f"{circle['mu_rank']:.3f}": "rank correlation of directions, true and learned",
                f"{circle['kappa_rank']:.3f}": "rank correlation of certainties kappa",
                f"{circle['coverage']['0.95']:.1%}": "of true latents lie in their 95 % credible cap",
            }
        ),
        circle_figures=_figure(
            figures / "circle.png",
            "Five inputs. Left: their true posteriors. Middle: as learned. Right: the learned ones, turned to match.",
            wide=True,
        ),
        digit_numbers=_numbers(
            {
                f"{digits['recall_at_1']:.1%}": "of degraded digits have a neighbour that shows the same numeral",
                f"{digits['recall_at_1_surer_half']:.1%}": "of the surer half",
                f"{digits['degradation_rank']:.2f}": "rank correlation of uncertainty with the degradation's strength",
                f"{digits['match_ece']:.3f}": "calibration error of match probabilities",
            }
        ),
        digit_figures=_figure(figures / "digits-examples.png", "Unseen digits with their kappa.", wide=True)
        + _figure(figures / "digits-kappa.png", "Certainty falls as images get worse (median, half, nine tenths).")
        + _figure(figures / "digits-reject-curve.png", "Leave out the least sure, and the rest is right more often.")
        + _figure(figures / "digits-reliability.png", "Pairs said to match so often do match so often."),
        search_numbers=_numbers(
            {f"{digits['credible_set_holds_the_numeral']:.1%}": "of credible sets hold the right numeral"}
            | {f"{count:.1f}": f"numerals in a set, at strength {name}" for name, count in numerals.items()}
        ),
        search_figures=_figure(
            figures / "digits-answers.png",
            "Questions from sure to unsure; the nearest of each numeral that one could be, with its match probability.",
            wide=True,
        ),
        next_commands=html.escape("\n".join(next_commands(path.parent))),
        provenance=html.escape(
            f"{origin['device']}; commit {origin['commit'] or 'unknown'}; "
            + ", ".join(f"{name} {version}" for name, version in origin["versions"].items())
        ),
    )
    path.write_text(page, encoding="utf-8")


def next_commands(folder: Path) -> list[str]:
    """What to try next, as command lines."""
    return [
        f"aleator rank {folder}/questions.safetensors",
        f"aleator query {folder}/index {folder}/questions.safetensors --by match --limit 3",
        f"aleator serve {folder}/index --model {folder}/run --root {folder}/gallery",
        "aleator train YOUR-FOLDER --output runs/mine        # images in class folders, .csv, or .npy features",
    ]


def _numbers(values: dict[str, str]) -> str:
    return "".join(
        f"<li><b>{html.escape(value)}</b><span>{html.escape(what)}</span></li>" for value, what in values.items()
    )


def _figure(path: Path, caption: str, wide: bool = False) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    text = html.escape(caption)
    kind = ' class="wide"' if wide else ""
    return (
        f'<figure{kind}><img src="data:image/png;base64,{data}" alt="{text}"><figcaption>{text}</figcaption></figure>'
    )
