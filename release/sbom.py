"""What a release consists of: an SBOM (CycloneDX 1.5) and a table of licences, from the packages that are installed.

python release/sbom.py build/sbom.json docs/licences.md
"""

import json
import re
import sys
from importlib import metadata
from pathlib import Path

ROOT = "aleator"
_NAMES = {  # how packages write the same licence
    "apache": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "mit": "MIT",
    "mozilla": "MPL-2.0",
    "mpl": "MPL-2.0",
    "lgpl": "LGPL-3.0",
    "lesser general public": "LGPL-3.0",
    "python software foundation": "PSF-2.0",
    "psf": "PSF-2.0",
    "historical permission": "HPND",
    "hpnd": "HPND",
    "isc": "ISC",
    "unlicense": "Unlicense",
    "matplotlib": "PSF-2.0",
}


def closure(extras: tuple[str, ...] = ()) -> dict[str, metadata.Distribution]:
    """The installed packages that aleator needs, directly or not, by their normal name."""
    found: dict[str, metadata.Distribution] = {}
    pending = [(ROOT, frozenset(extras))]
    while pending:
        name, wanted = pending.pop()
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        known = normal(name) in found
        found[normal(name)] = distribution
        if known and not wanted:
            continue
        for requirement in distribution.requires or []:
            match = re.match(r"([A-Za-z0-9._-]+)(?:\[([^\]]*)\])?", requirement)
            assert match is not None
            marker = requirement.partition(";")[2]
            extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", marker)
            if extra is not None and extra.group(1) not in wanted:
                continue
            if "win32" in marker or "darwin" in marker or "Windows" in marker or "Darwin" in marker:
                continue
            inner = frozenset(part.strip() for part in (match.group(2) or "").split(",") if part.strip())
            if normal(match.group(1)) not in found or inner:
                pending.append((match.group(1), inner))
    return dict(sorted(found.items()))


def licence(distribution: metadata.Distribution) -> str:
    """The licence of a package, as it says it: an SPDX expression where it has one."""
    facts = distribution.metadata
    if facts.get("License-Expression"):
        return facts["License-Expression"]
    classifiers = [
        line.rsplit(" :: ", 1)[-1] for line in facts.get_all("Classifier") or [] if line.startswith("License")
    ]
    said = [text for text in (*classifiers, (facts.get("License") or "").strip().split("\n")[0]) if text]
    for text in said:
        if re.fullmatch(r"[A-Za-z0-9.+-]+( (AND|OR|WITH) [A-Za-z0-9.+-]+)*", text) and text.lower() not in _NAMES:
            return text
        for word, spdx in _NAMES.items():
            if word in text.lower():
                return spdx
    return said[0] if said else "not stated"


def normal(name: str) -> str:
    """A package name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def sbom(packages: dict[str, metadata.Distribution]) -> dict:
    """The packages as CycloneDX JSON."""
    components = [
        {
            "type": "library",
            "name": name,
            "version": distribution.version,
            "purl": f"pkg:pypi/{name}@{distribution.version}",
            "licenses": [{"license": {"name": licence(distribution)}}],
        }
        for name, distribution in packages.items()
        if name != ROOT
    ]
    own = {"type": "library", "name": ROOT, "version": metadata.version(ROOT)}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": own},
        "components": components,
    }


def table(packages: dict[str, metadata.Distribution]) -> str:
    """The licences as a page of the documentation."""
    lines = [
        "# Licences",
        "",
        "aleator is under the MIT licence. It installs these packages; `make sbom` writes this page and an SBOM.",
        "",
        "| package | licence |",
        "|---|---|",
        *(f"| {name} | {licence(distribution)} |" for name, distribution in packages.items() if name != ROOT),
    ]
    return "\n".join(lines) + "\n"


def main(sbom_path: Path, table_path: Path) -> None:
    packages = closure()
    sbom_path.parent.mkdir(parents=True, exist_ok=True)
    sbom_path.write_text(json.dumps(sbom(packages), indent=1) + "\n")
    table_path.write_text(table(packages))
    print(f"{len(packages) - 1} packages: {sbom_path} and {table_path}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
