"""An S3 server on this machine: moto's, with faults on demand."""

import contextlib
import logging
import random
import threading
import time
from collections.abc import Iterator


class ObjectStore:
    """Serves S3 on 127.0.0.1. `disturb` makes some of its answers fail or come late.

    Requests are taken one after the other, because moto does not make a conditional PUT atomic.
    """

    bucket = "collection"

    def __init__(self):
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._application = DomainDispatcherApplication(create_backend_app)
        self._one = threading.Lock()
        self._draw = random.Random(0)
        self.faults = 0
        self.calm()
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._server.server_port}",
            "AWS_ACCESS_KEY_ID": "testing-access",
            "AWS_SECRET_ACCESS_KEY": "testing-secret-hunter2",
            "AWS_REGION": "us-east-1",
        }

    def calm(self) -> None:
        self._before = self._after = self._late = 0.0

    @contextlib.contextmanager
    def disturbed(self, before: float = 0.0, after: float = 0.0, late: float = 0.0) -> Iterator[None]:
        """Shares of requests that fail before they do anything, that fail after they did it, and that come late."""
        self._before, self._after, self._late = before, after, late
        try:
            yield
        finally:
            self.calm()

    def _answer(self, environ, start_response):
        with self._one:
            chance, late = self._draw.random(), self._draw.random() < self._late
            if late:
                time.sleep(self._draw.uniform(0, 0.05))
            if chance < self._before:
                return self._fail(environ, start_response)
            if chance < self._before + self._after:
                list(self._application(environ, lambda *_: None))
                return self._fail(environ, start_response)
            return self._application(environ, start_response)

    def _fail(self, environ, start_response):
        self.faults += 1
        length = int(environ.get("CONTENT_LENGTH") or 0)
        if length:
            environ["wsgi.input"].read(length) if self._after == 0 else None
        status, code = self._draw.choice([("503 Slow Down", "SlowDown"), ("500 Internal Error", "InternalError")])
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>try again</Message></Error>".encode()
        start_response(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
        return [body]

    def __enter__(self) -> "ObjectStore":
        import boto3

        self._thread.start()
        client = boto3.client(
            "s3",
            endpoint_url=self.environment["AWS_ENDPOINT_URL"],
            aws_access_key_id="testing-access",
            aws_secret_access_key="testing-secret",
            region_name="us-east-1",
        )
        client.create_bucket(Bucket=self.bucket)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
