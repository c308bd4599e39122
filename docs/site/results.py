"""The results on the site: results/README.md and its figures, which lie beside docs/ and not in it."""

from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]


def on_files(files, config):
    """Add the report and every figure of results/ to the site, under results/."""
    paths = [ROOT / "results" / "README.md", *sorted((ROOT / "results").rglob("*.png"))]
    for path in paths:
        source = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, source, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown, page, config, files):
    """In the repository, docs/ and results/ are neighbours; on the site, results/ lies inside."""
    return markdown.replace("../results/", "results/")
