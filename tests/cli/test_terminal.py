"""Names and labels of files reach the terminal as text: nothing in them steers it or turns the direction of a line."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from aleator import VonMisesFisher
from aleator.cli import terminal
from aleator.own_data import read_labels_of
from tests.cli.test_own_data import run_command

ESCAPES = "\x1b[31m\x1b]0;owned\x07", "\x9b2J", "\u202egnp", "\u2066x\u2069", "\r\x08", "\u2028"
STEERING = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """An index and posteriors whose ids, labels and other metadata are hostile, in a folder with such a name."""
    folder = tmp_path_factory.mktemp("files") / "\x1b[8mhidden"
    folder.mkdir()
    q = VonMisesFisher(torch.eye(6), torch.linspace(2.0, 100.0, 6))
    save_file({"mu": q.mu.contiguous(), "kappa": q.kappa.contiguous()}, folder / "q.safetensors", {"source": "x"})
    records = [{"id": f"{i}{text}", "label": text, "note": text} for i, text in enumerate(ESCAPES)]
    (folder / "q.jsonl").write_text("\n".join(map(json.dumps, records)))
    run_command("index", "build", folder / "index", folder / "q.safetensors")
    return folder, records


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("rank", "q.safetensors"), 0),
        (("rank", "q.safetensors", "--json"), 0),
        (("query", "index", "q.safetensors", "--p", "0.999"), 0),
        (("query", "index", "q.safetensors", "--json"), 0),
        (("index", "info", "index"), 0),
        (("index", "check", "index"), 0),
        (("index", "remove", "index", "\x1b[31mnone"), 2),
        (("rank", "nothing\u202e.safetensors"), 2),
    ],
)
def test_nothing_printed_steers_a_terminal(hostile, arguments, code):
    folder, records = hostile
    paths = [folder / word if word.startswith(("q.", "index", "nothing")) else word for word in arguments[1:]]
    paths = ["info", folder / "index"] if arguments[:2] == ("index", "info") else paths
    paths = ["check", folder / "index"] if arguments[:2] == ("index", "check") else paths
    paths = ["remove", folder / "index", arguments[3]] if arguments[:2] == ("index", "remove") else paths
    result = run_command(arguments[0], *paths, code=code)
    assert not STEERING.findall(result.output)
    if arguments[0] == "rank" and "--json" in arguments:
        assert [row["id"] for row in json.loads(result.stdout)] == [record["id"] for record in records]
    elif code == 0 and arguments[0] in ("rank", "query") and "--json" not in arguments:
        assert "u202egnp" in "".join(result.stdout.split())  # it is shown, and not left out


def test_a_warning_is_one_line_of_text(hostile):
    folder, _ = hostile
    code = "import sys, warnings; from aleator import cli\ncli.app = lambda: warnings.warn(sys.argv[1])\ncli.main()"
    warned = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True)
    assert warned.stderr == f"Warning: {folder.parent}/\\u001b[8mhidden\n"


def test_only_one_module_of_the_command_line_prints():
    for path in Path(terminal.__file__).parent.glob("*.py"):
        called = {
            node.func.id
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert path.name == "terminal.py" or not called & {"print", "Console"}, path.name


def test_a_table_for_spreadsheets_holds_no_formula_and_is_read_back(tmp_path):
    ids = ["=HYPERLINK(1)", "+1", "-cat", "@sum", "\tx", "'=quoted", "it's", "-0.5"]
    q = VonMisesFisher(torch.eye(8), torch.linspace(2.0, 100.0, 8))
    save_file({"mu": q.mu.contiguous(), "kappa": q.kappa.contiguous()}, tmp_path / "q.safetensors")
    records = [{"id": id, "label": f"{id}!".strip()} for id in ids]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, records)))
    printed = run_command("rank", tmp_path / "q.safetensors", "--csv").stdout
    cells = [cell.strip('"') for line in printed.splitlines() for cell in line.split(",")]
    assert {cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t"))} == {"+1", "-0.5"}
    (tmp_path / "ranked.csv").write_text(printed)
    labels = read_labels_of(tmp_path / "ranked.csv", records, "q.safetensors")
    assert [labels.names[number] for number in labels.values] == [record["label"] for record in records]
