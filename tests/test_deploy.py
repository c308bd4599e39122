"""The Dockerfile and the compose file, read: Docker does not run in the tests. `make wheel` runs the image's script."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def stages():
    """The instructions of the Dockerfile, by stage, as (name, rest) pairs."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    found: list[list[list[str]]] = []
    for line in lines:
        if line[0] == "FROM":
            found.append([])
        found[-1].append(line)
    return found


def rests(stage, name):
    return [rest for instruction, rest in stage if instruction == name]


def test_the_image_is_built_by_the_script_that_make_wheel_runs(stages):
    (install,) = [step for step in rests(stages[0], "RUN") if "install.sh" in step]
    words = shlex.split(install)
    place = words.index("deploy/install.sh")
    assert words[place + 1 : place + 3] == ["/opt/aleator", "constraints.txt"]
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(
        r"^wheel:.*\n(\t.*\n)*\t.*deploy/install\.sh build/wheel/venv constraints\.txt", makefile, re.MULTILINE
    )
    others = [step for step in rests(stages[0], "RUN") if "install.sh" not in step]
    assert others == ["pip wheel --quiet --no-cache-dir --no-deps --wheel-dir dist ."]
    assert ["COPY", "--from=build /opt/aleator /opt/aleator"] in stages[1]


def test_the_last_stage_runs_the_server_as_an_ordinary_user(stages):
    last = stages[-1]
    (user,) = rests(last, "USER")
    (made,) = [step for step in rests(last, "RUN") if "useradd" in step]
    assert user == made.split()[-1] == "aleator"
    names = [instruction for instruction, _ in last]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert rests(last, "ENTRYPOINT") == ['["aleator"]']
    assert rests(last, "STOPSIGNAL") == ["SIGTERM"]
    (check,) = rests(last, "HEALTHCHECK")
    assert "/api/health" in check
    assert "-slim" in rests(last, "FROM")[0]


def test_every_file_that_is_copied_exists_and_is_not_ignored(stages):
    ignored = (ROOT / ".dockerignore").read_text().split()
    for step in rests(stages[0], "COPY"):
        for name in step.split()[:-1]:
            assert (ROOT / name).exists()
            assert f"!{name.split('/')[0]}" in ignored


def test_no_secret_and_no_private_host_is_written_down(stages):
    for name in ("Dockerfile", "deploy/compose.yaml", "deploy/compose-object-store.yaml", "deploy/install.sh"):
        text = (ROOT / name).read_text()
        assert set(re.findall(r"https?://([\w.-]+)", text)) <= {
            "download.pytorch.org",
            "pypi.org",
            "127.0.0.1",
            "store",
        }
        assert not re.search(r"(PASSWORD|TOKEN|_KEY|_KEY_ID): (?!\$\{)", text)


def test_the_services_fit_together():
    yaml = pytest.importorskip("yaml")
    services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
    server, database = services["server"], services["database"]
    assert database["environment"]["POSTGRES_USER"] in server["command"][1]
    assert "@database/" in server["command"][1]
    assert server["read_only"] is True
    assert server["cap_drop"] == ["ALL"]
    for service in (server, database):  # logs have an end
        assert service["logging"]["options"] == {"max-size": "10m", "max-file": "3"}
    from typer.testing import CliRunner

    from aleator.cli import app

    help = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200"}).output
    assert all(option in help for option in server["command"] if option.startswith("--"))


def test_the_server_finds_its_object_store():
    yaml = pytest.importorskip("yaml")
    services = yaml.safe_load((ROOT / "deploy" / "compose-object-store.yaml").read_text())["services"]
    server, store = services["server"], services["store"]
    bucket = server["command"][1].removeprefix("s3://").split("/")[0]
    assert f"/data/{bucket} " in store["entrypoint"][-1]
    assert "//store:" in server["environment"]["AWS_ENDPOINT_URL"]
    assert server["environment"]["AWS_SECRET_ACCESS_KEY"] == store["environment"]["MINIO_ROOT_PASSWORD"]
    assert server["build"]["args"] == {"EXTRAS": "lance"}
    assert server["read_only"] is True
    assert server["cap_drop"] == ["ALL"]
    for service in (server, store):
        assert service["logging"]["options"] == {"max-size": "10m", "max-file": "3"}


def test_the_script_installs_into_a_new_environment(tmp_path):
    """With pip replaced: what it would install, and from where."""
    fake = tmp_path / "python"
    fake.write_text(
        '#!/bin/sh\nmkdir -p "$3/bin"\nprintf \'#!/bin/sh\\necho "$@"\\n\' > "$3/bin/pip"\nchmod +x "$3/bin/pip"\n'
    )
    fake.chmod(0o755)
    run = [str(ROOT / "deploy" / "install.sh"), str(tmp_path / "venv"), "pins.txt", "a.whl"]
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": str(fake)}
    plain = subprocess.run(run, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    assert plain == [
        "install --quiet --no-cache-dir -c pins.txt torch",
        "install --quiet --no-cache-dir -c pins.txt a.whl",
    ]
    environment["TORCH_INDEX"] = "https://host/cpu"
    other = subprocess.run([*run, "postgres"], env=environment, capture_output=True, text=True, check=True).stdout
    assert "--extra-index-url https://host/cpu torch" in other
    assert "a.whl[postgres]" in other
