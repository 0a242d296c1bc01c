"""How an object store is named: [storage], the environment, and the words of three libraries."""

import pickle

import pytest

from chronik.spark.lake.failures import complaint
from chronik.spark.lake.object_store import BY_ITSELF, ObjectStore
from chronik.spark.lake.table import LakeError
from chronik.spark.lake.warehouse import Warehouse

URL = "s3://bucket/path"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENDPOINT_URL", "REGION", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)


def test_settings_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://from-environment")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "theirs")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    found = ObjectStore.of(URL, {"AWS_REGION": "eu-central-1"})
    assert (found.endpoint_url, found.region) == ("http://from-environment", "eu-central-1")
    assert (found.access_key_id, found.session_token) == ("theirs", "token")
    # Keys come from one place: a token of the environment does not fit a key of the file.
    ours = ObjectStore.of(URL, {"access_key_id": "ours", "secret_access_key": "s"})
    assert (ours.access_key_id, ours.session_token) == ("ours", "")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://s3-only")
    assert ObjectStore.of(URL, {}).endpoint_url == "http://s3-only"
    assert ObjectStore.of("/data/lake", {}) == BY_ITSELF


def test_what_tasks_are_handed_is_what_the_driver_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://at-the-driver")
    pickled = pickle.dumps(Warehouse(url=URL))
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    assert pickle.loads(pickled).storage.store.endpoint_url == "http://at-the-driver"


def test_each_library_hears_its_own_words() -> None:
    store = ObjectStore(
        endpoint_url="http://localhost:9000",
        region="r",
        access_key_id="a",
        secret_access_key="s",
        session_token="t",
    )
    delta = store.delta_options(URL)
    assert (delta["aws_access_key_id"], delta["aws_allow_http"]) == ("a", "true")
    iceberg = store.iceberg_properties(URL)
    assert (iceberg["s3.endpoint"], iceberg["s3.region"]) == ("http://localhost:9000", "r")
    assert (iceberg["s3.secret-access-key"], iceberg["s3.session-token"]) == ("s", "t")
    assert "aws_allow_http" not in ObjectStore().delta_options(URL)
    assert not any(name.startswith("aws") for name in ObjectStore().delta_options("gs://b/p"))
    assert ObjectStore().delta_options("/data/lake") == {}


@pytest.mark.parametrize(
    ("url", "settings", "words"),
    [
        ("s3://key:hidden@bucket/path", {}, "no more"),
        ("s3://bucket/path?secret=hidden", {}, "no more"),
        ("s3:///path", {}, "names no bucket"),
        (URL, {"endpoint": "hidden"}, "has no setting endpoint; .*endpoint_url"),
        (URL, {"access_key_id": "a"}, "belong together"),
        ("gs://bucket/path", {"region": "hidden"}, r"\[storage\] is for s3:// only"),
    ],
)
def test_wrong_settings_are_told_without_secrets(
    url: str, settings: dict[str, str], words: str
) -> None:
    with pytest.raises(LakeError, match=words) as error:
        Warehouse(url=url, storage_options=settings)
    assert "hidden" not in str(error.value)


def test_secrets_are_in_no_text() -> None:
    place = Warehouse(
        url=URL, storage_options={"access_key_id": "hidden", "secret_access_key": "hidden"}
    )
    assert "hidden" not in f"{place!r} {place.storage!r} {place.storage.store!r}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a\n  \x1b[31m↳\x1b[0m 404\n <Code>NoSuchBucket</Code>", "no such bucket"),
        ("When x: AWS Error ACCESS_DENIED during HeadBucket", "refuses us .ACCESS_DENIED."),
        ("AWS Error NETWORK_CONNECTION during x", "no object store answers"),
        ("Generic S3 error\n error sending request", "no object store answers"),
        ("one\ntwo " + "x" * 1000, "one two xxx"),
    ],
)
def test_complaints_are_one_short_line(text: str, words: str) -> None:
    said = complaint(OSError(text))
    assert words.replace(".", "") in said.replace(".", "").replace("(", "").replace(")", "")
    assert "\n" not in said
    assert len(said) < 320
