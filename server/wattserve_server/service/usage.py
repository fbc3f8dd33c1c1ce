"""What the native protocol tells of an account book's sums."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wattserve_proto.v1 import inference_pb2 as pb
from wattserve_server.errors import NotPossibleHere
from wattserve_server.service.caller import CALLER
from wattserve_server.service.keys import READ_ALL
from wattserve_server.service.methods import check_unread

if TYPE_CHECKING:  # the command `wattserve usage` imports this, and no model
    from wattserve_server.accounts.usage import Usage
    from wattserve_server.service.prediction import Serving


class UsageMethods:
    _serving: Serving

    async def GetUsage(self, request: pb.GetUsageRequest, context: Any) -> pb.UsageReport:
        host, caller = self._serving.get(), CALLER.get()
        if host.stored is None:
            raise NotPossibleHere("this server keeps no account book; start it with --account-book")
        from wattserve_server.accounts.usage import By  # a database, which is loaded here

        by = By(request.by_tenant, request.by_variant, request.by_hour)
        span = request.since_unix_s, request.until_unix_s
        sees_all = READ_ALL in caller.may
        told: pb.UsageReport = await host.stored.usage(*span, by, caller.sees, sees_all, usage_message)
        check_unread()
        return told


def usage_message(used: Usage) -> pb.UsageReport:
    from wattserve_server.accounts.schema import AMOUNTS, FIGURES

    message = pb.UsageReport(
        since_unix_s=used.since_unix_s,
        until_unix_s=used.until_unix_s,
        of_all_tenants=used.counters is not None,
    )
    message.sources.extend(used.sources)
    for row in used.rows:
        hour_s = None if row.hour is None else row.hour * 3600
        message.rows.add(
            tenant=row.tenant,
            variant=row.variant,
            hour_unix_s=hour_s,
            **dict(zip(FIGURES, row.figures, strict=True)),
        )
    for each in used.counters or ():
        amounts = dict(zip(AMOUNTS, each.amounts, strict=True))
        message.counters.add(server=each.server, counter=each.counter, **amounts)
    for span_lost in used.breaks:
        message.breaks.add(
            server=span_lost.server,
            from_unix_ns=span_lost.from_unix_ns,
            until_unix_ns=span_lost.until_unix_ns,
            reason=span_lost.reason,
            receipts=span_lost.receipts,
        )
    return message
