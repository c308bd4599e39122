"""Numbers for Prometheus: right, of all workers together, and only for those who know the token."""

import errno
import json
import re
import subprocess
import sys

import torch
from fastapi.testclient import TestClient

from aleator import CredibleIndex, VonMisesFisher
from aleator.web import Metrics, create_app
from tests.disk_faults import failing

LINE = re.compile(r'[a-z_]+(\{([a-z]+="[^"\n]*",?)+\})? [-+.e\d]+|# (HELP|TYPE) .+')


def numbers(text):
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}


def test_requests_are_counted_by_the_template_of_their_path():
    index = CredibleIndex.build(VonMisesFisher(torch.eye(3), 5.0), ids=["x", "y", "z"])
    client = TestClient(create_app(index))
    client.get("/api/query/item", params={"id": "x"})
    client.get("/", params={"token": "secret"})
    client.get("/api/query/item", params={"id": "nothing"})
    client.get("/static/page.js")
    client.get("/secret/path")
    client.request("FROB", "/api/items")
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert all(LINE.fullmatch(line) for line in response.text.splitlines()), response.text
    assert "secret" not in response.text
    found = numbers(response.text)
    count = 'aleator_requests_total{method="%s",path="%s",status="%d"}'
    assert found[count % ("GET", "/api/query/item", 200)] == 1
    assert found[count % ("GET", "/api/query/item", 404)] == 1
    assert found[count % ("GET", "/static/{name}", 200)] == 1
    assert found[count % ("GET", "other", 404)] == 1
    assert found['aleator_request_seconds_count{path="/api/query/item"}'] == 2
    assert found['aleator_request_seconds_bucket{path="/api/query/item",le="+Inf"}'] == 2
    assert found['aleator_batch_size_count{work="search"}'] == 1
    assert found["aleator_items"] == 3
    assert found["aleator_requests_in_progress"] == 1  # this one


def test_they_need_the_token():
    index = CredibleIndex.build(VonMisesFisher(torch.eye(3), 5.0))
    client = TestClient(create_app(index, token="a-token-of-this-server"))
    assert client.get("/metrics").status_code == 401
    assert client.get("/metrics", headers={"Authorization": "Bearer a-token-of-this-server"}).status_code == 200


def test_a_histogram_is_cumulative():
    metrics = Metrics()
    for size in (1, 3, 100):
        metrics.observe("aleator_batch_size", size, work="search")
    found = numbers(metrics.render())
    edges = {"1": 1, "2": 1, "4": 2, "8": 2, "16": 2, "32": 2, "+Inf": 3}
    assert {edge: found[f'aleator_batch_size_bucket{{work="search",le="{edge}"}}'] for edge in edges} == edges
    assert found['aleator_batch_size_sum{work="search"}'] == 104


def test_labels_are_escaped():
    metrics = Metrics()
    metrics.count("aleator_requests_total", path='a"b\\c\nd')
    assert 'aleator_requests_total{path="a\\"b\\\\c\\nd"} 1' in metrics.render()


def test_a_full_disk_costs_the_numbers_of_that_moment_alone(tmp_path):
    metrics = Metrics(tmp_path)
    metrics.count("aleator_requests_total", status="200")
    metrics.write()
    with failing(1, errno.ENOSPC) as calls:
        metrics.write()  # the task that reads the collection again calls it, and must go on
    assert calls[0] >= 1
    metrics.count("aleator_requests_total", status="200")
    assert numbers(metrics.render())['aleator_requests_total{status="200"}'] == 2


def test_workers_are_summed_also_those_that_died(tmp_path):
    other = f"""
from pathlib import Path
from aleator.web.metrics import Metrics
metrics = Metrics(Path({json.dumps(str(tmp_path))}))
metrics.count("aleator_requests_total", 5, status="200")
metrics.gauge("aleator_requests_in_progress", lambda: 7)
metrics.write()
"""
    subprocess.run([sys.executable, "-c", other], check=True)
    metrics = Metrics(tmp_path)
    metrics.count("aleator_requests_total", 2, status="200")
    metrics.gauge("aleator_requests_in_progress", lambda: 1)
    found = numbers(metrics.render())
    assert found['aleator_requests_total{status="200"}'] == 7
    assert found["aleator_requests_in_progress"] == 1  # the other has none: it is dead
    assert found["aleator_workers"] == 1
