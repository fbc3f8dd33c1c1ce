"""The rows whose perplexity a sweep measures beside its load: checked, and scored by every variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wattserve_client import EnergyState
from wattserve_common.dataset import Dataset
from wattserve_loadgen.errors import PlanError
from wattserve_loadgen.figures.perplexity import Scored, measure_perplexity
from wattserve_loadgen.model.results import Perplexity
from wattserve_loadgen.plan.load import Arm
from wattserve_loadgen.sweeping.checks import check_tokens
from wattserve_loadgen.sweeping.servers import Site
from wattserve_loadgen.target.oip import OipTarget

_AT_ONCE = 8  # rows of a request


def check_held_out(held_out: Dataset, dataset: Dataset, sites: Mapping[str, Site]) -> None:
    """PlanError when they cannot be scored, or are no test of anything."""
    where = f"--held-out {held_out.folder}"
    if held_out.pixel_shape:
        raise PlanError(f"{where}: holds images; perplexity is of texts")
    if held_out.sha256 == dataset.sha256:
        raise PlanError(f"{where}: is the dataset of the load; name rows of their own")
    for site in sites.values():
        if isinstance(site.target, OipTarget) or not site.target.generates:
            raise PlanError(
                f"{where}: {site.target.address} serves no language model, which alone foresees tokens"
            )
        check_tokens(where, site.info, held_out)
    short = next((index for index, row in enumerate(held_out.rows) if len(row) < 2), None)
    if short is not None:
        raise PlanError(f"{where}: row {short} has one token, and the first has nothing before it")


async def score(held_out: Dataset, arms: Sequence[Arm], sites: Mapping[str, Site]) -> dict[str, Perplexity]:
    """Of every arm but a twin, the first one the baseline. TargetError when a server does not answer."""
    scored = {arm.name: await _scored(held_out, arm, sites[arm.target]) for arm in arms if not arm.twin_of}
    return measure_perplexity(scored, arms[0].name)


async def _scored(held_out: Dataset, arm: Arm, site: Site) -> Scored:
    assert not isinstance(site.target, OipTarget)  # of check_held_out
    nats: list[float] = []
    tokens: list[int] = []
    energy_uj: int | None = 0
    reason = ""
    most = min(_AT_ONCE, site.info.limits.max_request_sequences or _AT_ONCE)
    for start in range(0, len(held_out.rows), most):
        rows = held_out.rows[start : start + most]
        scores = await site.target.score([row.tolist() for row in rows], arm.variant)
        nats += [-sequence.logprob_sum for sequence in scores.sequences]
        tokens += [len(row) - 1 for row in rows]
        receipt = scores.receipt
        if receipt.state is not EnergyState.SETTLED or receipt.energy_uj is None:
            reason = reason or receipt.unknown_reason or "a receipt was not settled in time"
            energy_uj = None
        elif energy_uj is not None:
            energy_uj += receipt.energy_uj
    return Scored(nats, tokens, energy_uj, reason)
