"""Changes the format of a log, when an operator confirms that every process reads it (model/formats.py).

The leader knows what the connected processes read. Those that are not connected announce nothing: functions of an
earlier alias version, a sweep, `headgate top` of an older installation. So only the operator can say that all of them
were updated.
"""

from __future__ import annotations

import asyncio

from dispatcher.model.commands import Refused, UseFormat
from dispatcher.model.errors import ConfigurationError
from dispatcher.model.formats import NEWEST
from dispatcher.ports import GateLink
from dispatcher.service.log_keeper import LogKeeper

WAIT_S = 10.0


async def use_format(link: GateLink, keeper: LogKeeper, wanted: int) -> None:
    """Let the log have this format from its next entry on. Nothing happens if it has it already.

    After the way back to an older format, save a snapshot in it: an older process begins with that, and reads no entry
    before it.

    Raises ConfigurationError if the leader is of a version that does not know the question, if a connected process does
    not read the format, or if this version does not write it. Raises StoreUnavailable, LogGap, LogCorrupt.
    """
    if await link.readers() is None:
        raise ConfigurationError(
            "the leader does not say what its clients read, so it is of an older version: update all gates first"
        )
    try:
        async with asyncio.timeout(WAIT_S):
            outcome = await link.do(UseFormat(wanted))
    except TimeoutError:
        raise ConfigurationError("the leader does not answer; nothing is known to have changed: try again") from None
    if isinstance(outcome, Refused):
        raise ConfigurationError(outcome.message)
    if wanted < NEWEST:
        await keeper.save()
