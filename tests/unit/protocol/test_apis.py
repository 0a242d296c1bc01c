"""The API table: what it promises, and that docs/APIS.md says the same."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from chronik.protocol import apis, coordinator_apis
from chronik.protocol.apis import API_VERSIONS, APIS, DESCRIBE_CLUSTER, FETCH, METADATA, Api
from chronik.protocol.coordinator_apis import COORDINATOR_APIS
from chronik.protocol.errors import RETRIABLE, ErrorCode, KafkaError
from chronik.protocol.schema import Versions

ROOT = Path(__file__).parents[3]


def load_apis_doc() -> ModuleType:
    spec = importlib.util.spec_from_file_location("apis_doc", ROOT / "scripts" / "apis_doc.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date() -> None:
    assert load_apis_doc().main(["--check"]) == 0


def test_an_outdated_page_fails_the_check_and_is_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    apis_doc = load_apis_doc()
    page = tmp_path / "APIS.md"
    monkeypatch.setattr(apis_doc, "PAGE", page)
    assert apis_doc.main(["--check"]) == 1
    page.write_text("old")
    assert apis_doc.main(["--check"]) == 1
    assert "out of date" in capsys.readouterr().err
    assert apis_doc.main([]) == 0
    assert apis_doc.main(["--check"]) == 0
    assert "| 1 | Fetch | 0-18 | 12 |" in page.read_text()


def test_unknown_arguments_are_refused() -> None:
    assert load_apis_doc().main(["--what"]) == 2


def test_every_named_api_is_in_the_table_under_its_key() -> None:
    named = {api.key: api for api in vars(apis).values() if isinstance(api, Api)}
    of_coordinators = [api for api in vars(coordinator_apis).values() if isinstance(api, Api)]
    assert of_coordinators == list(COORDINATOR_APIS)
    assert not named.keys() & {api.key for api in of_coordinators}
    assert named | {api.key: api for api in of_coordinators} == APIS


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_messages_are_named_after_their_api(api: Api) -> None:
    assert api.request.__name__ == f"{api.name}Request"
    assert api.response.__name__ == f"{api.name}Response"
    assert api.versions.first == 0
    assert api.flexible_since is None or api.flexible_since in api.versions
    assert api.summary.endswith(".")
    assert "|" not in api.summary + api.notes


def test_versions_that_real_clients_need() -> None:
    # Old librdkafka looks for exactly these, and switches compression off without them.
    assert {0, 3, 7} <= {version for version in range(20) if version in APIS[0].versions}
    assert {4, 10} <= {version for version in range(20) if version in APIS[1].versions}
    assert 1 in APIS[2].versions
    assert 2 in APIS[23].versions
    assert APIS[18].versions == Versions(0, 4)


@pytest.mark.parametrize(
    ("api", "version", "request_header", "response_header"),
    [
        (METADATA, 8, 1, 0),
        (METADATA, 9, 2, 1),
        (FETCH, 11, 1, 0),
        (FETCH, 12, 2, 1),
        (DESCRIBE_CLUSTER, 0, 2, 1),
        (API_VERSIONS, 2, 1, 0),
        (API_VERSIONS, 3, 2, 0),
        (API_VERSIONS, 4, 2, 0),
    ],
)
def test_header_versions(api: Api, version: int, request_header: int, response_header: int) -> None:
    assert api.request_header_version(version) == request_header
    assert api.response_header_version(version) == response_header
    assert api.is_flexible(version) == (request_header == 2)


def test_an_api_may_never_be_flexible() -> None:
    plain = Api(
        key=17,
        name="SaslHandshake",
        request=METADATA.request,
        response=METADATA.response,
        versions=Versions(0, 1),
        flexible_since=None,
        summary="",
    )
    assert not plain.is_flexible(1)
    assert plain.request_header_version(1) == 1


def test_error_codes_are_complete_and_dense() -> None:
    assert sorted(ErrorCode) == list(range(-1, max(ErrorCode) + 1))
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER in RETRIABLE
    assert ErrorCode.NONE not in RETRIABLE


def test_a_kafka_error_says_its_code_and_its_words() -> None:
    assert str(KafkaError(ErrorCode.INVALID_CONFIG, "no such key")) == "INVALID_CONFIG: no such key"
    assert str(KafkaError(ErrorCode.INVALID_CONFIG)) == "INVALID_CONFIG"
    assert KafkaError(ErrorCode.INVALID_CONFIG).message is None
