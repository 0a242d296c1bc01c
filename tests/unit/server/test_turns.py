"""Connections share the loop's time in turns."""

import asyncio

from chronik.server.turns import TURN_S, Turns


class Client:
    """Has so much work, a millisecond each."""

    def __init__(self, name: str, work: int, log: list[str], clock: list[float]) -> None:
        self.name, self.work, self.log, self.clock = name, work, log, clock
        self.turns: Turns

    def go_on(self) -> None:
        while self.work and not self.turns.is_over(self):
            self.work -= 1
            self.clock[0] += 0.001
            self.log.append(self.name)


def served(*work: int) -> list[str]:
    """The order in which clients with so much work each are served; `|` is the loop's turn."""
    log: list[str] = []
    clock = [0.0]

    async def run() -> None:
        loop = asyncio.get_running_loop()
        turns = Turns(loop, lambda: clock[0])
        clients = [Client("ab"[n], count, log, clock) for n, count in enumerate(work)]
        for client in clients:
            client.turns = turns
            client.go_on()
        while any(client.work for client in clients):
            log.append("|")
            await asyncio.sleep(0)

    asyncio.run(run())
    return log


def test_little_work_is_done_at_once() -> None:
    assert served(3, 2) == list("aaabb")


def test_much_work_leaves_the_loop_in_between() -> None:
    log = "".join(served(25))
    assert [len(part) for part in log.split("|") if part] == [10, 10, 5]
    assert round(TURN_S / 0.001) == 10


def test_who_was_put_off_goes_first() -> None:
    log = "".join(served(15, 5))
    assert log.replace("|", "") == "a" * 15 + "b" * 5
    assert max(len(part) for part in log.split("|")) <= 10
