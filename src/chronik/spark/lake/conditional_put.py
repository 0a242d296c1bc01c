"""Whether a store keeps a promise that Delta tables stand on: a version is put once.

Two commits of one version must not both succeed, or two pipelines lose each other's rows. Object
stores promise it by If-None-Match; some take the header and do not look at it. So a writer tries
it, once: an object is put twice, and the second must be refused. `deltalake` itself cannot be
asked: it lists before it puts, and would notice the first by that. `obstore` is the same client.
"""

import uuid
from functools import lru_cache

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError

from chronik.spark.lake.failures import telling
from chronik.spark.lake.storage import Storage
from chronik.spark.lake.table import LakeError


@lru_cache(maxsize=16)
def check_conditional_put(probes: Storage) -> None:
    """Raise LakeError unless the store refuses to put an object twice."""
    if probes.is_local:
        return  # A disk's link does.
    probes.check()
    with telling(probes.url, (BaseError,)):
        is_refused = _is_second_refused(probes)
    if not is_refused:
        raise LakeError(
            f"the object store at {probes.store.name} puts one version of a Delta table twice "
            "(it does not know If-None-Match), so that two pipelines would lose each other's rows: "
            "use a store that knows it, or Iceberg tables, which have a catalog"
        )


def _is_second_refused(probes: Storage) -> bool:
    store = probes.store.obstore(probes.url)
    name = uuid.uuid4().hex
    obstore.put(store, name, b"first", mode="create")
    try:
        obstore.put(store, name, b"second", mode="create")
    except AlreadyExistsError:
        return True
    finally:
        obstore.delete(store, name)
    return False
