"""Finishes all work of a front in Lambda before the last byte of each answer, because Lambda freezes it then."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dispatcher.operations.context import Context


class FinishedBeforeLastByte:
    """ASGI middleware. It does nothing in a front that is not in Lambda (`GateSettings.frozen`).

    The last message of the body waits until no task runs beside the request and no command is on its way. It does so
    too before an answer that breaks off. Lambda sends one request at a time to a process, so that no other request's
    work is waited for.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["app"].state.context.settings.frozen is None:
            return await self._app(scope, receive, send)
        context: Context = scope["app"].state.context

        async def send_finished(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                await _finish(context)
            await send(message)

        try:
            await self._app(scope, receive, send_finished)
        finally:
            await _finish(context)
        return None


async def _finish(context: Context) -> None:
    """Finish the work of the request and export its spans."""
    await context.finish()
    await context.tracing.flush()
