"""`chronik transactions`: list and describe transactions, find those that hang, abort them."""

from typing import Annotated, Any

import typer

from chronik.cli.formats import time_text
from chronik.cli.output import print_json, print_table
from chronik.cli.session import (
    BOOTSTRAP_DEFAULT,
    TIMEOUT_S,
    Bootstrap,
    Json,
    Timeout,
    command_app,
    run,
)
from chronik.client.admin import Admin
from chronik.client.cluster import Cluster
from chronik.client.transactions import OpenTransaction, Transactions
from chronik.model import TopicPartition
from chronik.protocol.messages.transactions import DescribedTransaction

app = command_app("List and describe transactions, find those that hang, abort them.")


@app.command("list")
def list_transactions(
    state: Annotated[
        list[str] | None, typer.Option(help="Only in this state, such as Ongoing.")
    ] = None,
    hanging: Annotated[
        bool,
        typer.Option("--hanging", help="What partitions have open and no coordinator will end."),
    ] = False,
    topic: Annotated[
        str | None, typer.Option(help="With --hanging: look only into this topic.")
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout_s: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """List transactional ids and their state, or transactions that hang in a partition."""
    if hanging:
        found = run(bootstrap, timeout_s, lambda cluster: _hanging(cluster, topic))
        _print_open(found, as_json)
        return
    listed = run(bootstrap, timeout_s, lambda cluster: Transactions(cluster).all(state or ()))
    if as_json:
        print_json(
            [
                {
                    "transactional_id": each.transactional_id,
                    "producer_id": each.producer_id,
                    "state": each.transaction_state,
                }
                for each in listed
            ]
        )
    else:
        rows = [
            (each.transactional_id, each.producer_id, each.transaction_state) for each in listed
        ]
        print_table(("TRANSACTIONAL ID", "PRODUCER", "STATE"), rows)


async def _hanging(cluster: Cluster, topic: str | None) -> list[OpenTransaction]:
    names = [topic] if topic is not None else [t.name for t in await Admin(cluster).topics()]
    transactions = Transactions(cluster)
    return [
        each
        for name in names
        if name is not None
        for each in await transactions.open_in(name)
        if each.hangs
    ]


def _print_open(found: list[OpenTransaction], as_json: bool) -> None:
    if as_json:
        print_json([_open(each) for each in found])
        return
    columns = ("TOPIC", "PARTITION", "START", "PRODUCER", "EPOCH", "LAST WRITE")
    rows = [
        (
            *each.partition,
            each.producer.current_txn_start_offset,
            each.producer.producer_id,
            each.producer.producer_epoch,
            time_text(each.producer.last_timestamp),
        )
        for each in found
    ]
    print_table(columns, rows)


def _open(found: OpenTransaction) -> dict[str, Any]:
    return {
        "topic": found.partition.topic,
        "partition": found.partition.partition,
        "start_offset": found.producer.current_txn_start_offset,
        "producer_id": found.producer.producer_id,
        "producer_epoch": found.producer.producer_epoch,
        "last_write": time_text(found.producer.last_timestamp),
        "transactional_id": found.transactional_id,
    }


@app.command()
def describe(
    transactional_id: Annotated[str, typer.Argument(help="The transactional id.")],
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout_s: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show a transactional id: its producer, its state, and the partitions it has open."""
    found = run(
        bootstrap, timeout_s, lambda cluster: Transactions(cluster).describe(transactional_id)
    )
    if as_json:
        print_json(_described(found))
        return
    typer.echo(f"transactional id {transactional_id}, state {found.transaction_state}")
    typer.echo(f"producer {found.producer_id}, epoch {found.producer_epoch}")
    typer.echo(f"timeout {found.transaction_timeout_ms} ms, began {_began(found) or '-'}")
    rows = [(topic.topic, index) for topic in found.topics for index in topic.partitions]
    if rows:
        print_table(("TOPIC", "PARTITION"), rows)


def _began(found: DescribedTransaction) -> str | None:
    return time_text(found.transaction_start_time_ms)


def _described(found: DescribedTransaction) -> dict[str, Any]:
    return {
        "transactional_id": found.transactional_id,
        "state": found.transaction_state,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "timeout_ms": found.transaction_timeout_ms,
        "began": _began(found),
        "partitions": [
            [topic.topic, index] for topic in found.topics for index in topic.partitions
        ],
    }


@app.command()
def abort(
    transactional_id: Annotated[
        str | None, typer.Argument(help="The transactional id whose transaction is aborted.")
    ] = None,
    topic: Annotated[str | None, typer.Option(help="Or: the topic where one hangs.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Its partition.")] = None,
    start_offset: Annotated[
        int | None, typer.Option(min=0, help="Where it began, as list --hanging shows it.")
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    timeout_s: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Abort an open transaction, and shut its producer out; or one that hangs in a partition."""
    place = (topic, partition, start_offset)
    if (transactional_id is None) == (place == (None, None, None)):
        raise typer.BadParameter("give a transactional id, or --topic, --partition, --start-offset")
    if transactional_id is not None:
        run(bootstrap, timeout_s, lambda cluster: Transactions(cluster).abort(transactional_id))
        _aborted({"aborted": transactional_id}, f"aborted {transactional_id}", as_json)
        return
    if topic is None or partition is None or start_offset is None:
        raise typer.BadParameter("give all of --topic, --partition and --start-offset")
    where = TopicPartition(topic, partition)
    producer = run(
        bootstrap,
        timeout_s,
        lambda cluster: Transactions(cluster).abort_in(where, start_offset),
    )
    text = f"aborted the transaction of producer {producer.producer_id} in {where}"
    _aborted({"aborted": str(where), "producer_id": producer.producer_id}, text, as_json)


def _aborted(value: dict[str, Any], text: str, as_json: bool) -> None:
    if as_json:
        print_json(value)
    else:
        typer.echo(text)
