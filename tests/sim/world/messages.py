"""Raft's messages, lost, repeated and out of order, though their connection lives.

Streams do none of this by themselves; Raft must bear it all the same, because connections break and
queues drop. It happens between Raft and the connection, on the sender's side.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

from chronik.raft.messages import InstallSnapshot, Message
from chronik.server.network import Network

LATE_S = (0.05, 1.5)


@dataclass
class MessageWeather:
    """How often it happens, of all messages."""

    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0


def unreliable(chance: random.Random, faults: Counter[str]) -> Any:
    """A class of networks for brokers, with its weather as an attribute."""

    class UnreliableNetwork(Network):
        weather = MessageWeather()

        def send(self, message: Message) -> None:
            weather = self.weather
            draw = chance.random()
            if isinstance(message, InstallSnapshot):
                super().send(message)
                return
            if draw < weather.loss:
                faults["message lost"] += 1
                return
            draw -= weather.loss
            if draw < weather.reordering:
                faults["message late"] += 1
                self._send_later(message)
                return
            super().send(message)
            if draw - weather.reordering < weather.duplication:
                faults["message repeated"] += 1
                self._send_later(message)

        def _send_later(self, message: Message) -> None:
            loop = asyncio.get_running_loop()
            loop.call_later(chance.uniform(*LATE_S), super().send, message)

    return UnreliableNetwork
