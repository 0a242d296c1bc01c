"""How to reach an object store: one set of settings, in the words of each library.

Files are written by pyarrow, Delta's log by `deltalake`, Iceberg's metadata by `pyiceberg`; each
has names of its own for an endpoint and a key. Settings come from the pipeline's [storage] and,
where it says nothing, from the usual AWS_* variables of whoever starts the work: tasks on other
machines are handed what was found there. Where nothing is said at all, each library asks the
machine it runs on (a role, a profile).

Secrets are in no text of this class, and travel only inside pickled tasks.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Self

from chronik.spark.lake.table import LakeError

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Store
    from pyarrow import fs

S3_SCHEMES: Final = ("s3://", "s3a://")
# A store that does not answer is told of soon, and one that stumbles is asked again.
CONNECT_TIMEOUT_S: Final = 5
REQUEST_TIMEOUT_S: Final = 60
ATTEMPTS_MAX: Final = 5
RETRY_TIMEOUT_S: Final = 60
REGION: Final = "us-east-1"  # what stores other than AWS take for any
_ENVIRONMENT: Final[dict[str, tuple[str, ...]]] = {
    "endpoint_url": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "access_key_id": ("AWS_ACCESS_KEY_ID",),
    "secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
    "session_token": ("AWS_SESSION_TOKEN",),
}
_KEYS: Final = ("access_key_id", "secret_access_key", "session_token")


def is_local(url: str) -> bool:
    """Whether a URL is a path of this machine."""
    return "://" not in url or url.startswith("file://")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStore:
    """An S3-compatible store; of other stores, what their libraries find by themselves."""

    endpoint_url: str = ""
    region: str = ""
    access_key_id: str = field(default="", repr=False)
    secret_access_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)

    @classmethod
    def of(cls, url: str, settings: Mapping[str, str]) -> Self:
        """The store of a URL, by these settings and the environment. Raises LakeError."""
        if is_local(url):
            return cls()
        _check_url(url)
        if not url.startswith(S3_SCHEMES):
            if settings:
                raise LakeError(
                    f"[storage] is for s3:// only: what {url} needs, its libraries take from the "
                    "environment"
                )
            return cls()
        found = {_name(key): value for key, value in settings.items()}
        # Keys belong together: one from here and one from there would open nothing.
        wanted = [key for key in _ENVIRONMENT if key not in _KEYS or not found.keys() & set(_KEYS)]
        for key in wanted:
            values = (os.environ.get(name, "") for name in _ENVIRONMENT[key])
            found.setdefault(key, next(filter(None, values), ""))
        store = cls(**found)
        if bool(store.access_key_id) != bool(store.secret_access_key):
            raise LakeError(
                "access_key_id and secret_access_key belong together: give both under [storage], "
                "or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        return store

    @property
    def name(self) -> str:
        """Where it is, for people."""
        return self.endpoint_url or "the default endpoint"

    def file_system(self, url: str) -> "tuple[fs.FileSystem, str]":
        """pyarrow's file system for a URL, and the path in it."""
        from pyarrow import fs

        if not url.startswith(S3_SCHEMES):
            opened, path = fs.FileSystem.from_uri(url)
            return opened, path
        return _s3(self), url.split("://", 1)[1].rstrip("/")

    def delta_options(self, url: str) -> dict[str, str]:
        """The same for `deltalake`."""
        if is_local(url):
            return {}
        return {
            "connect_timeout": f"{CONNECT_TIMEOUT_S}s",
            "timeout": f"{REQUEST_TIMEOUT_S}s",
            "max_retries": str(ATTEMPTS_MAX - 1),
            "retry_timeout": f"{RETRY_TIMEOUT_S}s",
            **self._aws(url),
            **({"aws_allow_http": "true"} if self._is_plain else {}),
        }

    def obstore(self, url: str) -> "Store":
        """The same for `obstore`: a client."""
        from obstore.store import from_url

        # Its types have a call for each kind of store.
        reach: Any = {
            "config": self._aws(url),
            "client_options": {
                "connect_timeout": f"{CONNECT_TIMEOUT_S}s",
                "timeout": f"{REQUEST_TIMEOUT_S}s",
                "allow_http": self._is_plain,
            },
            "retry_config": {"max_retries": ATTEMPTS_MAX - 1},
        }
        return from_url(url, **reach)

    @property
    def _is_plain(self) -> bool:
        return self.endpoint_url.startswith("http://")

    def _aws(self, url: str) -> dict[str, str]:
        if not url.startswith(S3_SCHEMES):
            return {}
        said = {f"aws_{name}": value for name, value in self._said().items()}
        return {"aws_region": REGION, **said}

    def iceberg_properties(self, url: str) -> dict[str, str]:
        """The same for `pyiceberg`."""
        if not url.startswith(S3_SCHEMES):
            return {}
        names = {"endpoint_url": "endpoint"}
        said = {
            f"s3.{names.get(name, name.replace('_', '-'))}": value
            for name, value in self._said().items()
        }
        return {
            "s3.region": REGION,
            "s3.connect-timeout": str(CONNECT_TIMEOUT_S),
            "s3.request-timeout": str(REQUEST_TIMEOUT_S),
            **said,
        }

    def _said(self) -> dict[str, str]:
        found = {each.name: str(getattr(self, each.name)) for each in fields(self)}
        return {name: value for name, value in found.items() if value}


BY_ITSELF: Final = ObjectStore()  # nothing is said: a local disk, or what the libraries find


@lru_cache(maxsize=16)  # Connections are kept open: a client a file would open one a file.
def _s3(store: ObjectStore) -> "fs.S3FileSystem":
    from pyarrow import fs

    return fs.S3FileSystem(
        access_key=store.access_key_id or None,
        secret_key=store.secret_access_key or None,
        session_token=store.session_token or None,
        region=store.region or REGION,
        endpoint_override=store.endpoint_url or None,
        connect_timeout=CONNECT_TIMEOUT_S,
        request_timeout=REQUEST_TIMEOUT_S,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS_MAX),
    )


def _check_url(url: str) -> None:
    scheme, _, rest = url.partition("://")
    host = rest.partition("/")[0]
    if "?" in rest or (scheme in ("s3", "s3a") and "@" in host):
        # Not shown: there may be a key in it.
        raise LakeError(
            f"the warehouse is {scheme}://bucket/path and no more: endpoint and keys belong under "
            "[storage], or into AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if not host:
        raise LakeError(f"the warehouse {url} names no bucket: write {scheme}://bucket/path")


def _name(key: str) -> str:
    """A setting's name; AWS's own, such as AWS_REGION, is as good."""
    name = key.lower().removeprefix("aws_")
    if name not in _ENVIRONMENT:
        raise LakeError(
            f"[storage] has no setting {key}; the settings are {', '.join(_ENVIRONMENT)}"
        )
    return name
