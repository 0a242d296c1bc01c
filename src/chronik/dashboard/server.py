"""HTTP beside the Kafka port: /metrics, /healthz, /readyz.

/healthz says that the process answers; /readyz that clients can use it: the broker is in its own
committed image, and its metadata log works.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from chronik.dashboard.metrics import registry, render
from chronik.dashboard.status import Status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # Signals are the node's own.


class DashboardServer:
    """Uvicorn on the node's own loop."""

    def __init__(self, status: Status) -> None:
        self._status = status
        self._registry = registry(status)
        self._task: asyncio.Task[None] | None = None
        app = Starlette(
            routes=[
                Route("/metrics", self._metrics),
                Route("/healthz", self._healthz),
                Route("/readyz", self._readyz),
            ]
        )
        # What uvicorn says of its own life is ours to say: only its complaints are let through.
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level=logging.WARNING,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        self._server = _Server(config)

    async def open(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns the address, with the port that the system chose for 0."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family)
        self._task = asyncio.create_task(self._server.serve([listening]), name="dashboard")
        address = listening.getsockname()
        return str(address[0]), int(address[1])

    async def close(self) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await self._task

    async def _metrics(self, request: Request) -> Response:
        return Response(render(self._registry), media_type=CONTENT_TYPE)

    async def _healthz(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _readyz(self, request: Request) -> Response:
        metadata = self._status.metadata
        ready = self._status.node_id in metadata.image.brokers and metadata.failure is None
        shown = {
            "ready": ready,
            "node_id": self._status.node_id,
            "brokers": [each.node_id for each in metadata.image.online_brokers],
            "term": metadata.term,
            "applied_index": metadata.applied_index,
        }
        return JSONResponse(shown, status_code=200 if ready else 503)
