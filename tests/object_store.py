"""An S3-compatible object store for tests, on loopback: moto's, with doors that can be shut.

It lets in one key only, and can be told to lose an answer or to forget If-None-Match: what real
stores do on bad days. Everything is in memory, and gone with it. It is a process of its own,
because pyarrow ends an upload that was let go of with Python's lock held: a store in the same
process could never answer.
"""

import logging
import re
import secrets
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlencode
from urllib.request import urlopen

from pyarrow import fs

BUCKET = "lake"
ACCESS_KEY_ID = "an-access-key"
_CONTROL = "/-/be"
_DENIED = b"<Error><Code>InvalidAccessKeyId</Code><Message>who are you?</Message></Error>"
_LOST = b"<Error><Code>InternalError</Code><Message>try again</Message></Error>"
_KEY = re.compile(r"Credential=([^/]+)/")


class TestStore:
    """A running store with one bucket."""

    __test__ = False

    def __init__(self) -> None:
        self.access_key_id = ACCESS_KEY_ID
        self.secret_access_key = f"secret-{secrets.token_hex(16)}"
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.endpoint_url = self._process.stdout.readline().strip()
        self.files(allow_bucket_creation=True).create_dir(BUCKET)

    def close(self) -> None:
        self._process.communicate("")
        assert self._process.returncode == 0

    def url(self, *parts: str) -> str:
        return "/".join([f"s3://{BUCKET}", *parts])

    @property
    def options(self) -> dict[str, str]:
        """As under [storage]."""
        return {
            "endpoint_url": self.endpoint_url,
            "access_key_id": self.access_key_id,
            "secret_access_key": self.secret_access_key,
        }

    @property
    def environment(self) -> dict[str, str]:
        return {f"AWS_{name.upper()}": value for name, value in self.options.items()}

    def files(self, **more: Any) -> fs.S3FileSystem:
        """The store as a file system that is not the code under test."""
        return fs.S3FileSystem(
            access_key=self.access_key_id,
            secret_key=self.secret_access_key,
            region="us-east-1",
            endpoint_override=self.endpoint_url,
            **more,
        )

    def objects(self, path: str = "") -> dict[str, bytes]:
        """Everything below a path of the bucket, by its name."""
        files = self.files()
        root = f"{BUCKET}/{path}".rstrip("/")
        found = files.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
        objects = {}
        for each in found:
            if each.type is fs.FileType.File:
                with files.open_input_file(each.path) as stream:
                    objects[each.path.removeprefix(f"{BUCKET}/")] = stream.read()
        return objects

    def loses_one_answer(self, method: str, pattern: str) -> None:
        """What the next such request asks for is done, and nobody is told."""
        self._be(lost_method=method, lost_pattern=pattern)

    @contextmanager
    def without_if_none_match(self) -> Iterator[None]:
        """Within: a store that takes the header and does not look at it."""
        self._be(knows_if_none_match="")
        try:
            yield
        finally:
            self._be(knows_if_none_match="yes")

    def _be(self, **how: str) -> None:
        query = urlencode(how, doseq=False)
        with urlopen(f"{self.endpoint_url}{_CONTROL}?{query}", timeout=30) as answer:
            assert answer.status == 200


class Doors:
    """Stands before moto's application."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._how = {"knows_if_none_match": "yes", "lost_method": "", "lost_pattern": ""}

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        if path == _CONTROL:
            self._how.update(parse_qsl(environ["QUERY_STRING"], keep_blank_values=True))
            return _answer(start_response, "200 OK", b"")
        found = _KEY.search(environ.get("HTTP_AUTHORIZATION", ""))
        if found is None or found[1] != ACCESS_KEY_ID:
            return _answer(start_response, "403 Forbidden", _DENIED)
        if not self._how["knows_if_none_match"]:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        if method == self._how["lost_method"] and re.search(self._how["lost_pattern"], path):
            self._how["lost_method"] = ""
            for _ in self._application(environ, lambda *_: None):
                pass
            return _answer(start_response, "500 Internal Server Error", _LOST)
        answer: Iterable[bytes] = self._application(environ, start_response)
        return answer


def _answer(start_response: Any, status: str, body: bytes) -> Iterable[bytes]:
    start_response(status, [("Content-Type", "application/xml")])
    return [body]


def serve() -> None:
    """Say where it is, and serve until standard input ends: with whoever has started it."""
    import threading

    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    doors = Doors(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, doors, threaded=True)
    serving = threading.Thread(target=server.serve_forever, name="object-store")
    serving.start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    sys.stdin.read()
    server.shutdown()
    serving.join()
    server.server_close()


if __name__ == "__main__":
    serve()
