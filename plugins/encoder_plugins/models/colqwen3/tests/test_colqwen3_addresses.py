"""Images and PDFs that the Python client names by their addresses: over HTTP, fetched from a server with a certificate. No vLLM."""

from __future__ import annotations

import asyncio
import base64
import secrets
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
import uvicorn

from encoder_client import AsyncMultiVectorEncoder, InvalidRequestError, Pdf
from encoder_plugins.inputs.tests import origin as origins
from encoder_plugins.models.colqwen3 import PLUGIN
from encoder_plugins.models.colqwen3.checkpoint import CHECKPOINT
from encoder_plugins.models.colqwen3.tests import tiny
from encoder_plugins.models.colqwen3.tests.test_colqwen3_requests import IMAGE, PDF, served
from encoder_plugins.serving.http.admission import Receive, Scope, Send
from encoder_plugins.serving.http.app import Application, Serving
from encoder_plugins.serving.http.metrics import Counts
from encoder_plugins.serving.http.worker_counters import SingleProcess
from encoder_plugins.serving.processor import Prompt
from encoder_plugins.serving.rounds import ManualEngine

# torch and transformers warn about themselves
pytestmark = pytest.mark.filterwarnings("ignore")


class Brightness(ManualEngine):
    """An engine whose rows and scores are the mean of an image's pixels."""

    async def encode(self, prompts: Sequence[Prompt], *, lora: str | None = None) -> list[torch.Tensor]:
        return [self._pooled(prompt) for prompt in prompts]

    def _pooled(self, prompt: Prompt) -> torch.Tensor:
        value = 1.0 if prompt.image is None else float(np.asarray(prompt.image).mean())
        scored = "queries" in (prompt.parameters or {})
        return torch.full((1, 1) if scored else (prompt.tokens, tiny.DIMENSIONS), value)


async def _vllm(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b'{"data": []}'})


@asynccontextmanager
async def running(model: Path, host: str) -> AsyncIterator[str]:
    """Serve the plugin's routes while the block lasts; yields the address."""
    processor = served(model, media_hosts=(host,), pdf_pages=2)
    # a name of its own, since counters are the process's
    plugin = replace(PLUGIN, name=f"colqwen3-{secrets.token_hex(4)}")
    serving = Serving(
        plugin=plugin,
        processor=processor,
        engine=Brightness(),
        counts=Counts(plugin.name, processor.limits.in_flight),
        counters=SingleProcess(),
        engine_died=lambda: False,
    )
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        application = Application(_vllm, serving)
        server = uvicorn.Server(uvicorn.Config(application, lifespan="off", log_level="error"))
        task = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            while not server.started:
                assert not task.done()
                await asyncio.sleep(0.01)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


async def test_the_client_s_addresses_have_the_answers_of_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    CHECKPOINT.convert(tiny.build(tmp_path / "published"), {}, model)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.crt"))
    origins.allow_loopback(monkeypatch)
    image, pdf = base64.b64decode(IMAGE), base64.b64decode(PDF)
    files = {"/1.pdf": ("application/pdf", pdf), "/1.png": ("image/png", image)}
    async with (
        origins.running(files, tmp_path) as origin,
        running(model, origin.host) as url,
        AsyncMultiVectorEncoder(url) as client,
    ):
        image_at, pdf_at = origin.address("/1.png"), origin.address("/1.pdf")
        found = await client.encode_document([{"image": image_at}, httpx.URL(image_at), "a text", Pdf(pdf_at, "2,1")])
        expected = await client.encode_document([image, image, "a text", Pdf(pdf, "2,1")])
        assert len(origin.requests) == 3
        for ours, theirs in zip([*found[:3], *found[3]], [*expected[:3], *expected[3]], strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert len(found[3]) == 2
        assert not np.array_equal(found[3][0], found[3][1])
        ranking = await client.rank(
            "a query", [{"image": image_at}, "a text", Pdf(pdf_at), Pdf(httpx.URL(pdf_at), "2")]
        )
        assert ranking == await client.rank("a query", [image, "a text", Pdf(pdf), Pdf(pdf, "2")])
        places = [(each["corpus_id"], each.get("page")) for each in ranking]
        assert sorted(places, key=str) == [(0, None), (1, None), (2, 1), (2, 2), (3, 2)]
        for inputs, param, says in (
            (["a", {"image": origin.address("/gone.png")}], "data.inputs[1].image", "the host answered 404"),
            (["a", Pdf(origin.address("/1.png"))], "inputs[1].pdf", "answered with image/png, not with a PDF"),
            ([Pdf("https://other.example.com/1.pdf")], "inputs[0].pdf", "the host other.example.com is not allowed"),
            ([{"image": f"http://{origin.host}/1.png"}], "data.inputs[0].image", "only https addresses are fetched"),
        ):
            with pytest.raises(InvalidRequestError) as caught:
                await client.encode_document(inputs)
            assert (caught.value.param, says in str(caught.value)) == (param, True), caught.value
        with pytest.raises(InvalidRequestError) as caught:
            await client.rank("a query", ["a", Pdf(pdf_at, "3")])
        assert caught.value.param == "data.documents[1].pages"
