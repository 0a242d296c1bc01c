"""Scripts for transactions; see `scripts_played`. Producers are named by letters.

init P [expected]           InitProducerId; with `expected` the producer names its id and epoch
add P TOPIC-N... [v2]       partitions for its transaction, by the old or the new protocol
verify P TOPIC-N...         whether they are in it
commit P [v2] / abort P [v2]
lose_memory EPOCH           a broker comes back whose machine went down
markers                     all markers that were asked for are written
advance MS                  time passes
crash                       the log is all that is left
"""

from pathlib import Path

import pytest
from scripts_played import check_script
from transaction_world import Driver

from chronik.coordinator.effects import ProducerStamp
from chronik.coordinator.transactions.transaction import TransactionState
from chronik.model import TopicPartition

SCRIPTS = sorted((Path(__file__).parent / "transactions").glob("*.txt"))


class Player:
    """Plays one script."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.stamps: dict[str, ProducerStamp] = {}
        self.waiting: dict[int, str] = {}
        self.written = 0

    def run(self, line: str) -> list[str]:
        """Carry out a command; what it led to, as lines of text."""
        name, *words = line.split()
        marked = len(self.driver.markers)
        getattr(self, name)(*words)
        return [*self.sealed(), *self.logged(), *self.asked(marked), *self.answered()]

    def _ask(self, producer: str, answer: object) -> None:
        self.waiting[self.driver.tokens] = producer

    def init(self, producer: str, expected: str = "") -> None:
        stamp = self.stamps.get(producer) if expected else None
        self._ask(producer, self.driver.init(expected=stamp))

    def add(self, producer: str, *words: str) -> None:
        places = [place(word) for word in words if word != "v2"]
        version = 2 if "v2" in words else 1
        self._ask(producer, self.driver.add(self.stamps[producer], *places, version=version))

    def verify(self, producer: str, *words: str) -> None:
        self._ask(producer, self.driver.verify(self.stamps[producer], *map(place, words)))

    def commit(self, producer: str, version: str = "") -> None:
        self._end(producer, True, version)

    def abort(self, producer: str, version: str = "") -> None:
        self._end(producer, False, version)

    def _end(self, producer: str, committed: bool, version: str) -> None:
        number = 2 if version else 1
        self._ask(producer, self.driver.end(self.stamps[producer], committed, number))

    def lose_memory(self, memory_epoch: str) -> None:
        self.driver.lose_memory(int(memory_epoch))

    def markers(self) -> None:
        self.driver.write_markers()

    def advance(self, ms: str) -> None:
        self.driver.tick(int(ms))

    def crash(self) -> None:
        self.driver.crash()
        self.waiting.clear()

    # What happened.

    def sealed(self) -> list[str]:
        seals, self.driver.seals = self.driver.seals, []
        return ["seal: " + ",".join(sorted(map(str, each))) for each in seals]

    def logged(self) -> list[str]:
        records, self.written = self.driver.log[self.written :], len(self.driver.log)
        return [f"log: {state_of(record.value)}" for record in records]

    def asked(self, marked: int) -> list[str]:
        return [
            f"markers: {'commit' if each.committed else 'abort'} as {text(each.stamp)} in "
            + ",".join(sorted(map(str, each.partitions)))
            for each in self.driver.markers[marked:]
        ]

    def answered(self) -> list[str]:
        lines = []
        for token, producer in list(self.waiting.items()):
            answer = self.driver.answers.get(token)
            if answer is None:
                continue
            del self.waiting[token]
            stamp = getattr(answer, "stamp", None)
            if stamp is not None and stamp.producer_id >= 0:
                self.stamps[producer] = stamp
                lines.append(f"{producer}: goes on as {text(stamp)}")
            elif getattr(answer, "missing", None) and not answer.error_code:
                lines.append(f"{producer}: without {','.join(map(str, sorted(answer.missing)))}")
            else:
                lines.append(f"{producer}: {answer.error_code.name}")
        return lines


def place(word: str) -> TopicPartition:
    topic, _, index = word.rpartition("-")
    return TopicPartition(topic, int(index))


def text(stamp: ProducerStamp) -> str:
    return f"{stamp.producer_id}/{stamp.producer_epoch}"


def state_of(value: object) -> str:
    if value is None:
        return "forgotten"
    state = TransactionState(value.transaction_status).wire_name  # type: ignore[attr-defined]
    stamp = ProducerStamp(value.producer_id, value.producer_epoch)  # type: ignore[attr-defined]
    return f"{state} {text(stamp)}"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path, request: pytest.FixtureRequest) -> None:
    check_script(path, Player().run, request)


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 8
