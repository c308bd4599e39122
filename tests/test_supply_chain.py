"""What a release consists of, and what an import does."""

import importlib.util
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Licences that allow use in any product, with their notices.
PERMISSIVE = ("MIT", "BSD", "Apache", "PSF", "HPND", "ISC", "MPL", "Unlicense", "Zlib", "0BSD", "CC0", "Python-2.0")


def load_sbom():
    spec = importlib.util.spec_from_file_location("sbom", ROOT / "release" / "sbom.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def python(*arguments, **environment):
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=300, env={**os.environ, **environment}
    )


def test_the_sbom_lists_every_dependency_with_version_and_licence():
    sbom = load_sbom()
    packages = sbom.closure()
    names = {component["name"]: component for component in sbom.sbom(packages)["components"]}
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for requirement in declared:
        name = sbom.normal(requirement.split(">")[0].split("[")[0])
        assert name in names, name
        assert names[name]["version"]
    for name, component in names.items():
        said = component["licenses"][0]["license"]["name"]
        free = any(word in said for word in PERMISSIVE) or name.startswith("nvidia")
        assert free, f"{name}: {said}"


def test_the_page_of_licences_names_the_declared_dependencies():
    sbom, page = load_sbom(), (ROOT / "docs" / "licences.md").read_text()
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for requirement in declared:
        assert f"| {sbom.normal(requirement.split('>')[0].split('[')[0])} |" in page


NO_NETWORK = """
import socket
def refuse(*_, **__):
    raise AssertionError("an import used the network")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = socket.create_connection = refuse
import aleator, pkgutil, importlib
for name in dir(aleator):
    getattr(aleator, name)
for package in ("retrieval", "own_data", "web", "cli", "evaluation", "training"):
    importlib.import_module(f"aleator.{package}")
"""


def test_an_import_is_silent_and_uses_no_network():
    result = python("-W", "error", "-c", "import aleator")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    result = python("-c", NO_NETWORK)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr


@pytest.mark.slow
def test_a_wheel_is_the_same_when_it_is_built_again(tmp_path):
    build = "import setuptools.build_meta as b, sys; print(b.build_wheel(sys.argv[1]))"
    wheels = []
    for number in (1, 2):
        source = tmp_path / f"source-{number}"
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
        source.mkdir()
        subprocess.run(["tar", "-x", "-C", source], input=archive, check=True)
        (tmp_path / f"out-{number}").mkdir()
        result = subprocess.run(
            [sys.executable, "-c", build, str(tmp_path / f"out-{number}")],
            cwd=source,
            env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stderr
        wheels += [path.read_bytes() for path in (tmp_path / f"out-{number}").glob("*.whl")]
    assert len(wheels) == 2
    assert wheels[0] == wheels[1]


@pytest.mark.parametrize(
    ("status", "said", "expected"),
    [
        (0, "No known vulnerabilities found", (0, "no known weakness")),
        (1, "Found 1 known vulnerability in 1 package", (1, "audited")),
        (1, "requests.exceptions.ConnectionError: Max retries exceeded", (2, "cannot be reached")),
        (1, "No module named pip_audit", (2, "not installed")),
    ],
)
def test_an_audit_that_could_not_be_made_is_not_one_that_found_nothing(status, said, expected):
    spec = importlib.util.spec_from_file_location("audit", ROOT / "release" / "audit.py")
    audit = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(audit)
    code, sentence = audit.verdict(status, said)
    assert (code, expected[1] in sentence) == (expected[0], True)
    pins = audit.pinned((ROOT / "constraints.txt").read_text()).splitlines()
    assert all("==" in pin and "+" not in pin for pin in pins)
